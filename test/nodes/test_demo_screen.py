"""What the demo's terminal says of an episode that ended."""

import io

import pytest
from rich.console import Console

from vla_edge_ros.nodes.demo_screen import DemoScreen
from vla_edge_ros.nodes.simulated_run import SimulatedEpisode


def status(time_s: float, is_over: bool, number: int = 1) -> dict[str, str]:
    words = {"task": "reach", "instruction": "go to the blue can", "distance_m": "0.02"}
    return words | {"episode": str(number), "time_s": str(time_s), "is_over": str(is_over)}


@pytest.mark.parametrize(
    ("seen", "seconds", "line"),
    [
        ([(1.0, False), (3.2, True)], 3.2, "2.0 cm off, over after 3.2 s of simulated time\n"),
        (
            [(1.0, False), (3.2, True), (10.0, True)],
            10.0,
            "over after 3.2 s of simulated time, kept open for 6.8 s more\n",
        ),
        # Told something else once it was over.
        ([(3.2, True), (4.0, False), (8.0, True)], 8.0, "over after 8.0 s of simulated time\n"),
    ],
)
def test_the_time_is_that_of_the_end_of_the_task_and_the_rest_is_told_apart(seen, seconds, line):
    text = io.StringIO()
    screen = DemoScreen(Console(file=text, width=200), 2)
    screen.look(status(5.0, True, number=0))  # of an episode before it
    for time_s, is_over in seen:
        screen.look(status(time_s, is_over))
    screen.ended(SimulatedEpisode("reach", 0, True, seconds, 0.02, ["go to the blue can"], 0, 1))
    assert text.getvalue().endswith(line)
