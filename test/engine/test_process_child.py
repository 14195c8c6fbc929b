"""What the engine's process does with an engine that misbehaves, without starting one."""

import numpy as np
import pytest

from vla_edge_ros.engine.child import info_from_json, info_to_json, serve
from vla_edge_ros.engine.interface import EngineError, EngineInfo, PromptWork, WorkResult, WorkStatus
from vla_edge_ros.engine.mailbox import Close, Mailbox, Order, connected_pair

SLOTS = np.arange(4, dtype=np.int32)


class ScriptedEngine:
    """Raises `error` where told to; else answers the second time it is waited for."""

    def __init__(self, error=None, raises_in="wait"):
        self.error = error
        self.raises_in = raises_in
        self.evicted = []
        self.is_closed = False
        self.work = None
        self.waits = 0

    def submit(self, work):
        self.work = work

    def wait(self, until_ns):
        self.waits += 1
        if self.error and self.raises_in == "wait":
            raise self.error
        return WorkResult(self.work.work_id, WorkStatus.DONE) if self.waits % 2 == 0 else None

    def evict(self, slots):
        if self.error and self.raises_in == "evict":
            raise self.error
        self.evicted.append((self.work and self.work.work_id, slots.tolist()))

    def stash(self, place, slots):
        self.evicted.append(("stash", place, slots.tolist()))

    def restore(self, place, slots):
        self.evicted.append(("restore", place, slots.tolist()))

    def close(self):
        self.is_closed = True


@pytest.fixture
def ends():
    boxes = [Mailbox(end, n_slots=64) for end in connected_pair()]
    yield boxes
    for box in boxes:
        box.close()


def test_blocks_go_to_the_ring_before_slots_are_forgotten_and_come_back_afterwards(ends):
    parent, child = ends
    engine = ScriptedEngine()
    blocks = np.arange(99, dtype=np.int32).reshape(3, 33)
    parent.send(Order(PromptWork(1, SLOTS, SLOTS), SLOTS[1:3], blocks[:2], blocks[2:]))
    parent.send(Close())
    assert serve(child, engine) == 0
    first, second, third = ([*range(33 * n + 1, 33 * n + 33)] for n in range(3))
    moves = [("stash", 0, first), ("stash", 33, second), (None, [1, 2]), ("restore", 66, third)]
    assert engine.evicted == moves


def test_work_and_evictions_are_served_in_order_until_closed(ends):
    parent, child = ends
    engine = ScriptedEngine()
    first, second = (PromptWork(n, SLOTS, SLOTS) for n in (1, 2))
    for message in (Order(first), Order(second, SLOTS[1:3]), Close()):
        parent.send(message)
    assert serve(child, engine) == 0
    assert [parent.receive(None).work_id for _ in range(2)] == [1, 2]
    assert engine.evicted == [(1, [1, 2])], "after the first work, before the second"
    assert engine.is_closed


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first line\nsecond line"), "ValueError: first line second line"),
        (EngineError("weights are gone"), "weights are gone"),
        (MemoryError(), "MemoryError: "),
        (RuntimeError("x" * 5000), "RuntimeError: " + "x" * 486),
    ],
)
def test_an_exception_in_a_pass_is_one_line_of_failure_and_the_end(ends, capsys, error, line):
    parent, child = ends
    parent.send(Order(PromptWork(9, SLOTS, SLOTS)))
    assert serve(child, ScriptedEngine(error)) == 1
    result = parent.receive(None)
    assert (result.work_id, result.status, result.error) == (9, WorkStatus.FAILED, line)
    assert "Traceback" in capsys.readouterr().err


def test_an_exception_in_an_eviction_is_a_failure_too(ends):
    parent, child = ends
    parent.send(Order(PromptWork(9, SLOTS, SLOTS), SLOTS))
    assert serve(child, ScriptedEngine(IndexError("slot 99"), raises_in="evict")) == 1
    result = parent.receive(None)
    assert (result.work_id, result.status, result.error) == (9, WorkStatus.FAILED, "IndexError: slot 99")


def test_engine_information_survives_json():
    info = EngineInfo("numpy", "tiny-s0", 512, 192, {"weights": 3, "kv": 4}, ("a", "b"))
    assert info_from_json(info_to_json(info)) == info
