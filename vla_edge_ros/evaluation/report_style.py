"""The look of the reports: one style sheet, light and dark, and what their pages are made of."""

import html
from collections.abc import Sequence

STYLE = """
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --line: #e4e3df;
  --ink: #20242a; --muted: #666d77; --grid: #e4e3df;
  --accent: #1f6f8b; --good: #1d7a5f; --bad: #b3361f; --deadline: #b3361f; --late: #b3361f;
  --copy: #8a94a3; --vision: #4a90c2; --prefill: #1f5f8b; --decode: #d98a2b; --pass: #b9bec6;
  --FRESH: #2a8f7a; --FRESH_LATE: #86c3a3; --HOLD_NO_FRAME: #a9afb8; --HOLD_STALE_FRAME: #7d8794;
  --HOLD_BUSY: #d9b23b; --HOLD_REFUSED: #d98a2b; --HOLD_LATE: #c4622d; --SAFE_STOP: #b3361f; --FAULT: #7a1f3d;
  --policy0: #4d5560; --policy1: #2f7fc4; --policy2: #b3400f; --policy3: #8a6d00; --policy4: #0f8a7a;
  --policy5: #7c3aed; --policy6: #7a0f35; --policy7: #d6479c; --policy8: #3c8f1e; --policy9: #1e2a78;
  --policy10: #d97706;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15181c; --card: #1c2026; --line: #2e343c;
    --ink: #e8e9ea; --muted: #9ba3ae; --grid: #2e343c;
    --accent: #5fb3cf; --good: #5cc3a0; --bad: #ee7f68; --deadline: #ee7f68; --late: #ee7f68;
    --copy: #7d8794; --vision: #62a8db; --prefill: #3d84b8; --decode: #e5a04b; --pass: #565e69;
    --FRESH: #3fae95; --FRESH_LATE: #86c3a3; --HOLD_NO_FRAME: #7d8794; --HOLD_STALE_FRAME: #a9afb8;
    --HOLD_BUSY: #e0bf55; --HOLD_REFUSED: #e5a04b; --HOLD_LATE: #e07f49; --SAFE_STOP: #ee7f68;
    --FAULT: #d0587f;
    --policy0: #c3cad3; --policy1: #5aa9ec; --policy2: #f2704a; --policy3: #c9ab3c; --policy4: #2fae9d;
    --policy5: #a98bff; --policy6: #e0527a; --policy7: #f59ad0; --policy8: #9fe06c; --policy9: #6f83e8;
    --policy10: #ffb04d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 44px 0 4px; }
h3 { font-size: 15px; margin: 0; font-weight: 600; }
p { margin: 0; }
.quiet, figcaption { color: var(--muted); }
.facts { margin: 0; color: var(--muted); overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px;
  margin: 26px 0 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.card b { display: block; font-size: 26px; line-height: 1.2; font-weight: 600;
  font-variant-numeric: tabular-nums; }
.card span { color: var(--muted); font-size: 13px; }
.good b { color: var(--good); } .bad b { color: var(--bad); }
figure { margin: 10px 0 0; padding: 14px 16px; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; overflow-x: auto; }
figcaption { font-size: 13px; }
figure > img { display: block; width: 100%; max-width: 720px; height: auto; margin: 0 auto 8px;
  border-radius: 6px; }
figure svg { display: block; width: 100%; min-width: 640px; height: auto; }
svg text { font-family: inherit !important; fill: var(--muted); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 400; color: var(--muted); padding-right: 20px; }
td { text-align: right; white-space: nowrap; }
.latency th, .latency td { text-align: right; padding: 5px 0 5px 14px; }
.latency th:first-child { text-align: left; padding-left: 0; }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 12px;
  margin-top: 10px; }
.table { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.wide { grid-column: 1 / -1; overflow-x: auto; }
.table tr:last-child > * { border-bottom: 0; }
.table caption { text-align: left; font-weight: 600; padding-bottom: 4px; }
.strip { margin-top: 12px; padding: 16px; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.note { color: var(--muted); font-weight: 400; margin-left: 10px; }
.axis { position: relative; height: 38px; margin: 10px 0 6px; font-size: 12px; color: var(--muted); }
.axis svg { display: block; width: 100%; height: 18px; }
.axis rect { fill: var(--grid); }
.axis path { stroke: var(--accent); stroke-width: 2.5; fill: none; vector-effect: non-scaling-stroke; }
.axis .marked { stroke: var(--late); }
.axis span { position: absolute; top: 20px; transform: translateX(-50%); white-space: nowrap; }
.axis .first { transform: none; } .axis .last { transform: translateX(-100%); }
@media (max-width: 600px) { .axis span:nth-of-type(even) { display: none; }
  main { padding: 24px 14px 48px; } }
.frames { list-style: none; display: flex; flex-wrap: wrap; gap: 8px 6px; margin: 0; padding: 0; }
.frames li { width: 92px; font-size: 12px; color: var(--muted); font-variant-numeric: tabular-nums; }
.frames img { display: block; width: 100%; height: auto; border-radius: 4px; margin-bottom: 2px; }
.frames .gap { width: auto; min-width: 62px; align-self: stretch; display: flex; flex-direction: column;
  align-items: center; justify-content: center; padding: 0 8px; border: 1px dashed var(--muted);
  border-radius: 4px; text-align: center; line-height: 1.25; }
.gap span { color: var(--ink); }
.episodes { margin-top: 12px; overflow-x: auto; }
.episodes th, .episodes td { text-align: left; padding-right: 18px; white-space: normal; }
.episodes .figure { white-space: nowrap; }
footer { margin-top: 44px; color: var(--muted); font-size: 13px; overflow-wrap: anywhere; }
@media print { main { max-width: none; padding: 0; } figure, .strip, .table, .card { break-inside: avoid; } }
"""


def whole_page(title: str, parts: Sequence[str], more_style: str = "") -> str:
    """An HTML file of its own; `parts` are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{more_style}</style></head>\n"
        f"<body><main>\n{chr(10).join(parts)}\n</main></body></html>\n"
    )


def captioned(svg: str, caption: str) -> str:
    text = html.escape(caption)
    return f'<figure role="img" aria-label="{text}">{svg}<figcaption>{text}</figcaption></figure>'
