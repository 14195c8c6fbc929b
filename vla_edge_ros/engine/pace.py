"""How long the parts of a pass take at least: by this an engine knows early that one cannot end in time."""

from vla_edge_ros.engine.interface import FrameWork, StageTimes, WorkResult, WorkStatus

STEP = "step"
"""One decode step; the other parts are named as the stages are."""

CLASS_TOKENS = 256
_RISE = 1 / 64
_NEVER_NS = 1 << 62


class CannotEnd(Exception):
    """A pass cannot end by its deadline any more."""


class Pace:
    """The least that each part of a pass takes, by the length of its context in classes of 256 tokens.

    A shorter sample counts at once; a longer one moves the estimate by 1/64 of the difference, so that it
    stays near the shortest of late and follows a machine that slows down. Unknown is 0: what has never been
    seen stops nothing.

    A part that keeps passes from being begun is not measured any more, and the machine may have become
    faster. So whoever stops a pass halves the estimates of the parts that it did not come to: none can stop
    passes for ever.
    """

    def __init__(self) -> None:
        self._least_ns: dict[tuple[str, int], float] = {}

    def least_ns(self, part: str, n_context: int) -> int:
        return int(self._least_ns.get((part, n_context // CLASS_TOKENS), 0))

    def observe(self, part: str, n_context: int, duration_ns: int) -> None:
        key = part, n_context // CLASS_TOKENS
        least_ns = self._least_ns.get(key, duration_ns)
        rise_ns = _RISE * max(0, duration_ns - least_ns)
        self._least_ns[key] = min(least_ns, duration_ns) + rise_ns

    def halve(self, part: str, n_context: int) -> None:
        key = part, n_context // CLASS_TOKENS
        if key in self._least_ns:
            self._least_ns[key] /= 2


class Countdown:
    """One pass against its deadline: what has been done, and what is still to come at least.

    Times of `part_ended` and `stop` are of one clock, that of `began_ns`; times of `look` are steady.

    parts: those before the decode steps, in their order.
    """

    def __init__(self, pace: Pace, work: FrameWork, parts: tuple[str, ...], began_ns: int) -> None:
        self._pace = pace
        self._n_context = len(work.context_slots)
        self._parts = [*parts, *[STEP] * len(work.action_slots)]
        self._deadline_ns = work.deadline_ns or _NEVER_NS
        self._least_ns = [pace.least_ns(part, self._n_context) for part in self._parts]
        self._left_ns = sum(self._least_ns)
        self._n_ended = 0
        self._since_ns = began_ns
        self._stages = StageTimes()

    @property
    def left_ns(self) -> int:
        """The least that what is to come takes, from the beginning of the part in hand on."""
        return self._left_ns

    def part_ended(self, now_ns: int) -> None:
        """The part in hand has ended, and the next one begins."""
        part, duration_ns = self._parts[self._n_ended], now_ns - self._since_ns
        self._pace.observe(part, self._n_context, duration_ns)
        _add(self._stages, part, duration_ns)
        self._left_ns -= self._least_ns[self._n_ended]
        self._n_ended += 1
        self._since_ns = now_ns

    def look(self, now_ns: int, share_done: float = 0.0) -> None:
        """Raises CannotEnd where what is to come takes longer than there is.

        share_done: of the part in hand, from 0 at its beginning to 1.
        """
        left_ns = self._left_ns
        if share_done:
            left_ns -= share_done * self._least_ns[self._n_ended]
        if now_ns + left_ns > self._deadline_ns:
            raise CannotEnd

    def tell(self, result: WorkResult) -> None:
        """What was done, for the result of a pass that has ended."""
        result.stages = self._stages
        result.steps_done = sum(part == STEP for part in self._parts[: self._n_ended])

    def stop(self, now_ns: int, result: WorkResult) -> None:
        """The pass is stopped in the part in hand: `result` becomes that of an ABORTED pass."""
        elapsed_ns = now_ns - self._since_ns
        _add(self._stages, self._parts[self._n_ended], elapsed_ns)
        self.tell(result)
        result.status = WorkStatus.ABORTED
        result.frame = result.tokens = result.top_probability = result.entropy = result.embedding = None
        result.remaining = StageTimes()
        for part, least_ns in zip(self._parts[self._n_ended :], self._least_ns[self._n_ended :], strict=True):
            _add(result.remaining, part, max(0, least_ns - elapsed_ns))
            elapsed_ns = 0
        for part in set(self._parts[self._n_ended :]) - set(self._parts[: self._n_ended]):
            self._pace.halve(part, self._n_context)


def _add(stages: StageTimes, part: str, duration_ns: int) -> None:
    name = "decode_ns" if part == STEP else f"{part}_ns"
    setattr(stages, name, getattr(stages, name) + duration_ns)
