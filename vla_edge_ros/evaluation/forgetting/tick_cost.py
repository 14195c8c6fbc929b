"""What forgetting adds to a tick on the control thread.

    python -m vla_edge_ros.evaluation.forgetting.tick_cost [--ticks 10000]

Processor time of `make_room` and `retain` in a full memory of 127 frames, every tick evicting one, beside a
tick between strides, which does neither. Before each tick memory the size of a core's caches is swept, as a
pass does.
"""

import argparse
import sys
import time

import numpy as np

from vla_edge_ros.arguments import whole
from vla_edge_ros.figures import percentiles
from vla_edge_ros.memory.benchmark import CAPACITY, FULL_EMBEDDING, N_SLOTS, PROMPT_TOKENS
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import POLICIES, make_policy
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.memory.slots import MAX_ACTION_TOKENS
from vla_edge_ros.perception.frame import FrameMeta

_PERIOD_NS = 33_333_333
_SWEPT_VALUES = 1 << 20
"""Of four bytes: what lies in a core's own caches is gone then."""


def tick_cost_us(policy: str, n_ticks: int, evicts: bool = True) -> dict:
    """Percentiles of the microseconds that a tick spends on memory, reading the clock among them.

    evicts: False measures ticks between strides, which use the block that is set aside.
    """
    random = np.random.default_rng(0)
    memory = FrameMemory(
        N_SLOTS, MAX_ACTION_TOKENS, make_policy(policy, CAPACITY), embedding_size=FULL_EMBEDDING
    )
    memory.set_prompt(PROMPT_TOKENS)
    embeddings = random.standard_normal((256, FULL_EMBEDDING)).astype(np.float32)
    attention = random.random(CAPACITY).astype(np.float32)
    swept = np.zeros(_SWEPT_VALUES, np.float32)
    times_us = []
    for tick in range(1, CAPACITY + n_ticks + 1):
        if tick > CAPACITY and not evicts:
            memory.stride_ticks = CAPACITY + n_ticks + 1
        # A frame that has to go is gone before the pass tells what was attended to.
        n_before = min(tick - 1, CAPACITY - 1)
        signals = PassSignals(attention[:n_before], attention[:n_before], float(attention[n_before]))
        at_ns = tick * _PERIOD_NS
        meta = FrameMeta(tick, at_ns, at_ns, at_ns)
        swept += 1
        begun_ns = time.thread_time_ns()
        memory.make_room(tick)
        memory.retain(meta, embeddings[tick % len(embeddings)], tick, signals)
        if tick > CAPACITY:
            times_us.append((time.thread_time_ns() - begun_ns) / 1e3)
    return percentiles(times_us)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vla_edge_ros.evaluation.forgetting.tick_cost", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--ticks", type=whole(1), default=10_000, help="of each policy (default: 10000)")
    parser.add_argument("--policy", choices=POLICIES, action="append", help="only these (default: all)")
    args = parser.parse_args(argv)
    idle = tick_cost_us("fifo", args.ticks, evicts=False)
    for name, us in [
        ("between strides", idle),
        *((name, tick_cost_us(name, args.ticks)) for name in args.policy or POLICIES),
    ]:
        print(
            f"{name:22} us a tick: p50 {us['p50']:6.1f}   p99 {us['p99']:6.1f}   p99.9 {us['p999']:6.1f}"
            f"   max {us['max']:7.1f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
