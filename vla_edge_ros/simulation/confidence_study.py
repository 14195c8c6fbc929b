"""Whether the confidence tells that an instruction is not known, and what the arm does with it.

    python -m vla_edge_ros.simulation.confidence_study

Equal tables, told one text after another. docs/findings.md has the figures.
"""

import argparse
import sys

from vla_edge_ros.arguments import whole
from vla_edge_ros.errors import UserError
from vla_edge_ros.simulation.closed_loop import ClosedLoop
from vla_edge_ros.simulation.commanded import arm_policy_file
from vla_edge_ros.simulation.latency_study import constant
from vla_edge_ros.simulation.model_actor import DEPLOYMENT

TEXTS = {
    "the task's own": "",
    "an object of no table": "go to the orange pyramid",
    "other words": "make me a cup of tea",
    "no words": "qwzx jkvb 0193",
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="confidence_study", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tiny-vla", help="as engine.model (default: %(default)s)")
    parser.add_argument("--episodes", type=whole(1), default=20, help="for each text (default: %(default)s)")
    args = parser.parse_args(argv)
    own = {"engine.model": args.model, "actions.policy_file": arm_policy_file()}
    try:
        loop = ClosedLoop(DEPLOYMENT | own, constant(0))
    except UserError as error:
        print(f"confidence_study: {error}", file=sys.stderr)
        return 2
    print("| told | confidence, mean | of episodes | the tip moved, m |\n|---|---|---|---|")
    for name, text in TEXTS.items():
        episodes = loop.run("reach", range(args.episodes), text)
        sure = [episode.confidence for episode in episodes]
        moved_m = sum(episode.moved_m for episode in episodes) / len(episodes)
        mean = sum(sure) / len(sure)
        print(f"| {name} | {mean:.3f} | {min(sure):.3f} to {max(sure):.3f} | {moved_m:.2f} |", flush=True)
    loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
