"""How long the next pass will take, stage by stage, given how many tokens it attends to.

Each stage is affine in the context: the attention part grows with the retained tokens, the rest does not.
Only +, -, x and / are used, so that a replay computes the same predictions on every machine.
"""

from typing import NamedTuple

from vla_edge_ros.engine.interface import STAGES, StageTimes

PASS_STAGES = (*STAGES, "transfer")
"""The stages of a pass, and what is left of its time: the ways to and from the engine, and gaps."""

_FIELDS = [(stage, f"{stage}_ns") for stage in STAGES]
_WINDOW = 3
"""What counts is the median of so many samples: one slow pass changes nothing, two in a row do at once."""
_MEAN_GAIN = 1 / 128
_FEW = 8
"""With fewer passes there is no long run yet, and ageing goes down to nothing."""
_SLOPE_GAIN = 0.05
_SLOPE_SCALE_TOKENS = 256.0
_ERROR_GAIN = 1 / 32
_ERROR_CLIP = 4.0
_FIRST_ERROR = 0.05
_LEAST_ERROR = 0.01
"""Of a pass: where each takes the same time there must be something to multiply a miss with."""
_LN_2 = 0.6931471805599453
_NO_LEVEL = (-1, 0.0)
"""Level for a context: asked for when a pass is judged, and again when it has ended."""


def durations_by_stage(stages: StageTimes, total_ns: int) -> dict[str, int]:
    """Nanoseconds by stage of PASS_STAGES of a pass that took `total_ns` from submission to end."""
    durations = {stage: getattr(stages, field) for stage, field in _FIELDS}
    durations["transfer"] = max(0, total_ns - stages.total_ns)
    return durations


class _Stage:
    """Level, long-run mean and slope of one stage, in nanoseconds and context tokens."""

    __slots__ = ("_level", "_mean_ns", "_mean_tokens", "_n", "_samples", "_slope")

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []
        self._mean_ns = self._mean_tokens = self._slope = 0.0
        self._n = 0
        self._level = _NO_LEVEL

    def observe(self, ns: int, context_tokens: int, is_shortened: bool) -> None:
        self._level = _NO_LEVEL
        if len(self._samples) == _WINDOW:
            self._samples.pop(0)
        self._samples.append((ns, context_tokens))
        if is_shortened:
            return
        self._n += 1
        usual_ns = _lower_median([sample_ns for sample_ns, _ in self._samples])
        off_tokens = context_tokens - self._mean_tokens
        if self._n > _WINDOW:
            # Normalised least mean squares (Widrow and Hoff): a context that stands still teaches nothing.
            surprise_ns = usual_ns - self._mean_ns - self._slope * off_tokens
            scale = off_tokens * off_tokens + _SLOPE_SCALE_TOKENS * _SLOPE_SCALE_TOKENS
            slope = self._slope + _SLOPE_GAIN * surprise_ns * off_tokens / scale
            self._slope = min(max(0.0, slope), usual_ns / max(1, context_tokens))
        gain = max(1 / self._n, _MEAN_GAIN)
        self._mean_tokens += gain * off_tokens
        self._mean_ns += gain * (ns - self._mean_ns)

    def drop_samples(self) -> None:
        self._level = _NO_LEVEL
        self._samples.clear()

    def level_ns(self, context_tokens: int) -> float:
        if self._level[0] != context_tokens:
            slope = self._slope
            levels = [ns + slope * (context_tokens - n) for ns, n in self._samples]
            self._level = context_tokens, max(0.0, _lower_median(levels))
        return self._level[1]

    def long_run_ns(self, context_tokens: int) -> float:
        return max(0.0, self._mean_ns + self._slope * (context_tokens - self._mean_tokens))


class _Whole(NamedTuple):
    """A stage of a pass over the whole context: as predicted, as last measured, and in the long run."""

    name: str
    stage: _Stage
    expected_ns: float
    level_ns: float
    long_run_ns: float

    def share_left(self, context_tokens: int, decode_share: float) -> float:
        """Of its time, what is left of it over `context_tokens`, in the long run, and of so many steps."""
        share = 1.0
        if self.long_run_ns:
            share = self.stage.long_run_ns(context_tokens) / self.long_run_ns
        return share * decode_share if self.name == "decode" else share


