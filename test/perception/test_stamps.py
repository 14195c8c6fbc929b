import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.perception.stamps import (
    FOREIGN_AFTER_NS,
    FROZEN_AFTER,
    FUTURE_TOLERANCE_NS,
    StampKind,
    StampWatch,
)

MS = 1_000_000
S = 1_000_000_000
ROS_NOW = 1_700_000_000 * S
RECEIPT = 5_000 * S


class Camera:
    """Sends frames to a watch, each 33 ms later on both clocks, and in its stamp unless one is given."""

    def __init__(self, **options):
        self.watch = StampWatch(**options)
        self.elapsed_ns = 0

    def frame(self, stamp_ns=None, age_ns=8 * MS, digest=None):
        self.elapsed_ns += 33 * MS
        now_ns = ROS_NOW + self.elapsed_ns
        stamp_ns = now_ns - age_ns if stamp_ns is None else stamp_ns
        digest = self.elapsed_ns if digest is None else digest
        return self.watch.observe(stamp_ns, RECEIPT + self.elapsed_ns, now_ns, digest)

    @property
    def receipt_ns(self):
        return RECEIPT + self.elapsed_ns


@pytest.fixture
def camera():
    return Camera()


def test_a_stamp_on_ros_time_gives_the_age(camera):
    verdict = camera.frame(age_ns=8 * MS)
    assert (verdict.kind, verdict.reason, verdict.is_new, verdict.is_frozen) == (
        StampKind.OK,
        "",
        True,
        False,
    )
    assert verdict.capture_ns == camera.receipt_ns - 8 * MS


def test_a_slow_transport_is_an_old_frame_and_not_a_foreign_clock(camera):
    verdict = camera.frame(age_ns=FOREIGN_AFTER_NS)
    assert verdict.kind is StampKind.OK
    assert verdict.capture_ns == camera.receipt_ns - FOREIGN_AFTER_NS


def test_a_stamp_a_little_ahead_is_a_frame_of_age_zero(camera):
    verdict = camera.frame(age_ns=-FUTURE_TOLERANCE_NS)
    assert verdict.kind is StampKind.OK
    assert verdict.capture_ns == camera.receipt_ns


@pytest.mark.parametrize(
    ("stamp", "kind", "reason"),
    [
        ({"stamp_ns": 0}, StampKind.ZERO, "header.stamp is 0"),
        ({"stamp_ns": 8 * S}, StampKind.FOREIGN, "8.000 s is 19675 days behind ROS time"),
        ({"age_ns": 13_260 * S}, StampKind.FOREIGN, "3 h 41 min behind ROS time"),
        ({"age_ns": FOREIGN_AFTER_NS + 1}, StampKind.FOREIGN, "5 s behind"),
        ({"age_ns": -FOREIGN_AFTER_NS - 1}, StampKind.FOREIGN, "5 s ahead of ROS time"),
        ({"age_ns": -FUTURE_TOLERANCE_NS - 1}, StampKind.FUTURE, "10.0 ms ahead"),
        ({"age_ns": -FOREIGN_AFTER_NS}, StampKind.FUTURE, "5000.0 ms ahead"),
        ({"age_ns": 100 * MS}, StampKind.BACKWARDS, "went back by 59.0 ms"),
    ],
)
def test_a_stamp_that_cannot_be_trusted_is_named_and_age_counts_from_receipt(camera, stamp, kind, reason):
    camera.frame(age_ns=8 * MS)
    verdict = camera.frame(**stamp)
    assert verdict.kind is kind
    assert reason in verdict.reason
    assert verdict.capture_ns == camera.receipt_ns
    assert (verdict.is_new, verdict.is_frozen) == (True, False)


def test_every_frame_of_a_bag_without_a_clock_is_used():
    # ROS time 0: use_sim_time without /clock.
    watch = StampWatch()
    for i in range(1, 100):
        verdict = watch.observe(ROS_NOW + i * 33 * MS, RECEIPT + i, 0, digest=i)
        assert (verdict.kind, verdict.is_new, verdict.capture_ns) == (StampKind.FOREIGN, True, RECEIPT + i)


def test_a_loop_of_a_bag_goes_backwards_once(camera):
    stamps_ns = [ROS_NOW + i * 33 * MS for i in (0, 1, 2, 0, 1, 2)]
    kinds = [camera.frame(stamp_ns=stamp_ns).kind for stamp_ns in stamps_ns]
    assert kinds == [StampKind.OK] * 3 + [StampKind.BACKWARDS] + [StampKind.OK] * 2


