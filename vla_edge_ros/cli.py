"""`vla-edge`: one command, with a subcommand for each thing that is done away from the robot.

A subcommand is a module with `add_arguments(parser)` and `run(args) -> exit code`, imported only when it is
called, so that `vla-edge report` needs no ROS and `vla-edge --help` needs nothing.

Exit codes: 0 done; 1 the answer is no (a gate failed, bench missed a must); 2 wrong usage or input, one line
on stderr; 3 the recording is cut short, or a training's time was up; 130 Ctrl-C, 143 SIGTERM, 129 a closed
terminal.
"""

import argparse
import importlib
import io
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from vla_edge_ros import __version__
from vla_edge_ros.ending import exit_code
from vla_edge_ros.errors import UserError
from vla_edge_ros.share import PACKAGE


@dataclass(frozen=True, slots=True)
class Command:
    module: str
    summary: str
    details: str
    examples: tuple[str, ...]


COMMANDS = {
    "demo": Command(
        "vla_edge_ros.nodes.demo",
        "watch the real node move a simulated arm, or work on a camera recording, in real time",
        "Closes the loop around the lifecycle node over DDS: a simulated arm does what it is told. Writes "
        "out/report.html with an animated picture of the episodes, plots and the frames still remembered, "
        "and what can be replayed. Plays a recording as the camera instead where --bag names one, and where "
        "MuJoCo, OpenGL or the trained model is missing, which a line then says.",
        (
            "vla-edge demo",
            "vla-edge demo --instruction 'go to the blue ball' --seconds 30",
            "vla-edge demo --bag my_bag --topic /camera/image_raw --seconds 20 --policy fifo",
        ),
    ),
    "simulate": Command(
        "vla_edge_ros.nodes.simulate",
        "close the loop around the real node: a simulated arm does tasks, in real time",
        "Starts a simulated table with an arm, its camera and its controllers, and the lifecycle node with "
        "the preset tiny-vla, in a ROS domain of their own. Tells for each episode whether the task "
        "succeeded, how many ticks were FRESH and how many publishes late. --expert lets the scripted "
        "expert act on the same topics in the node's place.",
        (
            "vla-edge simulate --task reach --episodes 5",
            "vla-edge simulate --expert --task track --json out/expert.json",
        ),
    ),
    "replay": Command(
        "vla_edge_ros.evaluation.replay",
        "run a bag offline, faster than real time and byte-identically",
        "Runs the same control, memory and engine code on a virtual clock, with a stated or a recorded "
        "service time. The same bag and seed give the same decisions, actions and journal. --ticks needs no "
        "bag: it runs the ticks of a recorded run again and tells the first that differs from its record.",
        (
            "vla-edge replay my_bag --policy semantic --json out/replay.json",
            "vla-edge replay my_bag --topic /camera/image_raw --service-ms 25",
            "vla-edge replay my_bag --times out/demo.json",
            "vla-edge replay --ticks run.jsonl",
        ),
    ),
    "train": Command(
        "training.from_bags.command",
        "fine-tune the small model on recordings of your own arm",
        "Reads images, instructions and joint commands of recordings, says how much memory and time the "
        "training needs, trains the preset tiny-vla and writes weights, dataset_statistics.json, a policy "
        "file and the node's parameters. Called again it goes on where it stopped; it says how far its "
        "actions are from the recorded ones in episodes that it was not trained on. In a checkout alone.",
        (
            "vla-edge train --bag my_bag --action-topic /joint_states --config my_arm.yaml --out out/my_arm",
            "vla-edge train --bag a --bag b --action-topic /arm --action-topic /hand --config arm.yaml",
        ),
    ),
    "report": Command(
        "vla_edge_ros.evaluation.report_command",
        "draw the report of a recorded run again",
        "Reads what demo, replay or the parameter control.record_path wrote and writes one HTML file.",
        ("vla-edge report out/demo.json",),
    ),
    "explain": Command(
        "vla_edge_ros.evaluation.explain.command",
        "say in words why a tick of a recorded run decided as it did",
        "Reads what control.record_path, demo or `replay --json` wrote. Tells of a tick when it began, which "
        "frame it had, what admission predicted, what the engine did, what was published and forgotten, and "
        "what that means for the arm. Without --tick it lists the ticks worth asking for.",
        (
            "vla-edge explain run.jsonl --tick 1234",
            "vla-edge explain out/demo.json --tick last-miss",
            "vla-edge explain run.jsonl --list",
        ),
    ),
    "evaluate": Command(
        "vla_edge_ros.evaluation.forgetting.command",
        "compare eviction policies on recordings, against an oracle",
        "Runs every policy on every recording at every capacity and seed, in several processes, and goes on "
        "where it was interrupted. Writes the figures, the rows and one HTML page with film strips of what "
        "each policy remembers.",
        (
            "vla-edge evaluate my_bags --policies all --report out/forgetting.html",
            "vla-edge evaluate my_bag --policies fifo,novelty --capacities 8,16 --seeds 5",
        ),
    ),
    "gate": Command(
        "vla_edge_ros.engine.gate",
        "check the engine's arithmetic against Hugging Face transformers",
        "Runs the same weights and tokens through the engine and through transformers and compares layer by "
        "layer. Faults planted in the engine must be found. Needs torch and transformers; for --backend cuda "
        "an NVIDIA GPU, which the references use too.",
        ("vla-edge gate", "vla-edge gate --backend cuda --json out/gate.json"),
    ),
    "bench": Command(
        "vla_edge_ros.nodes.bench",
        "measure this machine: camera callback, tick error, publishes, memory",
        "Prints each figure beside what it must be, and ends with exit code 1 where one is missed. It wants "
        "an otherwise idle machine: whatever else runs is measured too.",
        ("vla-edge bench", "vla-edge bench --json out/bench.json"),
    ),
    "inject": Command(
        "vla_edge_ros.nodes.inject",
        "inject faults into the real node and see that it does what docs/faults.md says",
        "Kills, stops, starves and misleads the node and what is around it, in a ROS domain of its own. "
        "Prints the decisions before, during and after each fault, and ends with exit code 1 where the node "
        "did not do what it must.",
        (
            "vla-edge inject engine-killed camera-frozen",
            "vla-edge inject cpu-hogs --seconds 60 --json out/inject.json",
            "vla-edge inject all --param engine.backend=fake --param engine.model=fake:service_ms=5",
        ),
    ),
    "doctor": Command(
        "vla_edge_ros.evaluation.doctor",
        "say what on this machine stands in the way, and which deadline it can promise",
        "Looks at Python, ROS, the Fast DDS profile, real-time priority, memory locking and the engines. "
        "Then runs passes of the engine that the parameters name, and says at which deadline no more than "
        "admission.target_miss_rate of the ticks would miss, or at which rate so few ticks can show it.",
        ("vla-edge doctor", "vla-edge doctor --seconds 101 --param engine.backend=cuda"),
    ),
}


