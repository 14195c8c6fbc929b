"""What someone at the terminal sees of the demo with the simulated arm."""

import os
from collections import Counter

from diagnostic_msgs.msg import DiagnosticStatus
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.errors import one_line
from vla_edge_ros.evaluation.run_document import summarise
from vla_edge_ros.figures import in_words
from vla_edge_ros.nodes.live_run import Driver
from vla_edge_ros.nodes.simulated_run import SimulatedEpisode, SimulatedRun, figures_of


class DemoScreen:
    """A line that moves while the arm does, a line for each episode that ended, and a table at the end."""

    def __init__(self, console: Console, n_episodes: int) -> None:
        self._console = console
        self._n_episodes = n_episodes
        self._n_ended = 0
        self._number = ""
        self._over_s: float | None = None
        self._decisions: Counter[str] = Counter()
        self._pass_ms = ""
        self._status = console.status("starting the simulated arm and the node")

    def __enter__(self) -> "DemoScreen":
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def warn(self, line: str) -> None:
        self._say(line, "yellow")

    def start(self, driver: Driver) -> None:
        """The node is active, and this process in its ROS domain."""
        driver.node.create_subscription(DiagnosticStatus, "/vla_edge_node/tick", self._on_tick, 100)
        self._say("a simulated arm, and the real node with its model in the loop, over ROS 2 topics")
        self._say("tell the arm something else while it moves, from a terminal that has ROS 2:")
        domain = f"ROS_DOMAIN_ID={os.environ['ROS_DOMAIN_ID']} ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST"
        topic = "/instruction std_msgs/msg/String"
        self._say(f"  {domain} ros2 topic pub --once {topic} '{{data: go to the blue ball}}'", "cyan")

    def look(self, status: dict[str, str]) -> None:
        if status["episode"] != self._number:
            self._number = status["episode"]
            self._over_s = None
            self._decisions.clear()
        # Whoever tells the arm something else gives it another task, which is over later.
        if status["is_over"] != "True":
            self._over_s = None
        elif self._over_s is None:
            self._over_s = float(status["time_s"])
        n_ticks = sum(self._decisions.values())
        fresh = f"{100 * self._decisions[Decision.FRESH] / n_ticks:.0f} % FRESH" if n_ticks else "no tick yet"
        distance = in_words(100 * float(status["distance_m"]), 0, "cm")
        self._status.update(
            Text(
                f"{status['task']} {float(status['time_s']):4.1f} s: {one_line(status['instruction'])} | "
                f"{distance} to go | {fresh}{self._pass_ms}"
            )
        )

    def ended(self, episode: SimulatedEpisode) -> None:
        self._n_ended += 1
        told = ", then ".join(f"“{one_line(text)}”" for text in episode.instructions)
        style = "yellow" if episode.distance_m is None else "green" if episode.has_succeeded else "red"
        self._say(
            f"{self._n_ended}/{self._n_episodes} {episode.task}, seed {episode.seed}: {told}: "
            f"{outcome(episode)}, {self._until(episode)}",
            style,
        )

    def _until(self, episode: SimulatedEpisode) -> str:
        """When the task was over, and for how long the episode was kept open beyond that."""
        over_s = episode.seconds if self._over_s is None else self._over_s
        open_s = episode.seconds - over_s
        kept = f", kept open for {open_s:.1f} s more" if open_s >= 0.05 else ""
        return f"over after {over_s:.1f} s of simulated time{kept}"

    def summarise(self, simulated: SimulatedRun) -> None:
        """The table of the episodes, and what a pass took."""
        records = simulated.recorded.ticks
        table = Table(box=box.SIMPLE_HEAD)
        for name in ("episode", "outcome", "FRESH in it", "late", "confidence", "other decisions"):
            is_text = name in ("episode", "outcome", "other decisions")
            table.add_column(name, justify="left" if is_text else "right")
        for episode in simulated.episodes:
            figures = figures_of(records, episode)
            table.add_row(
                episode.task,
                outcome(episode),
                in_words(100 * figures["fresh"] / figures["ticks"] if figures["ticks"] else None, 1, "%"),
                in_words(figures["late"]),
                in_words(figures["confidence"], 2),
                "\n".join(f"{n} {name}" for name, n in figures["others"].items()) or "none",
            )
        self._console.print(table)
        run, parameters = summarise(records), simulated.recorded.run["parameters"]
        pass_ms = run["latency_ms"]["pass"]
        cutoff_ms = parameters["control.deadline_ms"] - parameters["control.margin_ms"]
        p50, p99 = in_words(pass_ms["p50"], 1), in_words(pass_ms["p99"], 1)
        self._say(
            f"over the whole run, between episodes too, {in_words(100 * run['fresh_ratio'], 1, '%')} of "
            f"{in_words(run['ticks'])} ticks were FRESH"
        )
        self._say(
            f"a pass took {p50} ms at p50 and {p99} ms at p99 of {cutoff_ms:.1f} ms; "
            f"{run['late_publishes']} of {run['ticks']} publishes were late, "
            f"{simulated.recorded.end['bare_loop']['late']} in a bare loop beside the node"
        )

    def _on_tick(self, message: DiagnosticStatus) -> None:
        self._decisions[message.message] += 1
        pass_ms = next((pair.value for pair in message.values if pair.key == "pass_ms"), "")
        if pass_ms:
            self._pass_ms = f" | pass {float(pass_ms):.1f} ms"

    def _say(self, line: str, style: str = "") -> None:
        self._console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def outcome(episode: SimulatedEpisode) -> str:
    if episode.distance_m is None:
        return "told of nothing on the table"
    return f"{'succeeded' if episode.has_succeeded else 'failed'}, {100 * episode.distance_m:.1f} cm off"