@pytest.mark.parametrize("digest", [1, 2])
def test_a_repeated_stamp_is_a_duplicate_whatever_its_pixels(camera, digest):
    camera.frame(stamp_ns=ROS_NOW, digest=1)
    verdict = camera.frame(stamp_ns=ROS_NOW, digest=digest)
    assert verdict.kind is StampKind.SAME_STAMP
    assert verdict.capture_ns == camera.receipt_ns
    assert not verdict.is_new


def test_a_stamp_of_zero_again_is_no_duplicate(camera):
    camera.frame(stamp_ns=0)
    assert camera.frame(stamp_ns=0).kind is StampKind.ZERO


def test_repeated_pixels_are_published_with_the_age_of_their_own_stamp(camera):
    camera.frame(digest=1)
    verdict = camera.frame(digest=1, age_ns=8 * MS)
    assert verdict.kind is StampKind.SAME_BYTES
    assert verdict.capture_ns == camera.receipt_ns - 8 * MS
    assert verdict.is_new


def test_pixels_repeated_ten_times_in_a_row_are_a_frozen_camera_and_withheld(camera):
    camera.frame(digest=1)
    verdicts = [camera.frame(digest=1) for _ in range(FROZEN_AFTER + 3)]
    assert [v.is_frozen for v in verdicts] == [False] * (FROZEN_AFTER - 1) + [True] * 4
    assert [v.is_new for v in verdicts] == [True] * (FROZEN_AFTER - 1) + [False] * 4
    assert "the camera is frozen" in verdicts[-1].reason
    assert f"{FROZEN_AFTER + 3} repeats in a row" in verdicts[-1].reason


def test_one_new_picture_ends_the_freeze(camera):
    for _ in range(FROZEN_AFTER + 5):
        camera.frame(digest=1)
    verdict = camera.frame(digest=2)
    assert (verdict.kind, verdict.is_new, verdict.is_frozen) == (StampKind.OK, True, False)
    assert not camera.frame(digest=2).is_frozen


def test_a_stamp_repeated_ten_times_in_a_row_is_a_frozen_camera_too(camera):
    camera.frame(stamp_ns=ROS_NOW)
    verdicts = [camera.frame(stamp_ns=ROS_NOW) for _ in range(FROZEN_AFTER)]
    assert [v.is_frozen for v in verdicts] == [False] * (FROZEN_AFTER - 1) + [True]
    assert not any(v.is_new for v in verdicts)


def test_pixels_repeated_under_stamps_of_zero_freeze_as_well(camera):
    verdicts = [camera.frame(stamp_ns=0, digest=1) for _ in range(FROZEN_AFTER + 1)]
    assert verdicts[-1].is_frozen
    assert verdicts[-1].capture_ns == camera.receipt_ns


def test_every_second_frame_a_repeat_is_never_a_frozen_camera(camera):
    verdicts = [camera.frame(digest=i // 2) for i in range(100)]
    assert all(v.is_new and not v.is_frozen for v in verdicts)
    assert camera.watch.counts[StampKind.SAME_BYTES] == 50


def test_a_still_simulator_may_be_reported_and_used():
    camera = Camera(withhold_frozen=False)
    verdicts = [camera.frame(digest=1) for _ in range(FROZEN_AFTER + 5)]
    assert verdicts[-1].is_frozen
    assert all(v.is_new for v in verdicts)


def test_a_reset_forgets_the_frame_before_but_not_the_counts(camera):
    camera.frame(stamp_ns=ROS_NOW, digest=1)
    camera.frame(stamp_ns=ROS_NOW, digest=1)
    camera.watch.reset()
    assert camera.watch.repeats == 0
    verdict = camera.frame(stamp_ns=ROS_NOW, digest=1)
    assert (verdict.kind, verdict.is_new) == (StampKind.OK, True)
    assert camera.watch.counts[StampKind.SAME_STAMP] == 1


stamps_ns = st.one_of(
    st.just(0),
    st.integers(-(10**10), 10**10).map(lambda offset_ns: ROS_NOW + offset_ns),
    st.integers(0, 2 * 10**18),
)


@settings(max_examples=150, deadline=None)
@given(frames=st.lists(st.tuples(stamps_ns, st.integers(0, 2)), max_size=40))
def test_no_age_is_negative_and_every_frame_is_counted_once(frames):
    watch = StampWatch(frozen_after=3)
    for i, (stamp_ns, digest) in enumerate(frames):
        verdict = watch.observe(stamp_ns, RECEIPT + i, ROS_NOW + i, digest)
        assert RECEIPT + i - FOREIGN_AFTER_NS <= verdict.capture_ns <= RECEIPT + i
        assert bool(verdict.reason) == (verdict.kind is not StampKind.OK)
        assert "\n" not in verdict.reason
    assert sum(watch.counts.values()) == len(frames)
