"""What a camera's stamps are worth: how old a frame is, and whether the camera still shows something new.

Each frame gets one kind, the first that applies:

    kind         when                                                      capture time        new
    SAME_STAMP   the stamp (not zero) of the frame before                  receipt             no
    SAME_BYTES   the pixels of the frame before under another stamp,       by its stamp, as    until it is
                 or under stamps of zero                                   the rows below say  frozen
    ZERO         no stamp                                                  receipt             yes
    FOREIGN      more than `foreign_after_ns` from ROS now, either way     receipt             yes
    FUTURE       more than `future_tolerance_ns` ahead of ROS now          receipt             yes
    BACKWARDS    earlier than the stamp of the frame before                receipt             yes
    OK           otherwise                                                 receipt - age       yes

where age = ROS now - stamp, never below 0, both read when the message came in. A frame that is not new is not
to be published: what stands in the frame buffer then grows old, and the control loop holds by itself.

A repeated stamp is a duplicate whatever its pixels: nothing says when they were taken. Repeated pixels under
moving stamps are published a few times, because a frame sent twice (a 30 Hz camera on a 60 Hz topic) harms
nobody. After `frozen_after` repeats in a row, of either kind, the camera is called frozen and repeated pixels
are withheld as well: a live sensor's noise makes 24,576 equal bytes all but impossible, and an arm that acts
again and again on one old picture moves blind. A lens cap counts as frozen, rightly. A simulator that renders
without noise can stand still honestly: there `withhold_frozen` may be switched off; the camera is reported as
frozen and still used.
"""

from dataclasses import dataclass
from enum import Enum

FUTURE_TOLERANCE_NS = 10_000_000
"""Two clocks under NTP on one network differ by milliseconds; within this a stamp ahead of now has age 0."""

FOREIGN_AFTER_NS = 5_000_000_000
"""No camera is seconds late: beyond this the stamp is of another clock (simulator, boot time, an old bag)."""

FROZEN_AFTER = 10
"""Repeats in a row: a third of a second at 30 Hz, near the time that a hold may last."""


class StampKind(str, Enum):
    OK = "ok"
    ZERO = "zero"
    FUTURE = "future"
    BACKWARDS = "backwards"
    FOREIGN = "foreign"
    SAME_STAMP = "same_stamp"
    SAME_BYTES = "same_bytes"


@dataclass(frozen=True, slots=True)
class StampVerdict:
    """What is to be thought of one frame.

    capture_ns: moment of capture on the steady clock.
    reason: one line for the log, empty for OK.
    is_new: the frame is to be published.
    is_frozen: `frozen_after` repeats in a row; the camera needs attention.
    """

    kind: StampKind
    capture_ns: int
    reason: str
    is_new: bool
    is_frozen: bool


class StampWatch:
    """Judges the frames of one camera in the order of their receipt; pure, times are passed in.

    counts: frames by kind since the start. repeats: repeats in a row up to now.
    """

    def __init__(
        self,
        future_tolerance_ns: int = FUTURE_TOLERANCE_NS,
        foreign_after_ns: int = FOREIGN_AFTER_NS,
        frozen_after: int = FROZEN_AFTER,
        withhold_frozen: bool = True,
    ):
        self._future_tolerance_ns = future_tolerance_ns
        self._foreign_after_ns = foreign_after_ns
        self._frozen_after = frozen_after
        self._withhold_frozen = withhold_frozen
        self.counts = dict.fromkeys(StampKind, 0)
        self.reset()

    def reset(self) -> None:
        """Forget the frame before: after a jump of the clock, or when the camera was away on purpose."""
        self._last_stamp_ns: int | None = None
        self._last_digest: int | None = None
        self.repeats = 0

    def observe(self, stamp_ns: int, receipt_ns: int, ros_now_ns: int, digest: int) -> StampVerdict:
        """Judge a frame received at `receipt_ns` (steady) = `ros_now_ns` (ROS); `digest` is of its pixels."""
        kind, reason = self._kind_of_stamp(stamp_ns, ros_now_ns)
        age_ns = max(0, ros_now_ns - stamp_ns)
        capture_ns = receipt_ns - age_ns if kind is StampKind.OK else receipt_ns

        if kind is not StampKind.SAME_STAMP and digest == self._last_digest:
            kind, reason = StampKind.SAME_BYTES, "the picture is byte for byte the one before"
        repeated = kind in (StampKind.SAME_STAMP, StampKind.SAME_BYTES)
        self.repeats = self.repeats + 1 if repeated else 0
        is_frozen = repeated and self.repeats >= self._frozen_after
        if is_frozen:
            reason = f"the camera is frozen: {reason} ({self.repeats} repeats in a row)"
        is_new = kind is not StampKind.SAME_STAMP and not (is_frozen and self._withhold_frozen)

        self._last_stamp_ns, self._last_digest = stamp_ns, digest
        self.counts[kind] += 1
        return StampVerdict(kind, capture_ns, reason, is_new, is_frozen)

    def _kind_of_stamp(self, stamp_ns: int, ros_now_ns: int) -> tuple[StampKind, str]:
        if stamp_ns == 0:
            return StampKind.ZERO, "header.stamp is 0; the age counts from receipt"
        if stamp_ns == self._last_stamp_ns:
            return StampKind.SAME_STAMP, f"header.stamp {stamp_ns / 1e9:.9f} s is the one before"
        ahead_ns = stamp_ns - ros_now_ns
        if abs(ahead_ns) > self._foreign_after_ns:
            return StampKind.FOREIGN, (
                f"header.stamp {stamp_ns / 1e9:.3f} s is {_duration(ahead_ns)} ROS time: it is of another "
                "clock (is use_sim_time right, is the camera's clock set?); the age counts from receipt"
            )
        if ahead_ns > self._future_tolerance_ns:
            return StampKind.FUTURE, (
                f"header.stamp is {ahead_ns / 1e6:.1f} ms ahead of ROS time, wanted at most "
                f"{self._future_tolerance_ns / 1e6:.1f} ms (are the clocks synchronised?); "
                "the age counts from receipt"
            )
        if self._last_stamp_ns is not None and stamp_ns < self._last_stamp_ns:
            return StampKind.BACKWARDS, (
                f"header.stamp went back by {(self._last_stamp_ns - stamp_ns) / 1e6:.1f} ms; "
                "the age counts from receipt"
            )
        return StampKind.OK, ""


def _duration(ahead_ns: int) -> str:
    seconds = abs(ahead_ns) // 1_000_000_000
    if seconds < 3600:
        text = f"{seconds} s"
    elif seconds < 2 * 86400:
        text = f"{seconds // 3600} h {seconds % 3600 // 60} min"
    else:
        text = f"{seconds // 86400} days"
    return f"{text} {'ahead of' if ahead_ns > 0 else 'behind'}"
