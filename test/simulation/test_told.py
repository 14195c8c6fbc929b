"""What someone tells the arm while an episode runs, and how that is judged."""

import numpy as np
import pytest

from vla_edge_ros.simulation.live_table import LiveTable
from vla_edge_ros.simulation.opening import open_episode
from vla_edge_ros.simulation.scene import Scene
from vla_edge_ros.simulation.told import Told, object_named, seed_for

MS = 1_000_000


@pytest.fixture
def scene():
    return Scene()


@pytest.fixture
def laid(scene):
    task, _ = open_episode(scene, 3, "reach")
    return task


def names(scene):
    return list(scene.objects)


def test_the_table_knows_what_lies_on_it_until_it_is_cleared(scene, laid):
    assert len(names(scene)) == 4
    assert laid.instruction.removeprefix("go to the ") in names(scene)
    open_episode(scene, 3, "track")
    assert len(names(scene)) == 2


def test_what_is_told_succeeds_where_the_tip_stays_on_the_object_named(scene, laid):
    name = names(scene)[2]
    told = Told(scene, laid, f"Go to the {name.upper()}!", 4.0)
    place = scene.object_place(scene.objects[name])
    assert np.array_equal(told.target, place)
    told.judge(4.5, place)
    told.judge(5.4, place)
    assert not told.is_over
    told.judge(5.5, place)
    assert told.is_over and told.has_succeeded


def test_what_is_told_fails_six_seconds_after_the_telling(scene, laid):
    told = Told(scene, laid, f"go to the {names(scene)[0]}", 4.0)
    told.judge(9.9, np.zeros(2))
    assert not told.is_over
    told.judge(10.0, np.zeros(2))
    assert told.is_over and not told.has_succeeded


@pytest.mark.parametrize(
    "text", ["", "fly to the moon", "go to the {0} or to the {1}", "go to the purple cube"]
)
def test_a_text_that_names_no_one_object_has_no_goal_and_does_not_succeed(scene, laid, text):
    told = Told(scene, laid, text.format(*names(scene)), 0.0)
    assert np.isnan(told.target).all()
    told.judge(5.0, np.zeros(2))
    told.judge(6.0, np.zeros(2))
    assert told.is_over and not told.has_succeeded


def test_an_object_that_wanders_is_followed_by_the_goal(scene):
    task, _ = open_episode(scene, 3, "track")
    told = Told(scene, task, task.instruction, 0.0)
    before = told.target
    told.show(3.0)
    assert np.linalg.norm(told.target - before) > 0.05


def test_a_seed_is_found_whose_table_has_what_a_text_names(scene):
    for text in ("go to the blue ball", "go to the yellow can"):
        seed = seed_for(text, "reach", 3)
        open_episode(scene, seed, "reach")
        assert seed >= 3 and object_named(scene, text) is not None
    assert seed_for("fly to the moon", "reach", 3) == 3


def run(table, until_ms):
    for t in range(round(1000 * table.time_s), until_ms + 1, 10):
        table.run_to(t * MS)


def test_the_task_s_own_words_do_not_come_back_once_someone_has_told_the_arm():
    table = LiveTable(3, "switch", 0)
    own = table.task.instruction
    run(table, 300)
    table.instruct("fly to the moon")
    run(table, 4000)  # the task would have switched its words within 2.5 s
    assert table.task.instruction == "fly to the moon"
    assert np.isnan(table.distance_m)
    table.reset(3, "switch", 4000 * MS)
    assert table.task.instruction == own


def test_to_be_told_what_is_asked_already_changes_nothing():
    table = LiveTable(3, "switch", 0)
    task = table.task
    table.instruct(task.instruction)
    assert table.task is task


def test_an_episode_may_begin_with_another_instruction():
    table = LiveTable(3, "reach", 0, "fly to the moon")
    assert table.task.instruction == "fly to the moon"
    table.reset(4, "reach", 0, "swim")
    assert table.task.instruction == "swim"
