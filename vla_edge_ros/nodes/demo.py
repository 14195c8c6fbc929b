"""`vla-edge demo`: the real node over DDS and in real time, around a simulated arm or a camera recording.

The loop is closed where MuJoCo, OpenGL and the trained model are there; otherwise a line says what is missing
and the recording is played.
"""

import argparse
import importlib.util
from pathlib import Path

from rich.console import Console

from vla_edge_ros.arguments import positive, whole
from vla_edge_ros.engine.presets import TRAINED
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.arguments import add_run_arguments, given_parameters
from vla_edge_ros.nodes import demo_recording
from vla_edge_ros.parameters import SIMULATION
from vla_edge_ros.share import share_directory

_TASKS = next(parameter.allowed for parameter in SIMULATION if parameter.name == "task")
_MODEL = "tiny-vla"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task", choices=_TASKS, help="what the simulated arm does (default: reach, then switch)"
    )
    parser.add_argument("--seed", type=whole(0), help="of the simulated episode (default: one that fits)")
    parser.add_argument("--bag", type=Path, help="play this recording as the camera, without an arm")
    parser.add_argument("--topic", help="image topic of the recording (default: the only one)")
    add_run_arguments(parser)
    parser.add_argument(
        "--seconds",
        type=positive,
        help="how long the recording is played (default: 12); of the arm, how long its last episode is kept "
        "open at least: it lasts until its task is over, which this never cuts short",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out"),
        help="folder for report.html, demo.json and, of an arm, episode.webp and demo.mcap (default: out)",
    )


def run(args: argparse.Namespace) -> int:
    console = Console()
    given = given_parameters(args)
    if not given.get("instruction.initial", "go").strip():
        raise UserError("--instruction is empty: say what the arm is told, or leave it out")
    if args.bag is not None or args.topic is not None:
        for name in ("task", "seed"):
            if getattr(args, name) is not None:
                raise UserError(f"--{name} is of the simulated arm: leave it or the recording out")
        return demo_recording.run(args, given, console)
    lack = _lack(given)
    if lack is None:
        from vla_edge_ros.nodes import demo_simulation  # imports MuJoCo

        return demo_simulation.run(args, given, console)
    console.print(
        f"no simulated arm, the recording instead: {lack}",
        style="yellow",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return demo_recording.run(args, given, console)


def _lack(given: dict) -> str | None:
    """What the simulated arm wants and does not find, in one line; None where all is there."""
    for module, name in (("mujoco", "MuJoCo"), ("PIL", "Pillow")):
        if importlib.util.find_spec(module) is None:
            return f"{name} is not installed: pip install -e '.[simulation]' in the package's folder"
    model = given.get("engine.model", _MODEL)
    if model in TRAINED and not (share_directory() / TRAINED[model]).is_dir():
        return f"{TRAINED[model]} is missing, {model} is not trained here (docs/training.md)"
    from vla_edge_ros.rendering import why_no_renderer  # imports MuJoCo

    return why_no_renderer()
