"""When each message of a recording is played, and which stamp it gets."""

import re
from dataclasses import dataclass, replace

LONGEST_PAUSE_NS = 3_600 * 10**9
"""A longer one within a recording is a wrong clock at the recorder; nobody waits for what comes after it."""

_PLAUSIBLE_TRANSPORT_NS = 1_000_000_000
_LONE_IMAGE_PERIOD_NS = 33_333_333
_STAMPS_LINE = re.compile(
    r"recorded stamp (-?\d+) is played as (-?\d+), log time (-?\d+) at (-?\d+) on the steady clock"
)


@dataclass(frozen=True, slots=True)
class PlaybackSchedule:
    """Maps the times of a recording to the steady clock (when to send) and to ROS time (stamps).

    start_ns, base_ns: one moment on the steady clock and in ROS time, at which the first image is "taken".
    origin_log_ns: the log time that is played at `start_ns`.
    origin_stamp_ns: the stamp that becomes `base_ns`.
    rate: 2.0 plays twice as fast.
    """

    start_ns: int
    base_ns: int
    origin_log_ns: int
    origin_stamp_ns: int
    rate: float

    @classmethod
    def from_first_image(
        cls, log_ns: int, stamp_ns: int, start_ns: int, base_ns: int, rate: float
    ) -> "PlaybackSchedule":
        """Start with an image, which is sent as long after its stamp as it was when it was recorded.

        Where the stamp is of another clock than the log, or zero, that delay is unknown and taken as none.
        """
        transport_ns = log_ns - stamp_ns
        if stamp_ns == 0 or not 0 <= transport_ns <= _PLAUSIBLE_TRANSPORT_NS:
            transport_ns = 0
        return cls(start_ns, base_ns, log_ns - transport_ns, stamp_ns or log_ns, rate)

    def due_ns(self, log_ns: int) -> int:
        """The steady time at which a message with this log time is sent."""
        return self.start_ns + self._scaled(log_ns - self.origin_log_ns)

    def restamped_ns(self, stamp_ns: int) -> int:
        """The ROS time of a stamp, its distance to other stamps kept; 0 stays 0: there is no stamp."""
        return self.base_ns + self._scaled(stamp_ns - self.origin_stamp_ns) if stamp_ns else 0

    def stamps_line(self) -> str:
        """How times are mapped in this lap, as a line for the log that `read_stamps_line` reads."""
        return (
            f"recorded stamp {self.origin_stamp_ns} is played as {self.base_ns}, "
            f"log time {self.origin_log_ns} at {self.start_ns} on the steady clock"
        )

    def next_lap(self, first_log_ns: int, last_log_ns: int, n_images: int) -> "PlaybackSchedule":
        """The schedule of the same recording played again, one mean image period after the last image."""
        span_ns = last_log_ns - first_log_ns
        period_ns = span_ns // (n_images - 1) if n_images > 1 else _LONE_IMAGE_PERIOD_NS
        lap_ns = self._scaled(span_ns + period_ns)
        return replace(self, start_ns=self.start_ns + lap_ns, base_ns=self.base_ns + lap_ns)

    def _scaled(self, recorded_ns: int) -> int:
        return recorded_ns if self.rate == 1.0 else round(recorded_ns / self.rate)


@dataclass(frozen=True, slots=True)
class Lap:
    """How the times of one lap at rate 1 were moved.

    `origin_stamp_ns` of the recording became `base_ns`, and what has the log time `origin_log_ns` was sent at
    `start_ns` on the steady clock.
    """

    origin_stamp_ns: int
    base_ns: int
    origin_log_ns: int
    start_ns: int

    def recorded_stamp_ns(self, played_stamp_ns: int) -> int:
        return self.origin_stamp_ns + played_stamp_ns - self.base_ns

    def log_ns(self, sent_ns: int) -> int:
        """The log time of what was sent at `sent_ns` on the steady clock."""
        return self.origin_log_ns + sent_ns - self.start_ns


def read_stamps_line(line: str) -> Lap | None:
    """The lap that a line of the camera's log announces; None where it is another line."""
    match = _STAMPS_LINE.search(line)
    return Lap(*map(int, match.groups())) if match else None
