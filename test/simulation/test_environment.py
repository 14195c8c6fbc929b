import subprocess
import sys
from pathlib import Path

import mujoco.egl
import numpy as np
import pytest

from vla_edge_ros.actions.policy import Kind
from vla_edge_ros.simulation.environment import HOLD, Environment, arm_policy
from vla_edge_ros.simulation.expert import HOVER_M, pose_above
from vla_edge_ros.simulation.renderer import NoRenderer
from vla_edge_ros.simulation.scene import JOINTS, N_JOINTS, N_OBJECTS, Scene
from vla_edge_ros.simulation.tasks import TASKS

ROOT = Path(__file__).resolve().parents[2]


def history(environment, seed, task, n_ticks=40):
    """Joints and objects of an episode's first ticks under the expert."""
    environment.reset(seed, task)
    states = []
    for _ in range(n_ticks):
        joints = environment.step(environment.expert_action()).joint_positions
        objects = [environment.scene.object_place(i) for i in range(N_OBJECTS)]
        states.append(np.concatenate([joints, *objects]))
    return np.array(states)


@pytest.mark.parametrize("task", TASKS)
def test_an_episode_is_fixed_by_its_seed(environment, task):
    first = history(environment, 7, task)
    history(environment, 8, task, n_ticks=3)
    assert np.array_equal(history(environment, 7, task), first)
    assert not np.array_equal(history(environment, 8, task), first)


def test_pictures_are_fixed_by_the_seed_and_show_the_arm_move(has_renderer):
    environment = Environment()
    first = environment.reset(3, "reach").frame
    assert first.shape == (64, 128, 3)
    assert first.dtype == np.uint8
    for _ in range(20):
        later = environment.step(environment.expert_action()).frame
    assert (later != first).any(axis=2).sum() > 50
    assert np.array_equal(environment.reset(3, "reach").frame, first)
    assert not np.array_equal(environment.reset(4, "reach").frame, first)
    environment.close()


def test_two_environments_render_side_by_side(has_renderer):
    pictures = []
    environments = [Environment(), Environment()]
    for _ in range(2):
        pictures += [environment.reset(3, "reach").frame for environment in environments]
    assert pictures[0].std() > 10
    assert all(np.array_equal(pictures[0], picture) for picture in pictures)
    for environment in environments:
        environment.close()


def test_an_environment_that_does_not_render_needs_no_opengl(monkeypatch):
    def refuse(*_):
        raise RuntimeError("no display")

    monkeypatch.setattr(mujoco.egl, "GLContext", refuse)
    environment = Environment(renders=False)
    assert environment.reset(0, "reach").frame is None
    with pytest.raises(NoRenderer, match=r"no display.*apt-get install libegl1 libgl1-mesa-dri"):
        environment.render()


@pytest.mark.parametrize("latency_ticks", [0, 1, 4])
def test_an_action_has_effect_after_the_latency(latency_ticks):
    environment = Environment(renders=False, latency_ticks=latency_ticks)
    start = environment.reset(0, "reach").joint_positions
    push = np.array([0.03, *[0.0] * (N_JOINTS - 1), 1.0])
    moved = []
    for tick in range(8):
        joints = environment.step(push if tick == 0 else HOLD).joint_positions
        moved.append(abs(joints[0] - start[0]) > 1e-3)
    assert moved == [tick >= latency_ticks for tick in range(8)]


def test_holding_leaves_the_arm_and_the_gripper_where_they_are(environment):
    environment.reset(0, "remember")
    for _ in range(10):
        environment.step(np.array([*[0.0] * N_JOINTS, 0.0]))
    closed = environment.scene.gripper
    joints = environment.scene.joint_positions
    for _ in range(30):
        environment.step(HOLD)
    assert closed < 0.3
    assert environment.scene.gripper < 0.05
    assert np.abs(environment.scene.joint_positions - joints).max() < 1e-3


def test_no_action_moves_a_joint_faster_than_its_limit_or_past_its_range(environment):
    environment.reset(0, "reach")
    limits = [dimension.max_velocity for dimension in arm_policy().dimensions][:N_JOINTS]
    last = environment.scene.data.ctrl[:N_JOINTS].copy()
    for _ in range(90):
        environment.step(np.full(8, 10.0))
        now = environment.scene.data.ctrl[:N_JOINTS].copy()
        assert (np.abs(now - last) <= np.array(limits) / 30 + 1e-9).all()
        last = now
    highest = [dimension.max for dimension in arm_policy().dimensions][:N_JOINTS]
    assert (last <= np.array(highest) + 1e-9).all()
    assert np.abs(environment.scene.joint_positions - highest).max() < 0.02


def test_the_policy_file_is_of_the_scenes_arm():
    policy, scene = arm_policy(), Scene()
    assert [dimension.name for dimension in policy.dimensions] == [*JOINTS, "gripper"]
    assert [dimension.kind for dimension in policy.dimensions] == [Kind.JOINT_DELTA] * 7 + [Kind.GRIPPER]
    ranges = [[dimension.min, dimension.max] for dimension in policy.dimensions[:N_JOINTS]]
    assert np.allclose(ranges, scene.joint_range)
    assert policy.warnings == []


@pytest.mark.parametrize("corner", [(-0.36, -0.16), (0.36, -0.16), (-0.36, 0.16), (0.36, 0.16), (0.0, 0.16)])
def test_the_hand_points_down_over_every_corner(corner):
    scene = Scene()
    pose_above(scene, np.array(corner))
    assert np.allclose(scene.tip, [*corner, HOVER_M], atol=3e-3)
    assert scene.tip_axes[2, 2] < -0.999


def test_an_unknown_task_is_refused_by_name(environment):
    with pytest.raises(ValueError, match="task is 'pour'; known are reach, track, remember, switch"):
        environment.reset(0, "pour")


def test_a_program_that_does_not_close_its_renderer_ends_without_complaint(has_renderer):
    program = (
        "from vla_edge_ros.simulation.environment import Environment\n"
        "environment = Environment()\n"
        "print(environment.reset(0, 'reach').frame.shape)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (ran.stdout, ran.stderr) == ("(64, 128, 3)\n", "")
