import numpy as np
import pytest

from vla_edge_ros.simulation import cue_table
from vla_edge_ros.simulation.environment import Environment


def test_pairs_are_told_apart_by_whether_one_of_them_has_the_cue():
    right, up = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    # The pair of both cues says nothing of either kind.
    with_cue, without = cue_table.seen([right, up, up, right], [False, True, True, False])
    assert with_cue == [0.0] * 4
    assert without == [1.0]


def test_the_chance_of_being_less_alike_counts_equal_pairs_half():
    assert cue_table.less_alike([0.1, 0.2], [0.3, 0.4]) == 1.0
    assert cue_table.less_alike([0.3], [0.1, 0.3, 0.5]) == pytest.approx(0.5)


def test_frames_are_those_that_a_stride_retains_up_to_the_lamp(has_renderer):
    environment = Environment(renders=False)
    frames, has_cue = cue_table.waiting_frames(environment, 1)
    lamp_tick = environment.task.lamp_s * 30
    environment.close()
    assert len(frames) == len(np.arange(1, lamp_tick, 28))
    assert 1 <= sum(has_cue) <= 2


def test_every_embedding_has_its_line(has_renderer, capsys):
    assert cue_table.main(["--model", "tiny", "--episodes", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["pooled", "patch_signature", "key_summary"]
