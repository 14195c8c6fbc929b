from vla_edge_ros.evaluation.forgetting import tick_cost
from vla_edge_ros.memory.policies import POLICIES


def test_every_policy_is_measured_beside_ticks_that_forget_nothing(capsys):
    assert tick_cost.main(["--ticks", "3"]) == 0
    names = [line.split(" us a tick")[0].strip() for line in capsys.readouterr().out.splitlines()]
    assert names == ["between strides", *POLICIES]


def test_one_figure_a_tick_of_a_memory_that_is_full(monkeypatch):
    evicted = []
    make_room = tick_cost.FrameMemory.make_room

    def counted(memory, tick):
        evicted.extend(make_room(memory, tick))
        return evicted

    monkeypatch.setattr(tick_cost.FrameMemory, "make_room", counted)
    assert tick_cost.tick_cost_us("fifo", 5)["n"] == 5
    assert len(evicted) == 5
    evicted.clear()
    assert tick_cost.tick_cost_us("fifo", 5, evicts=False)["n"] == 5
    # The first tick measured finds no block set aside; those after it use its block.
    assert len(evicted) == 1
