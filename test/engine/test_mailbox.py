"""Records between the control process and the engine's: exact, bounded, and never waited for in vain."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from vla_edge_ros.engine.interface import FrameWork, PromptWork, StageTimes, WorkResult, WorkStatus
from vla_edge_ros.engine.mailbox import (
    MAX_STEPS,
    Close,
    Kind,
    Mailbox,
    MailboxClosed,
    MailboxFull,
    Order,
    Text,
    connected_pair,
)
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.perception.frame import FrameMeta

N_SLOTS = 4096
LONG_PAST_NS = 0

work_ids = st.integers(0, 2**64 - 1)
times_ns = st.integers(0, 2**63 - 1)
slots = npst.arrays(np.int32, st.integers(0, 300), elements=st.integers(-(2**31), 2**31 - 1))
floats = st.floats(width=32, allow_nan=False)
stage_times = st.builds(StageTimes, times_ns, times_ns, times_ns, times_ns)


@st.composite
def signals(draw):
    attention = npst.arrays(np.float32, draw(st.integers(0, 127)), elements=floats)
    return PassSignals(draw(attention), draw(attention), draw(floats))


@st.composite
def results(draw):
    shape = (draw(st.integers(1, MAX_STEPS)), draw(st.integers(1, 8)))

    def optional(array):
        return draw(st.none() | array)

    tokens = optional(npst.arrays(np.int32, shape, elements=st.integers(0, 2**31 - 1)))
    has_tokens = tokens is not None
    return WorkResult(
        work_id=draw(work_ids),
        status=draw(st.sampled_from(WorkStatus)),
        error=draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=200)),
        frame=draw(st.none() | st.builds(FrameMeta, st.integers(1, 2**63 - 1), times_ns, times_ns, times_ns)),
        tokens=tokens,
        top_probability=optional(npst.arrays(np.float32, shape, elements=floats)) if has_tokens else None,
        entropy=optional(npst.arrays(np.float32, shape, elements=floats)) if has_tokens else None,
        embedding=optional(npst.arrays(np.float32, st.integers(0, 64), elements=floats)),
        signals=draw(st.none() | signals()),
        stages=draw(stage_times),
        steps_done=draw(st.integers(0, 8)),
        remaining=draw(stage_times),
        started_ns=draw(times_ns),
        finished_ns=draw(times_ns),
    )


moves = npst.arrays(np.int32, st.tuples(st.integers(0, 3), st.just(33)), elements=st.integers(0, 2**31 - 1))
prompts = st.builds(PromptWork, work_ids, *[st.shared(slots, key="prompt")] * 2, slots)
messages = st.one_of(
    st.builds(
        Order,
        prompts | st.builds(FrameWork, work_ids, slots, slots, slots, times_ns, st.integers(0, N_SLOTS)),
        slots,
        moves,
        moves,
    ),
    st.builds(Order, prompts),
    st.builds(Close),
    st.builds(Text, st.sampled_from([Kind.SPEC, Kind.INFO, Kind.ERROR]), st.text(max_size=500)),
    results(),
)


def assert_same(got, sent):
    assert type(got) is type(sent)
    for field in dataclasses.fields(sent):
        a, b = getattr(got, field.name), getattr(sent, field.name)
        if isinstance(b, PassSignals | PromptWork | FrameWork):
            assert_same(a, b)
        elif isinstance(b, np.ndarray):
            assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes(), field.name
        else:
            assert a == b, field.name


@pytest.fixture
def pair():
    boxes = [Mailbox(end, N_SLOTS) for end in connected_pair()]
    yield boxes
    for box in boxes:
        box.close()


@pytest.fixture(scope="module")
def module_pair():
    boxes = [Mailbox(end, N_SLOTS) for end in connected_pair()]
    yield boxes
    for box in boxes:
        box.close()


@given(sent=st.lists(messages, min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_every_message_arrives_whole_in_order_and_equal(module_pair, sent):
    here, there = module_pair
    for message in sent:
        here.send(message)
    for message in sent:
        assert_same(there.receive(None), message)
    assert there.receive(LONG_PAST_NS) is None


def test_the_largest_work_of_a_cache_fits(pair):
    here, there = pair
    everything = np.arange(N_SLOTS, dtype=np.int32)
    for work in (
        PromptWork(1, everything, everything),
        PromptWork(1, everything[:1], everything[:1], everything[1:]),
        FrameWork(2, everything, everything[:32], everything[:8]),
    ):
        every_block_goes = np.zeros((N_SLOTS // 32, 33), np.int32)
        order = Order(work, everything, every_block_goes, every_block_goes[:1])
        here.send(order)
        assert_same(there.receive(None), order)


def test_the_largest_result_fits(pair):
    here, there = pair
    tokens = np.full((MAX_STEPS, 8), 151_935, np.int32)
    ones = np.ones(tokens.shape, np.float32)
    embedding = np.arange(8192, dtype=np.float32)
    result = WorkResult(1, WorkStatus.DONE, "x" * 500, None, tokens, ones, ones, embedding)
    here.send(result)
    assert_same(there.receive(None), result)


@pytest.mark.parametrize(
    "message",
    [
        Order(PromptWork(1, *[np.zeros(N_SLOTS, np.int32)] * 2), np.zeros(N_SLOTS + 10_000, np.int32)),
        Text(Kind.ERROR, "x" * 100_000),
        WorkResult(1, WorkStatus.DONE, tokens=np.zeros((MAX_STEPS + 1, 7), np.int32)),
        WorkResult(1, WorkStatus.DONE, tokens=np.zeros((1, 9), np.int32)),
        WorkResult(
            1, WorkStatus.DONE, tokens=np.zeros((2, 7), np.int32), entropy=np.zeros((1, 7), np.float32)
        ),
    ],
    ids=["slots", "text", "steps", "action tokens", "entropy of another shape"],
)
def test_what_does_not_fit_is_refused_and_nothing_is_sent(pair, message):
    here, there = pair
    with pytest.raises(ValueError):
        here.send(message)
    assert there.receive(LONG_PAST_NS) is None


def test_more_slots_than_a_kernel_record_can_hold_are_refused_at_once():
    ends = connected_pair()
    with pytest.raises(ValueError, match="wmem_max"):
        Mailbox(ends[0], n_slots=2**22)
    for end in ends:
        end.close()


def test_receive_waits_to_its_bound_and_no_longer_than_for_a_record(pair):
    here, there = pair
    until_ns = time.monotonic_ns() + 5_000_000
    assert there.receive(until_ns) is None
    assert time.monotonic_ns() >= until_ns
    here.send(Close())
    far_ns = time.monotonic_ns() + 3_600_000_000_000
    assert there.receive(far_ns) == Close()


def test_send_never_waits_for_a_peer_that_does_not_read_and_its_memory_is_bounded(pair):
    here, _ = pair
    n_sent = 0
    with pytest.raises(MailboxFull):
        while n_sent < 10_000:
            here.send(Order(PromptWork(1, *[np.zeros(N_SLOTS, np.int32)] * 2)))
            n_sent += 1
    assert 0 < n_sent < 1000


def test_the_end_of_the_peer_ends_a_wait_and_fails_a_send(pair):
    here, there = pair
    there.close()
    with pytest.raises(MailboxClosed):
        here.receive(None)
    with pytest.raises(MailboxClosed):
        here.send(Close())


def test_the_last_words_of_a_peer_that_dies_with_records_unread_are_still_heard(pair):
    here, there = pair
    here.send(Order(PromptWork(1, *[np.zeros(3, np.int32)] * 2)))
    there.send(Text(Kind.ERROR, "out of memory"))
    there.close()
    assert here.receive(None) == Text(Kind.ERROR, "out of memory")
    with pytest.raises(MailboxClosed):
        here.receive(None)


def test_received_arrays_are_views_on_one_buffer(pair):
    here, there = pair
    received = []
    for value in (1.0, 2.0):
        here.send(WorkResult(1, WorkStatus.DONE, embedding=np.full(8, value, np.float32)))
        received.append(there.receive(None).embedding)
    assert np.shares_memory(*received)
