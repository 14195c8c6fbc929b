"""What is timed beside each other: the engine, and other implementations of the same nine forwards.

`python -m vla_edge_ros.engine.cuda.peers NAME` is the process of one of them, which `comparison` talks to.
Torch is imported by those that need it alone, and not by the engine's own process.
"""

import argparse
import json
import sys
from collections.abc import Callable

from vla_edge_ros.engine.cuda.benchmark import Bench, full_context
from vla_edge_ros.engine.cuda.device import Device
from vla_edge_ros.engine.interface import MAX_ACTION_TOKENS
from vla_edge_ros.engine.presets import PRESETS

OWN_PASSES = 500
FORWARDS = 1 + MAX_ACTION_TOKENS


class Own:
    """This package's engine."""

    def __init__(self, model: str, n_slots: int, n_context: int) -> None:
        self._bench = Bench(Device(), model, n_slots)
        self._n_context = n_context

    def measure(self) -> dict:
        timed = self._bench.passes(OWN_PASSES, self._n_context, is_evicting=True)
        return {"wall_ms": _in_ms(timed["host_pass_us"]), "device_ms": _in_ms(timed["pass_us"])}


class HuggingFaceEager:
    """transformers as it comes: eager, DynamicCache, SDPA."""

    def __init__(self, model: str, n_slots: int, n_context: int) -> None:
        from vla_edge_ros.engine.cuda import hugging_face_peers, peer_timing

        self._timing = peer_timing
        self._pass = hugging_face_peers.HuggingFaceEager(_scene(model, n_context))
        self._timing.warm_up(self._pass.run, self._pass.prepare)

    def measure(self) -> dict:
        timed = self._timing.time_passes(self._pass.run, self._pass.prepare)
        self._pass.prepare()
        return timed | {"action_rows": self._pass.run().tolist()}


class HuggingFaceCompiled(HuggingFaceEager):
    """transformers, StaticCache, torch.compile(mode="reduce-overhead") of the prefill and of the step."""

    def __init__(self, model: str, n_slots: int, n_context: int) -> None:
        from vla_edge_ros.engine.cuda import hugging_face_peers, peer_timing

        self._timing = peer_timing
        self._pass = hugging_face_peers.HuggingFaceCompiled(
            _scene(model, n_context), lambda function: _compiled(function, "reduce-overhead")
        )
        self._timing.warm_up(self._pass.run, self._pass.prepare)

    def measure(self) -> dict:
        from torch._dynamo.utils import counters

        skips = counters["inductor"]["cudagraph_skips"]
        found = super().measure() | {"cudagraph_skips": skips}
        try:
            found["graph_launches"] = self._timing.graph_launches(self._pass.run, self._pass.prepare)
        except RuntimeError as error:
            found["graph_launches_unknown"] = str(error)
        if skips or found.get("graph_launches", FORWARDS) < FORWARDS:
            found["failed"] = (
                f"not in its tuned form: {found.get('graph_launches')} CUDA graphs launched for "
                f"{FORWARDS} forwards, {skips} graphs skipped"
            )
        return found


class StaticGraph:
    """A plain torch forward, fused projections, static cache, 256-row head, in one CUDA graph."""

    def __init__(self, model: str, n_slots: int, n_context: int) -> None:
        from vla_edge_ros.engine.cuda import peer_timing
        from vla_edge_ros.engine.cuda.static_qwen2 import StaticQwen2

        self._timing = peer_timing
        self._model = StaticQwen2(_scene(model, n_context), self._wrap, peer_timing.seconds_in_graph)
        self._timing.warm_up(self._model.run)
        self._replay = self._timing.captured(self._model.run)
        self._timing.warm_up(self._replay)

    def _wrap(self, function: Callable) -> Callable:
        return function

    def measure(self) -> dict:
        return self._timing.time_passes(self._replay) | {
            "action_rows": self._model.run().tolist(),
            "attention": {str(n): name for n, name in self._model.attention.items()},
            "attention_us": {
                str(n): {name: round(1e6 * seconds, 1) for name, seconds in times.items()}
                for n, times in self._model.attention_seconds.items()
            },
        }


class StaticCompiled(StaticGraph):
    """The same with torch.compile(mode="max-autotune-no-cudagraphs") of a layer's halves and the head."""

    def _wrap(self, function: Callable) -> Callable:
        return _compiled(function, "max-autotune-no-cudagraphs")


class MatrixProduct:
    """An 8192 x 8192 x 8192 product in bf16 by cuBLAS: the rate beside which FLOPs are put."""

    SIZE = 8192

    def __init__(self, model: str, n_slots: int, n_context: int) -> None:
        import torch

        from vla_edge_ros.engine.cuda import peer_timing

        self._timing = peer_timing
        a, b = (torch.randn(self.SIZE, self.SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(a)
        self._run = lambda: torch.matmul(a, b, out=out)

    def measure(self) -> dict:
        self._timing.warm_up(self._run)
        timed = self._timing.time_passes(self._run)
        return timed | {"bf16_tflops": round(2 * self.SIZE**3 / timed["device_ms"]["p50"] / 1e9, 1)}


COMPETITORS = {
    "own": Own,
    "hf_eager": HuggingFaceEager,
    "hf_compile": HuggingFaceCompiled,
    "static_graph": StaticGraph,
    "static_compile": StaticCompiled,
    "bf16_product": MatrixProduct,
}


def _scene(model: str, n_context: int):
    import torch

    from vla_edge_ros.engine.cuda.peer_scene import make_scene

    return make_scene(PRESETS[model], n_context, "cuda", torch.bfloat16)


def _compiled(function: Callable, mode: str) -> Callable:
    import torch

    return torch.compile(function, mode=mode, fullgraph=True, dynamic=False)


def _in_ms(figures_us: dict) -> dict:
    return {name: value if name == "n" else value / 1e3 for name, value in figures_us.items()}


def main() -> None:
    """A line when ready, and the figures once a line comes in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=COMPETITORS)
    parser.add_argument("--model", choices=sorted(PRESETS), required=True)
    parser.add_argument("--slots", type=int, required=True)
    options = parser.parse_args()
    competitor = COMPETITORS[options.name](options.model, options.slots, full_context(options.slots))
    print(json.dumps({"ready": options.name}), flush=True)
    if sys.stdin.readline():
        print(json.dumps({"measured": competitor.measure()}), flush=True)


if __name__ == "__main__":
    main()
