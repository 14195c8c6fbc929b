"""The engine's process as it is, with faults that a signal brings about: `fault_edge_node` starts it.

They happen inside a pass, where the engine's own thread, context and weights are: no other process can reach
them.
"""

import signal
import sys
import time
from collections.abc import Callable

from vla_edge_ros.engine import child
from vla_edge_ros.engine.interface import Engine, EngineSpec, FrameWork
from vla_edge_ros.perception.frame_buffer import FrameBuffer

SLOW_ONCE, SLOW, USUAL, NAN, CUDA = range(signal.SIGRTMIN, signal.SIGRTMIN + 5)
"""The next pass is slow; every pass until USUAL; a weight becomes NaN; an illegal address on the device."""

SLOWER, LEAST_NS = 10, 40_000_000

STORE_NOWHERE = """\
.version 7.0
.target sm_80
.address_size 64
.visible .entry store_nowhere()
{
    .reg .b64 %address;
    .reg .b32 %value;
    mov.u64 %address, 8;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
"""
"""PTX, so that no compiler is needed where it is used. Nothing lies at address 8."""


class Wanted:
    """The faults that have been asked for; signal handlers run on the main thread, between bytecodes."""

    def __init__(self) -> None:
        self._is_slow = False
        self._next: set[int] = set()
        for number in (SLOW_ONCE, SLOW, USUAL, NAN, CUDA):
            signal.signal(number, self._on_signal)

    def take(self, number: int) -> bool:
        """Whether the pass that begins is to have this fault."""
        if number in self._next:
            self._next.discard(number)
            return True
        return number == SLOW_ONCE and self._is_slow

    def _on_signal(self, number: int, frame: object) -> None:
        if number in (SLOW, USUAL):
            self._is_slow = number == SLOW
        else:
            self._next.add(number)


def extra_ns(usual_ns: int) -> int:
    """What a slow stage takes beyond its usual time."""
    return max((SLOWER - 1) * usual_ns, LEAST_NS)


def plant_in_fake(engine, wanted: Wanted) -> None:
    """Its passes have no stages but in their report: all of a pass is slow."""
    submit = engine.submit

    def submit_planted(work) -> None:
        usual_ns = engine._service_ns
        if isinstance(work, FrameWork) and wanted.take(SLOW_ONCE):
            engine._service_ns += extra_ns(usual_ns)
        try:
            submit(work)
        finally:
            engine._service_ns = usual_ns

    engine.submit = submit_planted


def plant_in_numpy(engine, wanted: Wanted) -> None:
    """Decoding is slow, step by step, so that the engine sees it between two steps as it would any other."""
    run_pass, decode = engine._run_pass, engine._decode
    is_slow = False

    def run_pass_planted(work, result, countdown) -> None:
        nonlocal is_slow
        is_slow = wanted.take(SLOW_ONCE)
        if wanted.take(NAN):
            engine.decoder.weights["down"].flat[0] = float("nan")
        run_pass(work, result, countdown)

    def decode_planted(step, slots, result, layer_ended) -> None:
        began_ns = time.monotonic_ns()
        decode(step, slots, result, layer_ended)
        if is_slow:
            # A seventh of LEAST_NS for seven action tokens.
            usual_ns = time.monotonic_ns() - began_ns
            time.sleep(max((SLOWER - 1) * usual_ns, LEAST_NS // len(result.tokens[0])) / 1e9)

    engine._run_pass, engine._decode = run_pass_planted, decode_planted


def plant_in_cuda(engine, wanted: Wanted) -> None:
    """Reading the picture is slow: the pass is launched late, at its deadline at the latest."""
    launch, tell = engine._launch, engine._tell
    began_ns = usual_ns = 0
    is_slow = False

    def launch_planted(work) -> None:
        nonlocal began_ns, is_slow
        began_ns = time.monotonic_ns()
        if wanted.take(NAN):
            # Four bytes 0xFF are a NaN: the first gain of the first layer.
            decoder = engine._decoder
            decoder.device.fill(decoder.arena["norms"], 0xFF, 4)
            decoder.device.synchronize()
        if wanted.take(CUDA):
            store_nowhere(engine._decoder)
        is_slow = wanted.take(SLOW_ONCE)
        if is_slow:
            wait_ns = extra_ns(usual_ns)
            if work.deadline_ns:
                wait_ns = min(wait_ns, max(0, work.deadline_ns - began_ns))
            time.sleep(wait_ns / 1e9)
        launch(work)

    def tell_planted(work, told) -> None:
        nonlocal usual_ns
        if not is_slow:
            usual_ns = time.monotonic_ns() - began_ns
        tell(work, told)

    engine._launch, engine._tell = launch_planted, tell_planted


def store_nowhere(decoder) -> None:
    """Launch the kernel in the stream of the passes; the next call that waits for it tells of the error."""
    from vla_edge_ros.engine.cuda.device import check

    driver = decoder.device.driver
    module = check(driver.cuModuleLoadData(STORE_NOWHERE.encode() + b"\0"))
    function = check(driver.cuModuleGetFunction(module, b"store_nowhere"))
    check(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, decoder.stream, 0, 0))


PLANTS: dict[str, Callable[[Engine, Wanted], None]] = {
    "FakeEngine": plant_in_fake,
    "NumpyEngine": plant_in_numpy,
    "CudaEngine": plant_in_cuda,
}
"""By the engine's class."""


def make_planted(spec: EngineSpec, frames: FrameBuffer, make=child.make_engine) -> Engine:
    """As `make_engine`, an engine that heeds the signals."""
    made = make(spec, frames)
    # Backend auto wraps an engine to add a note.
    engine = getattr(made, "_engine", made)
    PLANTS[type(engine).__name__](engine, Wanted())
    if made is not engine:
        made.submit = engine.submit
    return made


if __name__ == "__main__":
    child.make_engine = make_planted
    sys.exit(child.main())
