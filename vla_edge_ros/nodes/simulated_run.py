"""Runs episodes of the simulation over ROS: the node acts in them, or the scripted expert in its place."""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticStatus
from lifecycle_msgs.msg import Transition
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.nodes.expert_arm import ExpertArm
from vla_edge_ros.nodes.live_run import (
    CONFIGURE_TIMEOUT_S,
    START_TIMEOUT_S,
    Driver,
    Process,
    Question,
    private_ros,
)
from vla_edge_ros.nodes.parameters import to_ros
from vla_edge_ros.simulation.spectator import Moment

EPISODE_TIMEOUT_S = 120.0
"""No episode is longer than 28 s; what was skipped by the simulation comes on top."""


@dataclass(frozen=True, slots=True)
class Episode:
    """What is to be run: of the task by that seed, at least so many `seconds` of simulated time.

    instruction: what the arm is told in place of the task's own words; empty for those.
    """

    task: str
    seed: int
    instruction: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulatedEpisode:
    """seconds: of simulated time. distance_m: from the tip to its goal at the end, None where it has none.
    instructions: what the arm was told, one after another. began_ns: steady.
    """

    task: str
    seed: int
    has_succeeded: bool
    seconds: float
    distance_m: float | None
    instructions: list[str]
    began_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """How an episode stood: the values of an `~/episode`, and the joints (8,) as they were last measured."""

    received_ns: int
    status: dict[str, str]
    joints: tuple[float, ...]

    @property
    def distance_m(self) -> float | None:
        """From the tip to its goal; None where the arm was told none."""
        distance_m = float(self.status["distance_m"])
        return distance_m if math.isfinite(distance_m) else None

    def to_moment(self, decision: str) -> Moment:
        status = self.status
        return Moment(
            int(status["episode"]),
            status["task"],
            int(status["seed"]),
            float(status["time_s"]),
            self.joints,
            status["instruction"],
            decision,
            self.distance_m,
            status["is_over"] == "True",
            status["has_succeeded"] == "True",
        )


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """episodes, and the node's own record of them: None where the expert acted.

    skipped_steps: of physics (300 Hz). camera_hz, joint_states_hz: as sent, over all episodes.
    refused: trajectories and commands that the controllers did not follow.
    not_recorded: messages that are missing in the recording, where there is one.
    sightings: in order, 30 a second.
    """

    episodes: list[SimulatedEpisode]
    recorded: RecordedRun | None
    skipped_steps: int
    refused: int
    camera_hz: float
    joint_states_hz: float
    not_recorded: int
    sightings: list[Sighting]


