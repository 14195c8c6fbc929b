import numpy as np
import pytest

from vla_edge_ros.memory.benchmark import endure, eviction_cost_us
from vla_edge_ros.memory.policies import POLICIES
from vla_edge_ros.memory.slots import SlotPool


@pytest.mark.parametrize("name", POLICIES)
def test_two_thousand_inserts_leave_memory_as_plain_bookkeeping_has_it(name):
    assert endure(name, 2000, compared=100) == []


def test_a_slot_that_is_handed_out_twice_is_found(monkeypatch):
    monkeypatch.setattr(SlotPool, "take", lambda self, out: np.copyto(out, np.arange(len(out))) or out)
    assert any("two uses" in line for line in endure("fifo", 20, compared=20))


def test_the_cost_is_that_of_every_call_at_a_full_memory():
    cost = eviction_cost_us("novelty", 32, n_frames=20)
    assert list(cost) == ["choose", "forget", "observe"]
    assert all(figures["n"] == 20 and figures["p50"] > 0 for figures in cost.values())
