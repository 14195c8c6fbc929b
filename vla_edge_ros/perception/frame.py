"""What is known of a frame beside its pixels."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrameMeta:
    """Identity and times of one published frame.

    index: 1 for the first frame written to a buffer, counting up by one; 0 never occurs.
    stamp_ns: `header.stamp` exactly as the camera sent it, in ROS time (0 where it sent none).
    capture_ns: the moment of capture on the steady clock, the one that ages are measured from:
        derived from the stamp where the stamp can be trusted, else equal to `receipt_ns`.
    receipt_ns: when the callback received the message, on the steady clock.
    """

    index: int
    stamp_ns: int
    capture_ns: int
    receipt_ns: int

    def age_ns(self, now_ns: int) -> int:
        return now_ns - self.capture_ns
