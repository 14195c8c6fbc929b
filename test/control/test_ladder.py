"""Where a whole pass does not fit the least is given up that is enough, and nothing that does not fit."""

import math

import numpy as np
import pytest
from control_rig import MS, Rig
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.actions.reading import PolicyError
from vla_edge_ros.control.admission import Admission, AdmissionConfig
from vla_edge_ros.control.events import Enable, ResetMemory
from vla_edge_ros.control.ladder import NO_STEPS, LadderConfig, Step, choose, most_to_forget, most_to_hold
from vla_edge_ros.control.miss_account import most_misses
from vla_edge_ros.control.reuse import Reuse
from vla_edge_ros.control.settings import ladder_config, picture_log, policy_of
from vla_edge_ros.control.work import TO_FIT
from vla_edge_ros.engine.interface import FRAME_TOKENS, StageTimes
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.perception.frame_log import FrameLog
from vla_edge_ros.perception.picture import CELLS_SHAPE, is_unchanged, picture_cells

BUDGET = 31 * MS
LADDER = LadderConfig(forget_frames=4, least_frames=8)

# The ladder itself


@settings(deadline=None, max_examples=200)
@given(
    needed=st.integers(-3, 140),
    most=st.integers(0, 127),
    can_reuse=st.booleans(),
    is_affine=st.booleans(),
)
def test_the_cheapest_step_that_is_enough_is_taken_and_none_that_is_not(needed, most, can_reuse, is_affine):
    asked = []

    def lacks_ns(step, n):
        asked.append(n)
        return needed - n if is_affine else -1000 if n >= needed else 1

    step, n_forgotten = choose({Step.FEWER_FRAMES: most}, lacks_ns, lambda: can_reuse)
    if needed <= 0:
        assert (step, n_forgotten) == (Step.FULL, 0)
    elif needed <= most:
        assert (step, n_forgotten) == (Step.FEWER_FRAMES, needed)
    else:
        assert (step, n_forgotten) == (Step.REUSE if can_reuse else Step.HOLD, 0)
    assert len(asked) <= 2 + (2 if is_affine else 3 * math.ceil(math.log2(max(1, most))))


@given(
    forget=st.integers(0, 127), least=st.integers(1, 127), n=st.integers(0, 127), refused=st.integers(0, 50)
)
def test_as_many_frames_stay_as_are_to_stay_and_a_hiccup_costs_no_more_than_stated(forget, least, n, refused):
    most = most_to_forget(LadderConfig(forget, least), n, refused)
    assert 0 <= most <= forget * (1 + refused)
    assert n - most >= min(n, least)


# In admission


