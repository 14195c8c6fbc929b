"""What forgetting costs on the control thread, and whether memory stays what it is for ever.

    python -m vla_edge_ros.memory.benchmark                  # processor time of every policy at 127 frames
    python -m vla_edge_ros.memory.benchmark --inserts 1000000 --policy random

The second inserts frames and compares memory with plain bookkeeping at 1,000 of them. Both end with exit code
1 where what must hold does not.
"""

import argparse
import resource
import sys
import time

import numpy as np

from vla_edge_ros.arguments import whole
from vla_edge_ros.figures import percentiles
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import POLICIES, make_policy
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.memory.slots import FRAME_TOKENS, MAX_ACTION_TOKENS
from vla_edge_ros.perception.frame import FrameMeta

CAPACITY = 127
N_SLOTS = 4096
PROMPT_TOKENS = N_SLOTS - CAPACITY * FRAME_TOKENS - MAX_ACTION_TOKENS
FULL_EMBEDDING = 1536
"""Values of a pooled embedding of `qwen2.5-coder-1.5b`."""

MUST_US = 100.0
N_COMPARED = 1000
_PERIOD_NS = 33_333_333


def eviction_cost_us(name: str, embedding_size: int, n_frames: int = 3000, seed: int = 0) -> dict:
    """Microseconds of a policy's calls at 127 frames: {choose, forget, observe: {p50, p99, max, ...}}.

    Processor time, with about one microsecond of reading it: what other processes take is not the policy's.
    """
    random = np.random.default_rng(seed)
    policy = make_policy(name, window_frames=CAPACITY, seed=seed)
    policy.prepare(CAPACITY, embedding_size)
    embeddings = random.standard_normal((256, embedding_size)).astype(np.float32)
    attention = random.random(CAPACITY).astype(np.float32)
    times_us: dict[str, list[float]] = {"choose": [], "forget": [], "observe": []}
    for index in range(1, CAPACITY + n_frames + 1):
        n_before = min(index - 1, CAPACITY - 1)
        signals = PassSignals(attention[:n_before], attention[:n_before], float(attention[n_before]))
        begun_ns = time.thread_time_ns()
        if index > CAPACITY:
            victim = policy.choose_victim(CAPACITY, is_full=True)
            chosen_ns = time.thread_time_ns()
            policy.forget(victim.place)
            forgotten_ns = time.thread_time_ns()
            times_us["choose"].append((chosen_ns - begun_ns) / 1e3)
            times_us["forget"].append((forgotten_ns - chosen_ns) / 1e3)
            begun_ns = forgotten_ns
        policy.observe(_meta(index), embeddings[index % len(embeddings)], signals)
        if index > CAPACITY:
            times_us["observe"].append((time.thread_time_ns() - begun_ns) / 1e3)
    return {call: percentiles(values) for call, values in times_us.items()}


def endure(name: str, inserts: int, compared: int = N_COMPARED, seed: int = 0) -> list[str]:
    """Insert frames into a full-size memory; returns what was wrong, in lines, and nothing if all is well.

    At `compared` inserts, evenly spread, the slots in rank order are compared with plain bookkeeping, no slot
    may have two uses and every position of the next pass must lie below the number of slots.
    """
    memory = FrameMemory(N_SLOTS, MAX_ACTION_TOKENS, make_policy(name, CAPACITY, seed), embedding_size=64)
    prompt = memory.set_prompt(PROMPT_TOKENS).tolist()
    embeddings = np.random.default_rng(seed).standard_normal((997, 64)).astype(np.float32)
    blocks: dict[int, list[int]] = {}
    wrong: list[str] = []
    settled_kb = 0
    every = max(1, inserts // compared)
    for index in range(1, inserts + 1):
        for line in memory.make_room(index):
            if blocks.pop(line.frame.index) != line.slots.tolist():
                wrong.append(
                    f"insert {index}: frame {line.frame.index} gave back slots that were not its own"
                )
        blocks[index] = memory.frame_slots.tolist()
        memory.retain(_meta(index), embeddings[index % len(embeddings)], index)
        if index % every == 0:
            slots = memory.context_slots().tolist()
            used = slots + memory.action_slots.tolist()
            if slots != prompt + [slot for block in blocks.values() for slot in block]:
                wrong.append(f"insert {index}: the slots in rank order are not those that were handed out")
            if (
                len(set(used)) != len(used)
                or len(used) > N_SLOTS
                or not 0 <= min(used) <= max(used) < N_SLOTS
            ):
                wrong.append(f"insert {index}: a slot has two uses, or a position lies beyond {N_SLOTS - 1}")
        if index == inserts // 2:
            settled_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - settled_kb
    if grown_kb > 1024:
        wrong.append(f"resident memory grew by {grown_kb} kB in the second half")
    return wrong


def _meta(index: int) -> FrameMeta:
    at_ns = index * _PERIOD_NS
    return FrameMeta(index, at_ns, at_ns, at_ns)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m vla_edge_ros.memory.benchmark")
    parser.add_argument("--policy", choices=POLICIES, action="append", help="only these (default: all)")
    parser.add_argument("--inserts", type=whole(1), help="insert this many frames instead of measuring")
    parser.add_argument(
        "--embedding-size", type=whole(1), default=FULL_EMBEDDING, help="values (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    is_right = True
    for name in args.policy or POLICIES:
        if args.inserts is not None:
            wrong = endure(name, args.inserts)
            print(
                f"{name:20} {args.inserts} inserts: {'; '.join(wrong[:3]) or 'as it should be'}", flush=True
            )
            is_right &= not wrong
            continue
        cost = eviction_cost_us(name, args.embedding_size)
        calls = "   ".join(f"{call} {us['p50']:6.1f} {us['p99']:6.1f}" for call, us in cost.items())
        print(f"{name:20} us p50, p99:   {calls}", flush=True)
        is_right &= cost["choose"]["p99"] < MUST_US
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
