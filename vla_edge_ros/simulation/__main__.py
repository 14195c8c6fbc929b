"""`python -m vla_edge_ros.simulation`: how often the scripted expert succeeds, task by task."""

import argparse
import time

from vla_edge_ros.arguments import whole
from vla_edge_ros.figures import proportion
from vla_edge_ros.simulation.environment import Environment
from vla_edge_ros.simulation.tasks import TASKS
from vla_edge_ros.simulation.trial import ExpertActor, run_episodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m vla_edge_ros.simulation")
    parser.add_argument("--task", choices=list(TASKS), action="append", help="default: all of them")
    parser.add_argument("--episodes", type=whole(1), default=200, help="of each task (default: 200)")
    parser.add_argument("--first-seed", type=whole(0), default=0)
    parser.add_argument("--fresh-every", type=whole(1), default=1, help="act on every n-th tick (default: 1)")
    parser.add_argument("--latency-ticks", type=whole(0), default=1, help="from frame to action (default: 1)")
    arguments = parser.parse_args()
    environment = Environment(renders=False, latency_ticks=arguments.latency_ticks)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.episodes)
    for task in arguments.task or TASKS:
        began = time.monotonic()
        episodes = run_episodes(environment, ExpertActor(environment), task, seeds, arguments.fresh_every)
        success = proportion([episode.has_succeeded for episode in episodes])
        low, high = success["ci95"]
        simulated_s = sum(episode.seconds for episode in episodes)
        print(
            f"{task:9} {success['value']:.3f} of {success['episodes']} (95 %: {low:.3f} to {high:.3f}), "
            f"{simulated_s / len(episodes):.1f} s an episode, {simulated_s / (time.monotonic() - began):.0f} "
            "times faster than real time"
        )


if __name__ == "__main__":
    main()
