"""`python -m training.expert_bag OUT`: the simulation's expert as a recording, as of a real arm."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from rosbags.rosbag2 import StoragePlugin, Writer

from vla_edge_ros.actions.policy import Policy
from vla_edge_ros.arguments import whole
from vla_edge_ros.evaluation.message_types import (
    IMAGE,
    JOINT_STATE,
    NS_PER_S,
    STRING,
    header,
    image_message,
    ros2_types,
)
from vla_edge_ros.rendering import why_no_renderer
from vla_edge_ros.simulation.commanded import CONTROL_HZ, arm_policy
from vla_edge_ros.simulation.environment import Environment
from vla_edge_ros.simulation.tasks import TASKS

IMAGE_TOPIC, INSTRUCTION_TOPIC, JOINTS_TOPIC = "/image", "/instruction", "/joint_states"
_START_NS = 1_760_000_000 * NS_PER_S
_PAUSE_NS = 2 * NS_PER_S
_TRANSPORT_NS = 2_000_000


def write_expert_bag(folder: Path, task: str, seeds: Iterable[int]) -> int:
    """Episodes of the expert with pauses between, into the new `folder`; returns the number of frames.

    Joint states are the measured ones, with the opening of the gripper as it was commanded.
    Raises NoRenderer.
    """
    store, policy = ros2_types(), arm_policy()
    environment = Environment()
    episode_ns, n_frames = _START_NS, 0
    with Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        topics = {
            name: writer.add_connection(name, type_name, typestore=store)
            for name, type_name in (
                (IMAGE_TOPIC, IMAGE), (INSTRUCTION_TOPIC, STRING), (JOINTS_TOPIC, JOINT_STATE)
            )
        }  # fmt: skip

        def write(name: str, message: object, at_ns: int) -> None:
            connection = topics[name]
            writer.write(connection, at_ns, store.serialize_cdr(message, connection.msgtype))

        for seed in seeds:
            observation = environment.reset(seed, task)
            instruction, gripper, now_ns = None, 1.0, episode_ns
            while True:
                now_ns = episode_ns + observation.tick * NS_PER_S // CONTROL_HZ
                if observation.instruction != instruction:
                    instruction = observation.instruction
                    write(INSTRUCTION_TOPIC, store.types[STRING](data=instruction), now_ns)
                state = _joint_state(policy, np.append(observation.joint_positions, gripper), now_ns)
                write(JOINTS_TOPIC, state, now_ns)
                image = image_message(observation.frame, "rgb8", now_ns, "camera")
                write(IMAGE_TOPIC, image, now_ns + _TRANSPORT_NS)
                n_frames += 1
                if environment.is_over:
                    break
                action = environment.expert_action()
                gripper = float(action[-1])
                observation = environment.step(action)
            episode_ns = now_ns + _PAUSE_NS
    environment.close()
    return n_frames


def _joint_state(policy: Policy, positions: np.ndarray, stamp_ns: int) -> object:
    nothing = np.empty(0)
    names = [dimension.name for dimension in policy.dimensions]
    return ros2_types().types[JOINT_STATE](
        header=header(stamp_ns, ""), name=names, position=positions, velocity=nothing, effort=nothing
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m training.expert_bag")
    parser.add_argument("out", type=Path, help="folder to make; it must not be there yet")
    parser.add_argument("--task", choices=list(TASKS), default="reach", help="default: %(default)s")
    parser.add_argument("--episodes", type=whole(1), default=40, help="default: %(default)s")
    parser.add_argument(
        "--seed", type=whole(0), default=2_000_000, help="of the first (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if arguments.out.exists():
        print(f"{arguments.out}: already there; name a new folder", file=sys.stderr)
        return 2
    if (reason := why_no_renderer()) is not None:
        print(reason, file=sys.stderr)
        return 2
    seeds = range(arguments.seed, arguments.seed + arguments.episodes)
    n_frames = write_expert_bag(arguments.out, arguments.task, seeds)
    print(f"{arguments.out}: {arguments.episodes} episodes, {n_frames} frames")
    return 0


if __name__ == "__main__":
    sys.exit(main())
