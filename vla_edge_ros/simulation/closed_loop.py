"""The loop of node and arm on a virtual clock: controller, engine and physics are real, times are stated."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter

import numpy as np

from vla_edge_ros.actions.messages import GroupCommand, GroupTrajectory
from vla_edge_ros.actions.planner import ActionPlanner
from vla_edge_ros.control import settings
from vla_edge_ros.control.admission import Admission
from vla_edge_ros.control.clock import VirtualClock
from vla_edge_ros.control.controller import Controller
from vla_edge_ros.control.events import Enable, ResetMemory
from vla_edge_ros.control.record import TickRecord, WorkTimes
from vla_edge_ros.control.rule import AdmissionConfig, Verdict
from vla_edge_ros.control.tick_thread import run_ticks
from vla_edge_ros.engine.factory import make_engine
from vla_edge_ros.engine.interface import (
    EngineError,
    FrameWork,
    PromptWork,
    StageTimes,
    WorkResult,
    WorkStatus,
)
from vla_edge_ros.evaluation.virtual_engine import StatedService, VirtualEngine
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.perception.frame_buffer import FrameBuffer
from vla_edge_ros.simulation.commanded import arm_policy
from vla_edge_ros.simulation.controllers import Waypoint
from vla_edge_ros.simulation.live_table import LiveTable
from vla_edge_ros.simulation.renderer import Renderer
from vla_edge_ros.simulation.scene import JOINTS

JOINT_STATES_PERIOD_NS = 10_000_000
FRAME_AGE_NS = 3_000_000
"""A frame is taken so long before each tick."""
IDLE_TICKS = 10
"""Disabled, between two episodes: work that was begun in one has ended before the next."""


class EveryPass:
    """In place of `Admission`: every pass is begun, whatever is known."""

    def __init__(self, config: AdmissionConfig) -> None:
        self.config = config

    def ask(self, *_: object) -> Verdict:
        return Verdict(True)

    def settle(self, is_miss: bool) -> None:
        pass

    def observe(self, stages: StageTimes, total_ns: int) -> None:
        pass

    def observe_aborted(self, at_least: StageTimes, at_least_ns: int) -> None:
        pass

    def forget(self) -> None:
        pass

    def memory_emptied(self) -> None:
        pass


class _Service:
    """service_ns: of a pass that begins at that time; a prompt takes as long as a pass."""

    def __init__(self, service_ns: Callable[[int], int]) -> None:
        self._service_ns = service_ns

    def times(self, work: PromptWork | FrameWork, now_ns: int) -> WorkTimes:
        return StatedService(self._service_ns(now_ns)).times(work, now_ns)


class _LastTokens:
    """An engine that keeps the tokens of the newest pass that it handed out; None where there is none."""

    def __init__(self, engine: VirtualEngine) -> None:
        self.tokens: np.ndarray | None = None
        self._engine = engine
        self.submit, self.evict, self.close = engine.submit, engine.evict, engine.close

    def wait(self, until_ns: int) -> WorkResult | None:
        result = self._engine.wait(until_ns)
        if result is not None and result.status is WorkStatus.DONE and result.tokens is not None:
            self.tokens = result.tokens.copy()
        return result


@dataclass(slots=True)
class LoopEpisode:
    """Counts of ticks, and how far the tip went: in all, and in ticks that had no fresh action (`blind_m`).

    confidence: the mean probability of the action tokens of its passes; None where none ended.
    distance_m: from the tip to its goal at the end; NaN where it has none.
    """

    task: str
    seed: int
    has_succeeded: bool
    ticks: int = 0
    fresh: int = 0
    misses: int = 0
    refused: int = 0
    moved_m: float = 0.0
    blind_m: float = 0.0
    confidence: float | None = None
    distance_m: float = 0.0


class _Sink:
    """The arm's end of the node's topics.

    repeats: a tick without a fresh action sends the last one again, which no hold rule of the node does.
    """

    def __init__(self, table: LiveTable, clock: VirtualClock, engine: _LastTokens, repeats: bool) -> None:
        self.planner: ActionPlanner
        self.vocabulary_size = 0
        self.episode: LoopEpisode | None = None
        self._table, self._clock, self._engine, self._repeats = table, clock, engine, repeats

    def begin(self, episode: LoopEpisode) -> None:
        self.episode = episode
        self._probabilities: list[float] = []
        self._was_fresh = True
        self._engine.tokens = None
        self._tip = self._table.scene.tip[:2].copy()

    def trajectory(self, trajectory: GroupTrajectory) -> None:
        now_ns = self._clock.now_ns()
        self._table.run_to(now_ns)
        points = [Waypoint(p.positions, p.velocities, p.time_from_start_ns) for p in trajectory.points]
        self._table.trajectory.follow(trajectory.joints, points, trajectory.stamp_ns, now_ns)

    def command(self, command: GroupCommand) -> None:
        self._table.gripper.take(command.values)

    def prepare(self, record: TickRecord) -> None:
        pass

    def tick(self, record: TickRecord) -> None:
        tokens = self._engine.tokens
        if not self._repeats or tokens is None or not record.is_enabled or record.decision.is_fresh:
            return
        effect_ns = record.effect_stamp_ns
        self.planner.accept(tokens[:1], self.vocabulary_size, effect_ns, effect_ns)
        for trajectory in self.planner.trajectories(effect_ns, effect_ns):
            self.trajectory(trajectory)

    def finished(self, record: TickRecord) -> None:
        episode = self.episode
        if episode is None:
            return
        tip = self._table.scene.tip[:2].copy()
        way_m = float(np.linalg.norm(tip - self._tip))
        episode.moved_m += way_m
        if not self._was_fresh:
            episode.blind_m += way_m
        if record.top_probability is not None:
            self._probabilities.append(record.top_probability)
            episode.confidence = sum(self._probabilities) / len(self._probabilities)
        self._tip, self._was_fresh = tip, record.decision.is_fresh
        episode.ticks += 1
        episode.fresh += record.decision.is_fresh
        episode.misses += record.is_miss
        episode.refused += record.submitted_work is None and record.predicted_ns is not None


class ClosedLoop:
    """Episodes one after another around one controller, as `vla-edge simulate` has them; for one thread.

    parameters: of the edge node; what is left out has its default.
    service_ns: what work takes that begins at a time, both in steady nanoseconds of the virtual clock.
    has_admission: otherwise every pass is begun.
    repeats: a tick without a fresh action repeats the last one.
    Raises EngineError, and NoRenderer.
    """

    def __init__(
        self,
        parameters: dict[str, object],
        service_ns: Callable[[int], int],
        has_admission: bool = True,
        repeats: bool = False,
    ) -> None:
        values = self._values = validate_all(parameters)
        policy = arm_policy()
        self._faults: list[str] = []
        self._frames = FrameBuffer.create()
        self._schedule = settings.tick_schedule(values, 4 * JOINT_STATES_PERIOD_NS)
        self._table = LiveTable(0, "reach", 0)
        self._renderer = Renderer(self._table.scene)
        self._clock = VirtualClock(merge(self._joint_states(), self._camera(), key=itemgetter(0)))
        engine = VirtualEngine(
            make_engine(settings.engine_spec(values, len(policy.dimensions)), self._frames),
            self._clock,
            _Service(service_ns),
            lambda times: None,
        )
        info = engine.configure()
        self._engine = _LastTokens(engine)
        self._sink = _Sink(self._table, self._clock, self._engine, repeats)
        self._sink.vocabulary_size = info.vocabulary_size
        live = settings.live_settings(values)
        self._sink.planner = ActionPlanner(policy, settings.action_config(values))
        self._controller = Controller(
            live.control,
            self._clock,
            self._engine,
            info,
            self._frames,
            settings.frame_memory(values, len(policy.dimensions), info.embedding_size),
            self._sink.planner,
            Admission(live.admission) if has_admission else EveryPass(live.admission),
            self._faults.append,
        )
        self._controller.begin(self._schedule)

    def run(self, task: str, seeds: Sequence[int], instruction: str = "") -> list[LoopEpisode]:
        """The episodes of the task by these seeds.

        instruction: what the arm is told in place of the task's own words; empty for those.
        """
        return [self._episode(task, seed, instruction) for seed in seeds]

    def close(self) -> None:
        self._engine.close()
        self._renderer.close()
        self._frames.close()

    def _episode(self, task: str, seed: int, instruction: str) -> LoopEpisode:
        self._sink.episode = None
        for event in Enable(False), ResetMemory():
            self._controller.post(event)
        idle = itertools.count()
        self._run(lambda: next(idle) >= IDLE_TICKS)
        self._table.reset(seed, task, self._clock.now_ns(), instruction)
        self._feel()
        self._prompter = settings.Prompter(self._values)
        self._hear()
        self._controller.post(Enable(True))
        episode = LoopEpisode(task, seed, False)
        self._sink.begin(episode)
        self._run(lambda: self._table.task.is_over)
        episode.has_succeeded = self._table.task.has_succeeded
        episode.distance_m = self._table.distance_m
        return episode

    def _run(self, is_over: Callable[[], bool]) -> None:
        run_ticks(
            self._controller, self._schedule, self._clock, self._sink, lambda: bool(self._faults) or is_over()
        )
        if self._faults:
            raise EngineError(
                f"the controller failed on the virtual clock: {self._faults[0].splitlines()[-1]}"
            )

    def _joint_states(self) -> Iterator[tuple[int, Callable[[], None]]]:
        for number in itertools.count():
            yield number * JOINT_STATES_PERIOD_NS, self._feel

    def _camera(self) -> Iterator[tuple[int, Callable[[], None]]]:
        for tick in itertools.count():
            yield self._schedule.times(tick).start_ns - FRAME_AGE_NS, self._see

    def _feel(self) -> None:
        now_ns = self._clock.now_ns()
        self._table.run_to(now_ns)
        scene = self._table.scene
        self._sink.planner.observe_joints(
            [*JOINTS, "gripper"], [*scene.joint_positions, scene.gripper], None, now_ns
        )

    def _see(self) -> None:
        now_ns = self._clock.now_ns()
        self._table.run_to(now_ns)
        self._frames.write(self._renderer.render(), now_ns, now_ns, now_ns)
        if self._sink.episode is not None:
            self._hear()

    def _hear(self) -> None:
        instruction = self._prompter.changed_to(self._table.task.instruction)
        if instruction is not None:
            self._controller.post(instruction)