class Table:
    """The simulation as its driver knows it. status: the values of the newest `~/episode`."""

    def __init__(self, driver: Driver, process: Process) -> None:
        self.status: dict[str, str] = {}
        self.received_ns = 0
        self.sightings: list[Sighting] = []
        self.joints: tuple[float, ...] | None = None
        self._driver = driver
        self._process = process
        node = driver.node
        # Discovery goes in the order of creation: to have met the last client is to have met both.
        self._reset = node.create_client(Trigger, "/simulation/reset")
        self._set = node.create_client(SetParameters, "/simulation/set_parameters")
        node.create_subscription(JointState, "/joint_states", self._on_joint_states, 10)
        node.create_subscription(DiagnosticStatus, "/simulation/episode", self._on_episode, 10)

    def meet(self) -> None:
        """Return when the simulation runs. Raises UserError with its complaint where it does not."""
        self._wait_for(lambda: self.status, "begin", START_TIMEOUT_S)

    def begin(self, episode: Episode) -> None:
        """Have an episode begin."""
        values = {"task": episode.task, "seed": episode.seed, "instruction": episode.instruction}
        request = SetParameters.Request(
            parameters=[Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
        )
        self._wait_for(self._set.service_is_ready, "offer its parameters", START_TIMEOUT_S)
        question = Question(self._set, request)
        self._wait_for(question.is_answered, "take its parameters", START_TIMEOUT_S)
        for result in question.answers[0].results:
            if not result.successful:
                raise UserError(f"the simulation refused: {result.reason}")
        before = self.status["episode"]
        self._wait_for(self._reset.call_async(Trigger.Request()).done, "reset", START_TIMEOUT_S)
        self._wait_for(lambda: self.status["episode"] != before, "begin an episode", START_TIMEOUT_S)

    def wait_until_over(self, seconds: float, on_look: Callable[[dict[str, str]], None]) -> None:
        """Return when the episode is over and has lasted for `seconds`; on_look is given its status."""

        def is_over() -> bool:
            on_look(self.status)
            return self.status["is_over"] == "True" and float(self.status["time_s"]) >= seconds

        self._wait_for(is_over, "end an episode", EPISODE_TIMEOUT_S + 2 * seconds)

    def _on_joint_states(self, message: JointState) -> None:
        self.joints = tuple(message.position)

    def _on_episode(self, message: DiagnosticStatus) -> None:
        self.status = {pair.key: pair.value for pair in message.values}
        self.received_ns = time.monotonic_ns()
        if self.joints is not None:
            self.sightings.append(Sighting(self.received_ns, self.status, self.joints))

    def _wait_for(self, is_done: Callable[[], object], purpose: str, timeout_s: float) -> None:
        self._driver.wait_for(
            lambda: is_done() or not self._process.is_running, f"see the simulation {purpose}", timeout_s
        )
        if not self._process.is_running:
            raise UserError(self._process.complaint())


def run_simulated(
    episodes: Sequence[Episode],
    values: dict | None,
    on_warning: Callable[[str], None],
    on_episode: Callable[[SimulatedEpisode], None],
    on_look: Callable[[dict[str, str]], None] = lambda status: None,
    on_start: Callable[[Driver], None] = lambda driver: None,
    record_path: Path | None = None,
) -> SimulatedRun:
    """The episodes one after another, at least one.

    values: every parameter of the node, `control.record_path` set; None for the expert.
    on_warning: is told what the node warns of, once it is configured.
    on_start: is given the driver before the first episode. on_look: the newest `~/episode`, again and again.
    record_path: where the simulation writes what it sends and is sent, mcap.
    Raises UserError with what went wrong.
    """
    with private_ros() as folder, contextlib.ExitStack() as cleanup:
        first = {"task": episodes[0].task, "seed": episodes[0].seed}
        if record_path is not None:
            first["record_path"] = str(record_path.resolve())
        simulation = Process("vla_edge_ros.nodes.simulation_node", first, folder)
        cleanup.callback(simulation.kill)
        edge = None
        if values is not None:
            edge = Process("vla_edge_ros.nodes.edge_node", to_ros(values), folder)
            cleanup.callback(edge.kill)
        driver = Driver(edge or simulation)
        cleanup.callback(driver.close)
        table = Table(driver, simulation)
        table.meet()
        if edge is None:
            ExpertArm(driver.node)
            forget = None
        else:
            forget = driver.node.create_client(Trigger, "/vla_edge_node/reset_memory")
            driver.meet()
            driver.change(Transition.TRANSITION_CONFIGURE, "configure", CONFIGURE_TIMEOUT_S)
            for line in driver.warnings():
                on_warning(line)
            driver.wait_for_images(simulation)
            driver.change(Transition.TRANSITION_ACTIVATE, "activate", START_TIMEOUT_S)
        before, before_ns = table.status, table.received_ns
        on_start(driver)
        done = []
        for episode in episodes:
            if forget is not None:
                driver.enable(False)
                driver.wait_for(forget.call_async(Trigger.Request()).done, "forget", START_TIMEOUT_S)
            table.begin(episode)
            if edge is not None:
                driver.enable()
            began_ns = time.monotonic_ns()
            table.wait_until_over(episode.seconds, on_look)
            ended_ns = time.monotonic_ns()
            done.append(_outcome(episode, table, began_ns, ended_ns))
            on_episode(done[-1])
        if edge is not None:
            driver.change(Transition.TRANSITION_DEACTIVATE, "deactivate", START_TIMEOUT_S)
        for process in filter(None, (edge, simulation)):
            process.end()
    seconds = (table.received_ns - before_ns) / 1e9

    def rate(key: str) -> float:
        return (int(table.status[key]) - int(before[key])) / seconds

    refused = sum(int(table.status[f"{kind}_refused"]) for kind in ("trajectories", "commands"))
    return SimulatedRun(
        done,
        RecordedRun.from_lines(Path(values["control.record_path"])) if values is not None else None,
        int(table.status["skipped_steps"]),
        refused,
        rate("images"),
        rate("joint_states"),
        int(table.status["not_recorded"]),
        table.sightings,
    )


def _outcome(episode: Episode, table: Table, began_ns: int, ended_ns: int) -> SimulatedEpisode:
    status = table.status
    told = [s.status["instruction"] for s in table.sightings if s.status["episode"] == status["episode"]]
    return SimulatedEpisode(
        episode.task,
        episode.seed,
        status["has_succeeded"] == "True",
        float(status["time_s"]),
        table.sightings[-1].distance_m,
        [text for text, _ in groupby(told)],
        began_ns,
        ended_ns,
    )


def figures_of(ticks: list[dict], episode: SimulatedEpisode) -> dict:
    """What the node did in an episode, of the records of all its ticks.

    confidence: the mean probability of the action tokens that it took; None where it had no pass.
    """
    own = [tick for tick in ticks if episode.began_ns <= tick["scheduled_ns"] < episode.ended_ns]
    sure = [tick["top_probability"] for tick in own if tick["top_probability"] is not None]
    decisions = Counter(tick["decision"] for tick in own)
    return {
        "ticks": sum(1 + tick["skipped_ticks"] for tick in own),
        "fresh": decisions.pop(Decision.FRESH.value, 0),
        "others": dict(decisions),
        "late": sum(tick["is_late"] for tick in own),
        "confidence": sum(sure) / len(sure) if sure else None,
    }
