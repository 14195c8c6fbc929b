"""Time the engine and its peers side by side: `python -m vla_edge_ros.engine.cuda.comparison --json PATH`.

All do the same nine forwards after the same context: one prefill of 32 tokens and eight decode steps, in bf16
and with random weights. Each is a process of its own, so that one that fails hides no other. All prepare
(load, compile, warm up) at once, then measure one after another while the others wait.
"""

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from vla_edge_ros import output
from vla_edge_ros.engine.cuda.benchmark import full_context
from vla_edge_ros.engine.cuda.peers import COMPETITORS
from vla_edge_ros.engine.linux import end_with_parent, same_imports
from vla_edge_ros.engine.presets import PRESETS

PREPARE_S, MEASURE_S = 300.0, 90.0
"""What all have to get ready in, and each to measure in; one that takes longer has failed."""


class Failed(Exception):
    """Why a competitor has no figures, in one line."""


class Competitor:
    """A process that says {"ready": ...}, waits for a line, and says {"measured": {...}}."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                env=same_imports(os.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def prepare(self, until_s: float) -> None:
        """Wait until it is ready, to `until_s` on the steady clock. Raises Failed."""
        self._answer("ready", until_s, "was not ready in time")

    def measure(self, timeout_s: float) -> dict:
        """Raises Failed."""
        try:
            self._process.stdin.write("measure\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._complaint()) from None
        until_s = time.monotonic() + timeout_s
        return self._answer("measured", until_s, f"did not measure within {timeout_s:.0f} s")

    def end(self) -> None:
        """Kill it with what it started: torch compiles in processes of their own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self, wanted: str, until_s: float, complaint: str):
        """What the next object with this key has there; libraries print lines of their own."""
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                raise Failed(complaint) from None
            if not line:
                raise Failed(self._complaint())
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if isinstance(answer, dict) and wanted in answer:
                return answer[wanted]

    def _complaint(self) -> str:
        code = self._process.wait()
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1].strip() if lines else "it printed nothing"
        return f"ended with exit code {code}: {last if len(last) <= 300 else last[:297] + '...'}"


def compare(
    commands: Mapping[str, Sequence[str]], prepare_s: float = PREPARE_S, measure_s: float = MEASURE_S
) -> dict[str, dict]:
    """What each competitor measured, or `failed`: why it did not, in one line."""
    results: dict[str, dict] = {}
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        began_s = time.monotonic()
        ready = {}
        for name, command in commands.items():
            ready[name] = Competitor(command, folder / name)
            cleanup.callback(ready[name].end)
        for name in commands:
            try:
                ready[name].prepare(began_s + prepare_s)
                _say(f"{name}: ready after {time.monotonic() - began_s:.0f} s")
            except Failed as failure:
                results[name] = {"failed": str(failure)}
                # It must not go on compiling beside those that measure.
                ready.pop(name).end()
        for name, competitor in ready.items():
            try:
                results[name] = competitor.measure(measure_s)
            except Failed as failure:
                results[name] = {"failed": str(failure)}
            # Its memory and its work must not be in the way of the next.
            competitor.end()
            _say(f"{name}: {_in_words(results[name])}")
    return {name: results[name] for name in commands}


def speedups(results: Mapping[str, dict]) -> dict[str, float | None]:
    """How many times a peer's pass, from the call until the device is done, takes the engine's (medians).

    A peer that failed is not beaten: None stands for it, and the best is of those that ran.
    """

    def wall_ms(name: str) -> float | None:
        result = results.get(name, {})
        return None if "failed" in result else result.get("wall_ms", {}).get("p50")

    own = wall_ms("own")
    peers = ("hf_eager", "hf_compile", "static_graph", "static_compile")
    ratios = {name: round(ms / own, 3) for name in peers if own and (ms := wall_ms(name))}
    return {
        "speedup_hf_eager": ratios.get("hf_eager"),
        "speedup_torch_compile": ratios.get("hf_compile"),
        "speedup_best_peer": min(ratios.values(), default=None),
    }


def _in_words(result: dict) -> str:
    if "failed" in result:
        return f"not counted: {result['failed']}"
    wall = result["wall_ms"]
    return (
        f"{wall['p50']:.2f} ms at p50, {wall['p99']:.2f} at p99, {wall['max']:.2f} at most, n = {wall['n']}"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b", choices=sorted(PRESETS))
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--only", nargs="+", choices=COMPETITORS, default=list(COMPETITORS))
    options = parser.parse_args()
    output.prepare(options.json)
    arguments = ["--model", options.model, "--slots", str(options.slots)]
    commands = {
        name: [sys.executable, "-m", "vla_edge_ros.engine.cuda.peers", name, *arguments]
        for name in options.only
    }
    results = compare(commands)
    document = {
        "model": options.model,
        "n_slots": options.slots,
        "n_context": full_context(options.slots),
        **speedups(results),
        "bf16_tflops": results.get("bf16_product", {}).get("bf16_tflops"),
        "competitors": {
            name: {"what": " ".join(COMPETITORS[name].__doc__.split()), **result}
            for name, result in results.items()
        },
    }
    output.write_text(options.json, json.dumps(document, indent=1) + "\n")
    return 0 if results.get("own", {}).get("wall_ms") else 1


if __name__ == "__main__":
    sys.exit(main())
