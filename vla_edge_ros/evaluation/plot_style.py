"""How plots look: drawn with stand-in colours that become the page's CSS variables.

matplotlib knows no CSS; each stand-in in its SVG is replaced by `var(--name)`, so that one drawing serves a
light and a dark page.
"""

import io
import re

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

_VARIABLES = (
    "ink",
    "muted",
    "grid",
    "deadline",
    "late",
    "accent",
    "copy",
    "vision",
    "prefill",
    "decode",
    "pass",
    "FRESH",
    "FRESH_LATE",
    "HOLD_NO_FRAME",
    "HOLD_STALE_FRAME",
    "HOLD_BUSY",
    "HOLD_REFUSED",
    "HOLD_LATE",
    "SAFE_STOP",
    "FAULT",
    *(f"policy{number}" for number in range(11)),
)
COLOUR = {name: f"#0000{index + 16:02x}" for index, name in enumerate(_VARIABLES)}

RC_PARAMS = {
    "svg.fonttype": "none",
    "path.simplify": False,
    "font.size": 9,
    "axes.edgecolor": COLOUR["grid"],
    "axes.labelcolor": COLOUR["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": COLOUR["grid"],
    "grid.linewidth": 0.6,
    "xtick.color": COLOUR["muted"],
    "ytick.color": COLOUR["muted"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.color": COLOUR["ink"],
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def panels_of(figure: Figure, n: int, columns: int) -> list[Axes]:
    """`n` panels with common axes in rows of at most `columns`; the lowest of each column has the labels."""
    columns = min(columns, n)
    panels = figure.subplots(-(-n // columns), columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes in panels[n:]:
        axes.set_axis_off()
    for axes in panels[max(0, n - columns) : n]:
        axes.tick_params(labelbottom=True)
    return list(panels[:n])


def to_svg(figure: Figure, name: str) -> str:
    """The drawing as an element for inline use, its ids made unique by `name`; call it under `RC_PARAMS`."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    for variable, stand_in in COLOUR.items():
        svg = svg.replace(stand_in, f"var(--{variable})")
    return svg