def _extra(name: str) -> str:
    """The package is on no index: its extras are installed from a checkout."""
    return f"install the {name} extra, in the package's folder: pip install -e '.[{name}]'"


PROVIDERS = {
    "rclpy": "source a ROS 2 distribution, or use scripts/demo.sh, which brings its own",
    "cv2": "pip install opencv-python-headless, or apt-get install python3-opencv",
    "torch": _extra("test"),
    "transformers": _extra("test"),
    "pycuda": _extra("gpu"),
    "cuda": _extra("gpu"),
    "pyarrow": _extra("evaluate"),
    "mujoco": _extra("simulation"),
    "training": "it is in the package's checkout and is not installed: pip install -e '.[training]' there",
    "ray": _extra("cluster"),
}
"""Where a missing module comes from; one that is not named here has its own name on PyPI."""


_OF_TRAINING = ("torch", "safetensors", "mujoco")
"""`train` has an extra of its own with these."""


def main(argv: list[str] | None = None) -> int:
    """Run `vla-edge` with `argv` (default: the process's arguments); returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for a terminal that cannot show a dash
    argv = sys.argv[1:] if argv is None else argv
    name = next((word for word in argv if not word.startswith("-")), None)
    return exit_code(f"vla-edge {name}" if name else "vla-edge", lambda: _run(name, argv))


def _run(name: str | None, argv: list[str]) -> int:
    """Raises UserError for a Python module that is not there, among others."""
    try:
        module = _import(COMMANDS[name].module) if name in COMMANDS else None
        args = _parser(name, module).parse_args(argv)
        return module.run(args)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in ("", PACKAGE):
            raise
        provider = PROVIDERS.get(missing, f"pip install {missing}")
        if name == "train" and missing in _OF_TRAINING:
            provider = _extra("training")
        raise UserError(f"the Python module {missing} is missing: {provider}") from None
    except ImportError as error:
        if PACKAGE in str(error):
            raise
        raise UserError(f"a Python module cannot be loaded: {error}") from None


def _import(module: str) -> ModuleType:
    """A subcommand's module; one that is not of the package lies beside it in the checkout."""
    checkout = str(Path(__file__).resolve().parents[1])
    if not module.startswith(f"{PACKAGE}.") and checkout not in sys.path:
        sys.path.append(checkout)
    return importlib.import_module(module)


def _parser(chosen: str | None, module) -> argparse.ArgumentParser:
    """The whole command's parser; of the subcommands only the chosen one has its arguments."""
    parser = argparse.ArgumentParser(
        prog="vla-edge",
        description="A vision-language-action transformer inside a hard control deadline and a fixed memory "
        "budget.",
        epilog="`vla-edge COMMAND --help` says more. On a robot: ros2 launch vla_edge_ros edge.launch.py",
    )
    parser.add_argument("--version", action="version", version=f"vla-edge {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=command.summary,
            description=textwrap.fill(command.details),
            epilog="examples:\n" + "\n".join(f"  {example}" for example in command.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:
            module.add_arguments(subparser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
