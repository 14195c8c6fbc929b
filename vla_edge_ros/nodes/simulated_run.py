"""Runs episodes of the simulation over ROS: the node acts in them, or the scripted expert in its place."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticStatus
from lifecycle_msgs.msg import Transition
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

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

EPISODE_TIMEOUT_S = 120.0
"""No episode is longer than 28 s; what was skipped by the simulation comes on top."""


@dataclass(frozen=True, slots=True)
class SimulatedEpisode:
    """seconds: of simulated time. distance_m: from the tip to its goal at the end. began_ns: steady."""

    seed: int
    has_succeeded: bool
    seconds: float
    distance_m: float
    began_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """episodes, and the node's own record of them: None where the expert acted.

    skipped_steps: of physics (300 Hz). camera_hz, joint_states_hz: as sent, over all episodes.
    refused: trajectories and commands that the controllers did not follow.
    """

    episodes: list[SimulatedEpisode]
    recorded: RecordedRun | None
    skipped_steps: int
    refused: int
    camera_hz: float
    joint_states_hz: float


class Table:
    """The simulation as its driver knows it. status: the values of the newest `~/episode`."""

    def __init__(self, driver: Driver, process: Process) -> None:
        self.status: dict[str, str] = {}
        self.received_ns = 0
        self._driver = driver
        self._process = process
        node = driver.node
        # Discovery goes in the order of creation: to have met the last client is to have met both.
        self._reset = node.create_client(Trigger, "/simulation/reset")
        self._set = node.create_client(SetParameters, "/simulation/set_parameters")
        node.create_subscription(DiagnosticStatus, "/simulation/episode", self._on_episode, 1)

    def meet(self) -> None:
        """Return when the simulation runs. Raises UserError with its complaint where it does not."""
        self._wait_for(lambda: self.status, "begin", START_TIMEOUT_S)

    def begin(self, task: str, seed: int) -> None:
        """Have an episode begin."""
        values = [Parameter("task", value=task), Parameter("seed", value=seed)]
        request = SetParameters.Request(parameters=[value.to_parameter_msg() for value in values])
        self._wait_for(self._set.service_is_ready, "offer its parameters", START_TIMEOUT_S)
        question = Question(self._set, request)
        self._wait_for(question.is_answered, "take its parameters", START_TIMEOUT_S)
        for result in question.answers[0].results:
            if not result.successful:
                raise UserError(f"the simulation refused: {result.reason}")
        before = self.status["episode"]
        self._wait_for(self._reset.call_async(Trigger.Request()).done, "reset", START_TIMEOUT_S)
        self._wait_for(lambda: self.status["episode"] != before, "begin an episode", START_TIMEOUT_S)

    def wait_until_over(self) -> None:
        self._wait_for(lambda: self.status["is_over"] == "True", "end an episode", EPISODE_TIMEOUT_S)

    def _on_episode(self, message: DiagnosticStatus) -> None:
        self.status = {pair.key: pair.value for pair in message.values}
        self.received_ns = time.monotonic_ns()

    def _wait_for(self, is_done: Callable[[], object], purpose: str, timeout_s: float) -> None:
        self._driver.wait_for(
            lambda: is_done() or not self._process.is_running, f"see the simulation {purpose}", timeout_s
        )
        if not self._process.is_running:
            raise UserError(self._process.complaint())


def run_simulated(
    task: str,
    seeds: Sequence[int],
    values: dict | None,
    on_warning: Callable[[str], None],
    on_episode: Callable[[SimulatedEpisode], None],
) -> SimulatedRun:
    """One episode of the task for each seed.

    values: every parameter of the node, `control.record_path` set; None for the expert.
    on_warning: is told what the node warns of, once it is configured.
    Raises UserError with what went wrong.
    """
    with private_ros() as folder, contextlib.ExitStack() as cleanup:
        first = {"task": task, "seed": seeds[0]}
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
        episodes = []
        for seed in seeds:
            if forget is not None:
                driver.enable(False)
                driver.wait_for(forget.call_async(Trigger.Request()).done, "forget", START_TIMEOUT_S)
            table.begin(task, seed)
            if edge is not None:
                driver.enable()
            began_ns = time.monotonic_ns()
            table.wait_until_over()
            episode = SimulatedEpisode(
                seed,
                table.status["has_succeeded"] == "True",
                float(table.status["time_s"]),
                float(table.status["distance_m"]),
                began_ns,
                time.monotonic_ns(),
            )
            episodes.append(episode)
            on_episode(episode)
        if edge is not None:
            driver.change(Transition.TRANSITION_DEACTIVATE, "deactivate", START_TIMEOUT_S)
        for process in filter(None, (edge, simulation)):
            process.end()
    seconds = (table.received_ns - before_ns) / 1e9

    def rate(key: str) -> float:
        return (int(table.status[key]) - int(before[key])) / seconds

    refused = sum(int(table.status[f"{kind}_refused"]) for kind in ("trajectories", "commands"))
    return SimulatedRun(
        episodes,
        RecordedRun.from_lines(Path(values["control.record_path"])) if values is not None else None,
        int(table.status["skipped_steps"]),
        refused,
        rate("images"),
        rate("joint_states"),
    )
