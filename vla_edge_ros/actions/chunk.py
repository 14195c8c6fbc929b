"""The steps of the chunk that is being followed, each due at its time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a pass's steps. `refusal` says in one line why none could be read, else None."""

    steps_left: int
    steps_dropped: int
    refusal: str | None = None


class ChunkQueue:
    """Step i of a chunk is due at A + (i + 1) * dt and is the one to send on ticks in the dt before.

    A, the anchor, is the effect time of the tick that took the chunk. With `anchors_at_capture` it is the
    capture time of its frame, for chunks of several steps that follow on another one.
    Steps due before effect + min_lead or after capture + ttl are dropped. Times are steady nanoseconds.
    """

    def __init__(
        self, action_period_ns: int, ttl_ns: int, min_lead_ns: int, anchors_at_capture: bool
    ) -> None:
        self.expiry_ns = 0
        self.steps_dropped = 0
        self._period_ns = action_period_ns
        self._ttl_ns = ttl_ns
        self._min_lead_ns = min_lead_ns
        self._anchors_at_capture = anchors_at_capture
        self._steps: list[list[float]] = []
        self._anchor_ns = 0
        self._next = 0
        self._end = 0

    def accept(self, steps: list[list[float]], capture_ns: int, effect_ns: int) -> Accepted:
        """Replace the queue by what is left of `steps` (K, A), whose rows are kept.

        A chunk with nothing left changes nothing: the older one is followed to its own end. Steps that a
        newer chunk replaces are not counted as dropped.
        """
        n_steps = len(steps)
        # A capture stamp that claims the future would lengthen the life of its actions.
        capture_ns = min(capture_ns, effect_ns)
        follows_on = self._anchors_at_capture and n_steps > 1 and self._index(effect_ns) < self._end
        anchor_ns = capture_ns if follows_on else effect_ns
        first = max(0, -(-(effect_ns + self._min_lead_ns - anchor_ns) // self._period_ns) - 1)
        end = min(n_steps, (capture_ns + self._ttl_ns - anchor_ns) // self._period_ns)
        left = max(0, end - first)
        self.steps_dropped += n_steps - left
        if left:
            self._steps, self._anchor_ns, self._next, self._end = steps, anchor_ns, first, end
            self.expiry_ns = capture_ns + self._ttl_ns
        return Accepted(left, n_steps - left)

    @property
    def steps(self) -> list[list[float]]:
        """(n, A): the rows of the steps that are left."""
        return self._steps[self._next : self._end]

    @property
    def due_ns(self) -> list[int]:
        """(n,) due times of `steps`."""
        return [self._anchor_ns + self._period_ns * i for i in range(self._next + 1, self._end + 1)]

    def step_at(self, effect_ns: int) -> list[float] | None:
        """Step floor((effect - A) / dt), or the first that is left; None once the chunk has run out.

        The steps before it are over.
        """
        self._next = min(self._index(effect_ns), self._end)
        return self._steps[self._next] if self._next < self._end else None

    def drop(self, effect_ns: int) -> int:
        """Forget the steps that are still to come from `effect_ns` on; returns how many that were."""
        dropped = self._end - min(self._index(effect_ns), self._end)
        self.steps_dropped += dropped
        self._next = self._end = 0
        return dropped

    def _index(self, effect_ns: int) -> int:
        return max(self._next, (effect_ns - self._anchor_ns) // self._period_ns)
