import numpy as np
import pytest

from vla_edge_ros.evaluation.forgetting import embedding_table
from vla_edge_ros.evaluation.forgetting.embedding_table import CHANGES, answers, cosine, embedder
from vla_edge_ros.evaluation.forgetting.footage import read_footage
from vla_edge_ros.evaluation.forgetting.trial_model import TrialModel
from vla_edge_ros.share import share_directory

SAMPLE = share_directory() / "recordings/sample"
REAL = ["bridge_widowx", "wrist_so101_jpeg", "desk_cup_jpeg", "street_raw", "street_zstd"]


@pytest.fixture(scope="module")
def model():
    return TrialModel("tiny", 0, n_slots=64, action_tokens=1)


def judged(path, model):
    frames = read_footage(path).every(8, seed=0).frames
    return answers(frames, embedder("patch_signature", model))


def check(seen):
    assert np.median(seen["exposure +20 %"]) >= 0.99
    assert np.median(seen["noise, 5 levels"]) >= 0.99
    assert np.median(seen["an object moves by a patch"]) < np.median(seen["exposure +20 %"]) - 0.01


def test_a_signature_sees_motion_and_not_exposure_on_the_sample(model):
    check(judged(SAMPLE, model))


@pytest.mark.parametrize("name", REAL)
def test_a_signature_sees_motion_and_not_exposure_on_real_recordings(name, model, shared):
    check(judged(shared / "recordings" / name, model))


def test_the_pooled_mean_of_the_reference_sees_exposure_more_than_motion(model):
    frames = read_footage(SAMPLE).every(8, seed=0).frames
    seen = answers(frames, embedder("pooled", model))
    assert np.median(seen["an object moves by a patch"]) > np.median(seen["exposure -20 %"]) + 0.1


def test_the_key_summary_is_that_of_a_frame_alone(model):
    frames = read_footage(SAMPLE).every(2, seed=0).frames
    embed = embedder("key_summary", model)
    first = embed(frames[0])
    assert first.shape == (32 * 64,)
    np.testing.assert_allclose(np.linalg.norm(first.reshape(32, 64), axis=1), 1.0, rtol=1e-5)
    assert cosine(first, embed(frames[0])) == pytest.approx(1.0)
    assert cosine(first, embed(frames[1])) < 0.999


def test_the_table_has_a_row_for_every_change(capsys):
    assert embedding_table.main([str(SAMPLE)]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in CHANGES)


def test_what_is_no_recording_ends_with_one_line(tmp_path, capsys):
    assert embedding_table.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
