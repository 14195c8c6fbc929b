"""Recordings as the node would have lived through them: ticks, the newest frame of each, and its action.

Tick k of an episode starts at S_k, a quarter of a period after the first frame and k periods on. It sees the
newest frame, and is left out where that has been seen. What it decides has effect at E_k = S_k +
`control.deadline_ms`, and a step is due one period dt later: a position is that at E_k + dt, a joint delta
the way from E_k to there, what a command holds (velocity, displacement, gripper) that in force at E_k.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.from_bags.tracks import Track, UnfitActions, check_rate, read_tracks
from vla_edge_ros.actions.policy import Kind, Policy
from vla_edge_ros.control import settings
from vla_edge_ros.engine.vision import FRAME_HEIGHT, FRAME_WIDTH
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.bags import Bag, BagImage
from vla_edge_ros.perception.decode import decode
from vla_edge_ros.perception.refusal import ImageRefused

MOST_STRIDES = 60
"""Of an episode in one piece: a training step holds all retained frames of a piece."""

_LEAST_PAUSE_NS = 500_000_000
_INFINITE_NS = 1 << 62


class UnfitRecording(UserError):
    """A recording cannot be trained on; the message says why."""


@dataclass(frozen=True, slots=True)
class BagEpisode:
    """n ticks of one instruction without a pause: frames (n, 64, 128, 3) uint8, actions (n, A) float64."""

    instruction: str
    ticks: np.ndarray
    frames: np.ndarray
    actions: np.ndarray


def read_episodes(
    bag: Bag,
    action_topics: Sequence[str],
    image_topic: str | None,
    instruction: str | None,
    policy: Policy,
    parameters: settings.Parameters,
    left_out: Counter,
) -> list[BagEpisode]:
    """The episodes of a recording. Raises UserError with one line on what stands in the way.

    left_out: counts what is not used, by reason.
    """
    tracks = read_tracks(bag, action_topics, policy)
    check_rate(tracks, policy, bag.path)
    topic = bag.pick_image_topic(image_topic).name
    said = bag.instruction_topic() if instruction is None else None
    if said is None and instruction is None:
        raise UnfitRecording(
            f"{bag.path}: there is no instruction (std_msgs/msg/String on a topic that ends in instruction); "
            f"{bag.there_are()}: --instruction TEXT gives one to all of it"
        )
    episodes = []
    lag_ns = settings.ns(parameters["control.deadline_ms"])
    n_ticks = 0
    for segment in _segments(bag, topic, said, instruction or "", policy, parameters, left_out):
        n_ticks += len(segment.ticks)
        effects_ns = np.array(segment.starts_ns, np.int64) + lag_ns
        actions = actions_at(effects_ns, tracks, policy)
        has_action = np.isfinite(actions).all(axis=1)
        left_out["ticks without an action around them"] += int((~has_action).sum())
        if has_action.any():
            frames = np.array(segment.frames)[has_action]
            ticks = np.array(segment.ticks, np.int32)[has_action]
            whole = BagEpisode(segment.instruction, ticks, frames, actions[has_action])
            episodes.extend(_pieces(whole, MOST_STRIDES * parameters["memory.stride_ticks"]))
    if not n_ticks:
        raise UnfitRecording(f"{bag.path}: not one image of {topic} can be used: {'; '.join(left_out)}")
    if not episodes:
        raise UnfitActions(
            f"{bag.path}: there are no actions while there are frames: {', '.join(action_topics)} and "
            f"{topic} are of other times"
        )
    return episodes


def actions_at(effects_ns: np.ndarray, tracks: Sequence[Track], policy: Policy) -> np.ndarray:
    """(n, A) float64: what takes effect at `effects_ns` (n,), NaN where a track does not know."""
    columns = []
    period_ns = policy.action_period_ns
    for track, dimension in zip(tracks, policy.dimensions, strict=True):
        is_position = dimension.kind in (Kind.POSITION, Kind.JOINT_DELTA)
        is_linear = track.is_planned or is_position
        # A gripper is often commanded once and stays.
        max_gap_ns = _INFINITE_NS if dimension.kind is Kind.GRIPPER else 3 * max(period_ns, track.period_ns)
        now = track.at(effects_ns, is_linear, max_gap_ns)
        then = track.at(effects_ns + period_ns, is_linear, max_gap_ns) if is_position else now
        columns.append(then - now if dimension.kind is Kind.JOINT_DELTA else then)
    return np.array(columns).T


@dataclass(slots=True)
class _Segment:
    """An episode before its actions are known."""

    instruction: str
    first_ns: int
    period_ns: int
    ticks: list[int]
    starts_ns: list[int]
    frames: list[np.ndarray]

    def add(self, tick: int, frame: np.ndarray) -> None:
        self.ticks.append(tick)
        self.starts_ns.append(self.start_ns(tick))
        self.frames.append(frame)

    def start_ns(self, tick: int) -> int:
        return self.first_ns + self.period_ns // 4 + tick * self.period_ns

    def tick_after(self, log_ns: int) -> int:
        """The first tick that starts at `log_ns` or later."""
        return max(0, -(-(log_ns - self.start_ns(0)) // self.period_ns))


def _segments(
    bag: Bag,
    topic: str,
    said: str | None,
    instruction: str,
    policy: Policy,
    parameters: settings.Parameters,
    left_out: Counter,
) -> Iterator[_Segment]:
    """Ends one where the instruction changes, and where no frame comes for half a second or four periods."""
    period_ns = policy.action_period_ns
    pause_ns = max(_LEAST_PAUSE_NS, 4 * period_ns)
    resizer = settings.resizer(parameters)
    segment: _Segment | None = None
    pending: BagImage | None = None
    stamp_ns = 0

    def see(image: BagImage, before_ns: int) -> None:
        """Let the tick that comes next see `image`, unless it begins only when a newer one is there."""
        tick = segment.tick_after(image.log_ns)
        if segment.start_ns(tick) >= before_ns:
            return
        frame = np.empty((FRAME_HEIGHT, FRAME_WIDTH, 3), np.uint8)
        try:
            resizer.resize(decode(image.message, topic), frame)
        except ImageRefused as refused:
            left_out[f"images: {refused}"] += 1
            return
        segment.add(tick, frame)

    topics = [topic] if said is None else [topic, said]
    for _, item in bag.play(topics):
        if not isinstance(item, BagImage):
            has_ended = item.text != instruction
            instruction = item.text
        elif not instruction:
            left_out["images before the first instruction"] += 1
            continue
        else:
            has_ended = pending is not None and item.log_ns - pending.log_ns > pause_ns
        if has_ended and pending is not None:
            see(pending, pending.log_ns + pause_ns)
            yield segment
            segment = pending = None
        if not isinstance(item, BagImage):
            continue
        if item.stamp_ns and item.stamp_ns < stamp_ns:
            back_s = (stamp_ns - item.stamp_ns) / 1e9
            raise UnfitRecording(
                f"{bag.path}: {topic}: stamps go back by {back_s:.3f} s to {item.stamp_ns}: cut the "
                "recording there"
            )
        if item.stamp_ns and item.stamp_ns == stamp_ns:
            left_out["images with the stamp of the one before"] += 1
            continue
        stamp_ns = item.stamp_ns
        if segment is None:
            segment = _Segment(instruction, item.log_ns, period_ns, [], [], [])
        elif pending is not None:
            see(pending, item.log_ns)
        pending = item
    if pending is not None:
        see(pending, pending.log_ns + pause_ns)
        yield segment


def _pieces(episode: BagEpisode, longest_ticks: int) -> Iterator[BagEpisode]:
    """The episode cut so that no piece spans more than `longest_ticks`; memory begins anew in each."""
    places = (episode.ticks - episode.ticks[0]) // longest_ticks
    for place in np.unique(places):
        part = places == place
        yield BagEpisode(
            episode.instruction, episode.ticks[part], episode.frames[part], episode.actions[part]
        )


def describe(episodes: Sequence[BagEpisode], paths: Sequence[Path]) -> str:
    lengths = sorted(len(episode.ticks) for episode in episodes)
    n_texts = len({episode.instruction for episode in episodes})
    return (
        f"{len(paths)} recordings: {len(episodes)} episodes of {lengths[0]} to {lengths[-1]} ticks, "
        f"{sum(lengths)} in all, {n_texts} instructions"
    )