class LatencyModel:
    """Predicts the next pass from those before it.

    The level follows at once where the machine changes its pace, and ignores a single hiccup. Where nothing
    is measured, `age` moves the prediction from the level down to the long-run mean.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start again. The first pass that follows is an engine's first and is not learned from."""
        self._stages = {stage: _Stage() for stage in PASS_STAGES}
        self._n = -1
        self._newness = 1.0
        self._whole: tuple[int, list[_Whole]] | None = None
        self._mean_error_ns = 0.0
        self._errors_ns: list[float] = []

    @property
    def spread_ns(self) -> float:
        """What the prediction is wrong by: in the long run, or lately where that is more."""
        lately_ns = _lower_median(self._errors_ns) if len(self._errors_ns) == _WINDOW else 0.0
        return max(self._mean_error_ns, self._newness * lately_ns)

    def predict(
        self, context_tokens: int, fewer_tokens: int = 0, decode_share: float = 1.0
    ) -> dict[str, int] | None:
        """Nanoseconds by stage of PASS_STAGES of a pass that attends to `context_tokens`.

        fewer_tokens: or to so many fewer, in the proportion of the long run: a machine that is slow now is so
            over any context.
        decode_share: of the decode steps, those that are done; each takes the same time.
        None before two passes were learned from: of one, nobody knows whether it was a hiccup.
        """
        if self._n < 2:
            return None
        wholes = self._wholes(context_tokens)
        if not fewer_tokens and decode_share == 1:
            return {whole.name: round(whole.expected_ns) for whole in wholes}
        left = context_tokens - fewer_tokens
        return {
            whole.name: round(whole.expected_ns * whole.share_left(left, decode_share)) for whole in wholes
        }

    def level_ns(self, context_tokens: int, fewer_tokens: int = 0, decode_share: float = 1.0) -> float:
        """The pass as it was last measured, without ageing; the arguments are those of `predict`."""
        if not fewer_tokens and decode_share == 1:
            return sum(stage.level_ns(context_tokens) for stage in self._stages.values())
        left = context_tokens - fewer_tokens
        return sum(
            whole.level_ns * whole.share_left(left, decode_share) for whole in self._wholes(context_tokens)
        )

    def _wholes(self, context_tokens: int) -> list[_Whole]:
        """Each stage, once for all the steps of a tick: a question about fewer costs as little as it can."""
        if self._whole is None or self._whole[0] != context_tokens:
            wholes = []
            for name, stage in self._stages.items():
                level_ns, long_run_ns = stage.level_ns(context_tokens), stage.long_run_ns(context_tokens)
                low_ns = min(level_ns, long_run_ns) if self._n >= _FEW else 0.0
                expected_ns = low_ns + self._newness * (level_ns - low_ns)
                wholes.append(_Whole(name, stage, expected_ns, level_ns, long_run_ns))
            self._whole = context_tokens, wholes
        return self._whole[1]

    def age(self, half_life_ticks: float) -> None:
        """A tick passed without a measurement."""
        self._newness *= 1 - _LN_2 / half_life_ticks
        self._whole = None

    def observe_bound(
        self, at_least: dict[str, int], factor: float, context_tokens: int, is_shortened: bool = False
    ) -> None:
        """Learn from a pass that was stopped: taken to be `factor` times as long as its bound, by stage.

        A stage that it had not come to is taken to be as it was.
        """
        durations = {}
        for name, stage in self._stages.items():
            known_ns = stage.level_ns(context_tokens) if self._n >= 2 else 0.0
            durations[name] = round(max(factor * at_least[name], known_ns))
        self.observe(durations, context_tokens, is_shortened)

    def observe(self, durations: dict[str, int], context_tokens: int, is_shortened: bool = False) -> None:
        """Learn from a pass that attended to `context_tokens`; `durations` as of `durations_by_stage`.

        is_shortened: the context is short because the machine is slow, which would teach that short is slow:
            level and spread alone are learned, and what holds in the long run stays as it was.
        """
        self._n += 1
        self._whole = None
        if self._n == 0:
            return
        if self._n > 2:
            self._learn_error(sum(durations.values()), context_tokens)
        if self._newness < 1:
            # What was measured before the refusals is no evidence against what is measured now.
            self._errors_ns.clear()
            for stage in self._stages.values():
                stage.drop_samples()
        self._newness = 1.0
        for name, stage in self._stages.items():
            stage.observe(durations[name], context_tokens, is_shortened)
        if self._n == 2:
            self._mean_error_ns = _FIRST_ERROR * self.level_ns(context_tokens)

    def _learn_error(self, pass_ns: int, context_tokens: int) -> None:
        level_ns = self.level_ns(context_tokens)
        error_ns = abs(pass_ns - level_ns)
        if len(self._errors_ns) == _WINDOW:
            self._errors_ns.pop(0)
        self._errors_ns.append(error_ns)
        clipped_ns = min(error_ns, _ERROR_CLIP * self._mean_error_ns)
        mean_ns = self._mean_error_ns + _ERROR_GAIN * (clipped_ns - self._mean_error_ns)
        self._mean_error_ns = max(mean_ns, _LEAST_ERROR * level_ns)


def _lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