def a_pass(total_ns: float) -> tuple[StageTimes, int]:
    total = round(total_ns)
    return StageTimes(total // 50, total // 20, total // 4, total // 2), total


class Machine:
    """Passes of `base` + `slope` x frames ms, over a memory that grows with each one that ends in time."""

    def __init__(self, ladder: LadderConfig, target: float = 0.01, capacity: int = 40) -> None:
        self.gate = Admission(AdmissionConfig(0.2, 0.9, 8, "conformal", target), ladder)
        self.capacity = capacity
        self.frames = 0

    def tick(self, base: float, slope: float):
        verdict = self.gate.ask(0, BUDGET, 20 + FRAME_TOKENS * self.frames, self.frames)
        outcome = "R"
        if verdict.is_admitted:
            self.frames -= verdict.forgets_frames
            service = (base + slope * self.frames) * MS
            outcome = "F" if service <= BUDGET else "M"
            self.gate.observe(*a_pass(service))
            self.frames = min(self.capacity, self.frames + (outcome == "F"))
        self.gate.settle(outcome == "M")
        return outcome, verdict

    def run(self, base: float, slope: float, n: int):
        ticks = [self.tick(base, slope) for _ in range(n)]
        return "".join(outcome for outcome, _ in ticks), [verdict for _, verdict in ticks]


def test_a_machine_that_becomes_slower_goes_on_over_fewer_frames_and_gets_them_back():
    machine = Machine(LADDER)
    assert machine.run(10.0, 0.25, 80)[0] == "F" * 80
    slower, verdicts = machine.run(18.0, 0.4, 60)
    assert "F" * 30 in slower
    assert any(verdict.step is Step.FEWER_FRAMES for verdict in verdicts)
    assert 8 <= machine.frames < 35
    assert machine.run(10.0, 0.25, 60)[0][-40:] == "F" * 40
    assert machine.frames == 40


def test_without_the_ladder_the_same_machine_is_refused():
    machine = Machine(NO_STEPS)
    machine.run(10.0, 0.25, 80)
    slower, _ = machine.run(18.0, 0.4, 60)
    assert slower.count("F") == 0 and slower.count("R") > 40


def test_a_step_is_priced_and_fits_and_one_frame_more_would_not():
    machine = Machine(LADDER)
    machine.run(10.0, 0.25, 80)
    tight_ns = round(19.2 * MS)
    machine.gate.ask(0, MS, 20 + FRAME_TOKENS * 40, 40)  # one pass in a row refused: 8 frames may go
    verdict = machine.gate.ask(0, tight_ns, 20 + FRAME_TOKENS * 40, 40)
    assert verdict.step is Step.FEWER_FRAMES and verdict.is_admitted
    assert verdict.price_ns <= tight_ns < verdict.prices_ns["full"]
    assert verdict.prices_ns["fewer_frames"] == verdict.price_ns
    one_less = machine.gate._rule.judge(
        tight_ns,
        20 + FRAME_TOKENS * 40,
        0,
        machine.gate.config,
        FRAME_TOKENS * (verdict.forgets_frames - 1),
    )
    assert not one_less.is_admitted


def test_one_hiccup_forgets_nothing():
    for hiccup_at in range(20, 24):
        machine = Machine(LADDER)
        machine.run(10.0, 0.25, 50 + hiccup_at)
        assert machine.tick(80.0, 0.25)[0] == "M"
        _, verdicts = machine.run(10.0, 0.25, 50)
        assert not any(verdict.forgets_frames for verdict in verdicts)


def test_a_slow_spell_with_a_short_memory_does_not_teach_that_short_is_slow():
    machine = Machine(LADDER)
    machine.run(10.0, 0.25, 200)
    before = machine.gate._rule._model.predict(1300, 640)
    for _ in range(4):
        slow, _ = machine.run(18.0, 0.4, 60)
        assert "F" * 20 in slow
        machine.run(10.0, 0.25, 150)
    after = machine.gate._rule._model.predict(1300, 640)
    assert sum(after.values()) == pytest.approx(sum(before.values()), rel=0.05)


@pytest.mark.parametrize("how", ["forget", "memory_emptied"])
def test_a_memory_emptied_for_other_reasons_is_short_of_nothing_however_small_it_stays(how):
    machine = Machine(LADDER)
    machine.run(10.0, 0.25, 80)
    machine.run(18.0, 0.4, 40)
    assert machine.gate._is_shortened
    getattr(machine.gate, how)()
    machine.frames, machine.capacity = 0, 20
    machine.run(10.0, 0.25, 30)
    assert not machine.gate._is_shortened


@settings(deadline=None, max_examples=30)
@given(
    services=st.lists(
        st.tuples(st.floats(0.1, 60), st.floats(0, 1), st.integers(1, 60)), min_size=1, max_size=12
    ),
    target=st.sampled_from([0.05, 0.01]),
)
def test_the_bound_on_misses_holds_with_every_step_allowed(services, target):
    machine = Machine(LadderConfig(forget_frames=127, least_frames=1), target)
    ticks = "".join(machine.run(base, slope, n)[0] for base, slope, n in services)
    owed = 0.0
    for tick in ticks:
        owed = max(0.0, owed + (tick == "M") - target)
        assert owed <= most_misses(target)
    assert machine.frames >= 0


@settings(deadline=None, max_examples=20)
@given(services=st.lists(st.tuples(st.floats(0.1, 60), st.integers(1, 60)), min_size=1, max_size=8))
def test_where_memory_is_as_small_as_it_may_be_every_verdict_is_as_without_the_ladder(services):
    """The same ticks, with the same answers to the last nanosecond."""
    with_ladder, without = Machine(LADDER, capacity=8), Machine(NO_STEPS, capacity=8)
    for base, n in services:
        for _ in range(n):
            ours, theirs = with_ladder.tick(base, 0.2), without.tick(base, 0.2)
            assert ours == theirs


# In the control loop


def with_ladder(rig: Rig, config: LadderConfig) -> Rig:
    rig.controller.admission._ladder = config
    return rig


def serve_by_context(rig: Rig, base_ms: float, ms_a_frame: float) -> None:
    """Passes take longer the more they attend to."""
    submit = rig.engine.submit

    def submit_by_context(work):
        if hasattr(work, "context_slots"):
            n_frames = (len(work.context_slots) - 10) // FRAME_TOKENS
            rig.engine.script_next(base_ms + ms_a_frame * n_frames)
        submit(work)

    rig.engine.submit = submit_by_context


def test_frames_forgotten_for_time_are_journalled_told_to_the_engine_and_recorded():
    rig = with_ladder(Rig(admission="conformal"), LadderConfig(forget_frames=2, least_frames=4))
    serve_by_context(rig, 10.0, 0.9)
    records = rig.run(80)
    stepped = [record for record in records if record.step is Step.FEWER_FRAMES]
    assert len(stepped) > 15
    for record in stepped:
        reasons = [line["reason"] for line in record.journal]
        assert reasons.count(TO_FIT) == record.forgotten_frames >= 1
        assert record.prices_ns["fewer_frames"] == record.predicted_ns + record.allowance_ns
    assert sum(record.decision.value == "FRESH" for record in stepped) >= len(stepped) - 1
    assert sum(slots.size for slots in rig.engine.evicted) == FRAME_TOKENS * sum(
        len(record.journal) for record in records
    )
    assert rig.controller.promise.steps["fewer_frames"] == len(stepped)


def test_a_refused_tick_holds_and_one_that_has_held_too_long_stops():
    rig = Rig(service_ms=40.0, admission="conformal", heeds_deadlines=True)
    records = rig.run(60)
    steps = {record.step for record in records if record.decision.value == "HOLD_REFUSED"}
    assert steps == {Step.HOLD}
    stopped = [r for r in records if r.decision.value == "SAFE_STOP" and r.submitted_work is None]
    assert {record.step for record in stopped} <= {Step.STOP, None}
    assert Step.STOP in {record.step for record in stopped}


# Fewer action tokens


TOKENS = LadderConfig(least_tokens=2)


class Arm:
    """Passes of `base` + `step` x tokens ms for an action of 7, of which some may be left out."""

    def __init__(self, ladder: LadderConfig, rule: str = "conformal") -> None:
        self.gate = Admission(AdmissionConfig(0.2, 0.9, 8, rule, 0.01), ladder)

    def tick(self, base: float, step: float, budget_ns: int = BUDGET):
        verdict = self.gate.ask(0, budget_ns, 660, 20, n_tokens=7)
        outcome = "R"
        if verdict.is_admitted:
            decode = round(step * MS) * (7 - verdict.holds_tokens)
            total = round(base * MS) + decode
            outcome = "F" if total <= budget_ns else "M"
            self.gate.observe(StageTimes(0, MS, MS, decode), total)
        self.gate.settle(outcome == "M")
        return outcome, verdict

    def run(self, base: float, step: float, n: int):
        ticks = [self.tick(base, step) for _ in range(n)]
        return "".join(outcome for outcome, _ in ticks), [verdict for _, verdict in ticks]


def test_tokens_are_left_out_as_few_as_are_enough_and_each_is_priced_as_one_decode_step():
    arm = Arm(TOKENS)
    arm.run(10.0, 2.0, 60)
    price_ns = arm.tick(10.0, 2.0)[1].price_ns
    for n_held in range(1, 6):
        outcome, verdict = arm.tick(10.0, 2.0, price_ns - round((2.0 * n_held - 1) * MS))
        assert (outcome, verdict.step, verdict.holds_tokens) == ("F", Step.FEWER_TOKENS, n_held)
        assert verdict.price_ns == pytest.approx(price_ns - 2 * MS * n_held, abs=MS / 100)
        assert verdict.prices_ns == {"full": price_ns, "fewer_tokens": verdict.price_ns}
        price_ns = arm.tick(10.0, 2.0)[1].price_ns
    assert arm.tick(10.0, 2.0, price_ns - 11 * MS)[1].step is Step.HOLD, "two tokens are decoded at least"


@pytest.mark.parametrize("rule", ["conformal", "ema"])
def test_what_short_passes_teach_is_the_time_of_whole_ones(rule):
    arm = Arm(TOKENS, rule)
    arm.run(10.0, 2.0, 60)
    slow, verdicts = arm.run(10.0, 3.4, 40)
    assert "F" * 30 in slow
    assert {verdict.holds_tokens for verdict in verdicts[-20:]} <= {1, 2}
    assert arm.gate.predict(660) == pytest.approx((10 + 7 * 3.4) * MS, rel=0.02)
    assert arm.run(10.0, 2.0, 40)[1][-1].step is Step.FULL


def test_an_action_is_shortened_before_a_frame_is_forgotten_and_never_both_at_once():
    arm = Arm(LadderConfig(forget_frames=20, least_frames=1, least_tokens=2))
    arm.run(10.0, 2.0, 60)
    verdicts = arm.run(12.0, 3.0, 20)[1]
    taken = [verdict for verdict in verdicts if verdict.step is not Step.HOLD]
    assert Step.FEWER_TOKENS in {verdict.step for verdict in taken}
    assert not any(verdict.forgets_frames for verdict in verdicts)


@settings(deadline=None, max_examples=20)
@given(services=st.lists(st.tuples(st.floats(0.1, 40), st.integers(1, 60)), min_size=1, max_size=8))
def test_with_the_step_off_every_verdict_is_as_without_tokens_to_leave_out(services):
    off, without = Arm(NO_STEPS), Arm(LadderConfig(least_tokens=7))
    for base, n in services:
        for _ in range(n):
            assert off.tick(base, 1.0) == without.tick(base, 1.0)


def token_rig(**options) -> Rig:
    """The simulated arm's seven joint deltas and a gripper, with passes that go by the tokens decoded."""
    rig = with_ladder(Rig(policy="tiny_vla", admission="conformal", **options), LadderConfig(least_tokens=3))
    step_ms = 1.25
    submit = rig.engine.submit

    def submit_by_tokens(work):
        if hasattr(work, "action_slots"):
            n = len(work.action_slots)
            rig.engine.script_next(step_ms * (8 + n))
            submit(work)
            stages = StageTimes(prefill_ns=round(step_ms * 8 * MS), decode_ns=round(step_ms * n * MS))
            rig.engine._pending.stages = stages
        else:
            submit(work)

    rig.engine.submit = submit_by_tokens
    return rig


def less_time(rig: Rig, ticks: int, late_ms: float):
    """Ticks that wake up so late that no whole pass fits."""
    records = []
    for _ in range(ticks):
        rig.clock.sleep_until(rig.schedule.times(rig._tick).start_ns + round(late_ms * MS))
        records += rig.run(rig._tick + 1)
    return records


def test_a_shortened_action_is_fresh_says_so_and_holds_the_dimensions_that_were_not_decoded():
    rig = token_rig()
    whole = rig.run(20)[-1]
    assert whole.step is Step.FULL and whole.held_tokens == 0
    records = less_time(rig, 4, 14.0)
    for record, before in zip(records, [whole, *records], strict=False):
        assert (record.decision.value, record.step) == ("FRESH", Step.FEWER_TOKENS)
        assert "the last dimensions are held" in record.reason
        n_decoded = record.own_pass.steps_done
        assert 3 <= n_decoded == 8 - record.held_tokens < 8
        assert record.action[7] == before.action[7]
        assert record.prices_ns["fewer_tokens"] == record.predicted_ns + record.allowance_ns
        assert record.own_pass.retained_frame is not None
    assert rig.controller.promise.steps["fewer_tokens"] == 4
    assert rig.run(25)[-1].step is Step.FULL


def test_no_dimension_is_held_for_longer_than_all_of_them_may_be():
    rig = token_rig(max_hold_ns=100 * MS)
    rig.run(20)
    steps = [record.step for record in less_time(rig, 5, 14.0)]
    assert steps == [Step.FEWER_TOKENS] * 3 + [Step.HOLD] * 2


@pytest.mark.parametrize("event", [Enable(True), ResetMemory()])
def test_the_first_action_after_motion_was_cancelled_is_a_whole_one(event):
    rig = token_rig()
    rig.run(20)
    rig.observe_joints()
    rig.controller.post(event)
    steps = {record.step for record in less_time(rig, 3, 14.0)}
    assert Step.FEWER_TOKENS not in steps


# The same picture again


def reusing_rig(most_ticks: int = 3, levels: float = 1.0) -> tuple[Rig, FrameLog]:
    rig = Rig()
    log = FrameLog(picture_cells, CELLS_SHAPE, np.float32)
    rig.controller._work._reuse = Reuse(log, levels, most_ticks)
    write = rig.frames.write

    def logged(pixels, *stamps):
        log.put(rig.frames.next_index, pixels)
        return write(pixels, *stamps)

    rig.frames.write = logged
    return rig, log


def late_ticks(rig: Rig, first: int, n: int):
    """Ticks that wake up with no time for a pass."""
    records = []
    for tick in range(first, first + n):
        rig.clock.sleep_until(rig.schedule.times(tick).start_ns + 20 * MS)
        records += rig.run(tick + 1)
    return records


def test_an_unchanged_picture_gives_its_action_again_so_often_and_then_holds():
    rig, _ = reusing_rig(most_ticks=3)
    fresh = rig.run(6)[-1]
    records = late_ticks(rig, 6, 5)
    assert [r.decision.value for r in records] == ["FRESH"] * 3 + ["HOLD_REFUSED"] * 2
    assert [r.step for r in records] == [Step.REUSE] * 3 + [Step.HOLD] * 2
    assert all(r.submitted_work is None and not r.is_miss and r.prices_ns["reuse"] == 0 for r in records[:3])
    assert "the picture is still that of the last one" in records[0].reason
    assert all(r.action == fresh.action and r.frame_index == r.seen_frame for r in records[:3])
    assert rig.run(12)[-1].step is Step.FULL


def test_a_picture_that_changed_anywhere_gives_nothing_again():
    rig, _ = reusing_rig()
    rig.run(6)
    rig._pixels[8:16, 24:32, 1] = 3
    assert {record.step for record in late_ticks(rig, 6, 3)} == {Step.HOLD}


def test_what_creeps_is_seen_since_it_is_compared_with_what_the_pass_saw():
    rig, _ = reusing_rig(most_ticks=9)
    rig.run(6)
    steps = []
    for tick in range(6, 10):
        rig._pixels[:] += 1
        steps += [record.step for record in late_ticks(rig, tick, 1)]
    assert steps[-1] is Step.HOLD and steps[0] is Step.REUSE


def test_after_a_reset_nothing_is_used_again():
    rig, _ = reusing_rig()
    rig.run(6)
    rig.controller.post(ResetMemory())
    late_ticks(rig, 6, 1)
    assert {record.step for record in late_ticks(rig, 7, 2)} == {Step.HOLD}


def test_noise_leaves_a_picture_as_it_was_and_a_moved_cell_does_not():
    rng = np.random.default_rng(0)
    picture = rng.integers(20, 230, (64, 128, 3)).astype(np.uint8)
    noisy = (picture + rng.normal(0, 2, picture.shape).round()).astype(np.uint8)
    moved = picture.copy()
    moved[16:24, 16:24] = moved[16:24, 24:32]
    cells = picture_cells(picture)
    assert is_unchanged(picture_cells(noisy), cells, 1.5)
    assert not is_unchanged(picture_cells(moved), cells, 1.5)
    assert np.array_equal(cells[2, 5], picture[16:24, 40:48].reshape(-1, 3).mean(axis=0))


@pytest.mark.parametrize("off", [{}, {"ladder.least_frames": 3, "ladder.unchanged_levels": 0.0}])
def test_every_step_is_off_unless_asked_for(off):
    values = validate_all(off)
    config = ladder_config(values, policy_of(values))
    assert most_to_forget(config, 127, 1000) == most_to_hold(config, 8) == 0
    assert picture_log(values) is None


def test_a_policy_whose_end_cannot_be_held_is_refused_when_the_controller_is_built():
    values = validate_all({"ladder.least_tokens": 3})
    with pytest.raises(
        PolicyError, match=r"ladder.least_tokens is 3 and would hold joint6, of kind position"
    ):
        ladder_config(values, policy_of(values))
    gripper_alone = validate_all({"ladder.least_tokens": 6})
    assert most_to_hold(ladder_config(gripper_alone, policy_of(gripper_alone)), 7) == 1
