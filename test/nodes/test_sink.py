"""What is published of a tick, and when, without a node around it."""

from collections import defaultdict
from types import SimpleNamespace

import pytest

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.promise import Promise
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.nodes.sink import MOST_UNSENT, RosSink


@pytest.fixture
def sent():
    """The figures that were published, by topic."""
    return defaultdict(list)


@pytest.fixture
def end_tick(sent):
    """Ends a tick of this number and decision; its `sink` sends the telemetry."""

    def create_publisher(kind, topic, depth):
        return SimpleNamespace(publish=lambda message: sent[topic].append(message.data))

    promise = Promise()
    node = SimpleNamespace(create_publisher=create_publisher, get_fully_qualified_name=lambda: "/node")
    sink = RosSink(node, (), None, promise, "")

    def end_tick(tick, decision=Decision.HOLD_BUSY):
        record = TickRecord(tick, 0, 0, 0, decision, retained_frames=tick)
        promise.count(record, 0.001)
        sink.finished(record)

    end_tick.sink = sink
    return end_tick


def test_the_tick_thread_leaves_telemetry_to_another(end_tick, sent):
    end_tick(0)
    assert not sent
    end_tick.sink.send_telemetry()
    assert sent["~/telemetry/retained_frames"] == [0.0]


def test_ticks_that_wait_are_sent_in_order_each_with_the_rates_of_its_own_time(end_tick, sent):
    for tick, decision in enumerate([Decision.FRESH, Decision.HOLD_BUSY, Decision.HOLD_BUSY, Decision.FRESH]):
        end_tick(tick, decision)
    end_tick.sink.send_telemetry()
    end_tick.sink.send_telemetry()
    assert sent["~/telemetry/retained_frames"] == [0.0, 1.0, 2.0, 3.0]
    assert sent["~/telemetry/hold_streak"] == [0.0, 1.0, 2.0, 0.0]
    assert sent["~/telemetry/goodput"] == [1.0, 1 / 2, 1 / 3, 1 / 2]


def test_an_executor_that_hangs_costs_bounded_memory(end_tick, sent):
    for tick in range(MOST_UNSENT + 5):
        end_tick(tick)
    end_tick.sink.send_telemetry()
    assert sent["~/telemetry/retained_frames"] == [float(5 + i) for i in range(MOST_UNSENT)]
