"""`python -m training.look_away MODEL`: does a frame that comes back from the host ring help to remember?

Episodes of *remember* in which the camera sees nothing but grey noise from the end of the cue until a second
before the lamp turns green, long enough for a memory of a few frames to lose the cue. The arm rests.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from training.evaluate import SMALL_FRAMES, in_words, slots_for
from vla_edge_ros.arguments import whole
from vla_edge_ros.figures import proportion
from vla_edge_ros.memory.slots import FRAME_TOKENS
from vla_edge_ros.simulation.environment import HOLD, Environment
from vla_edge_ros.simulation.model_actor import DEPLOYMENT, ModelActor
from vla_edge_ros.simulation.tasks import Remember

LEAST_WAIT_S = 10.0
"""Shorter waits leave the cue in a memory of `SMALL_FRAMES`."""

BACK_S = 1.0
"""So long before the lamp the camera sees the table again."""

HOST_BYTES = 16_000_000
CONDITIONS = {
    "all frames": {"memory.slots": 1024},
    "fifo": {},
    "fifo and ring": {"memory.host_bytes": HOST_BYTES},
}


def run_episode(environment: Environment, actor: ModelActor, seed: int) -> tuple[bool, bool] | None:
    """Whether the episode succeeded, and whether a frame of the cue was in memory when the lamp turned green;
    None where its wait is too short."""
    observation = environment.reset(seed, Remember.name)
    task = environment.task
    if task.lamp_s - task.cue_ends_s < LEAST_WAIT_S:
        return None
    actor.begin()
    grey, stride = np.random.default_rng(seed), DEPLOYMENT["memory.stride_ticks"]
    cued: set[int] = set()
    remembers = False
    while not environment.is_over:
        now_s = environment.time_s
        is_back = now_s >= task.lamp_s - BACK_S
        sees_table = is_back or now_s < task.cue_ends_s
        action = HOLD
        # While the arm rests, passes matter where their frame is retained.
        if is_back or observation.tick % stride <= 1:
            frame = environment.render() if sees_table else grey.integers(118, 138, (64, 128, 3), np.uint8)
            action = actor.act(replace(observation, frame=frame))
            if sees_table and task.has_cue:
                cued.add(observation.tick)
        if now_s < task.lamp_s:
            action = HOLD
            remembers = any(frame.meta.capture_ns in cued for frame in actor.memory.frames)
        observation = environment.step(action)
    return environment.has_succeeded, remembers


def study(model: str, episodes: int) -> Iterator[tuple[str, dict, dict]]:
    """By condition: `proportion` of successes, and of episodes in which the cue was in memory at the lamp."""
    environment = Environment(renders=False)
    instruction = environment.reset(0, Remember.name).instruction
    base = DEPLOYMENT | {
        "engine.model": model,
        "memory.policy": "fifo",
        "memory.embedding": "patch_signature",
    }
    for name, changes in CONDITIONS.items():
        slots = {"memory.slots": slots_for(SMALL_FRAMES, instruction)}
        actor = ModelActor(base | slots | changes)
        outcomes: list[tuple[bool, bool]] = []
        seed = 0
        while len(outcomes) < episodes:
            outcome = run_episode(environment, actor, seed)
            outcomes += [outcome] if outcome is not None else []
            seed += 1
        actor.close()
        successes, remembered = zip(*outcomes, strict=True)
        yield name, proportion(list(successes)), proportion(list(remembered))
    environment.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m training.look_away")
    parser.add_argument("model", nargs="?", default="tiny-vla", help="a preset or a directory")
    parser.add_argument("--episodes", type=whole(1), default=40, help="of each condition (default: 40)")
    arguments = parser.parse_args()
    print(f"memory of {SMALL_FRAMES} frames of {FRAME_TOKENS} tokens, {arguments.episodes} episodes each")
    for name, success, remembered in study(arguments.model, arguments.episodes):
        print(in_words(name, success))
        print(in_words("  cue in memory", remembered), flush=True)


if __name__ == "__main__":
    main()
