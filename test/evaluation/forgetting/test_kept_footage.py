"""Footage that an evaluation kept is used again for the recording that it was made of, and for no other."""

import os
import shutil

import pytest
from recorded import write_rosbag2

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.bags import BagRefused
from vla_edge_ros.evaluation.forgetting import kept_footage
from vla_edge_ros.evaluation.forgetting.kept_footage import keep, load_footage


@pytest.fixture
def recording(tmp_path):
    return write_rosbag2(tmp_path / "one" / "bag", n_images=12)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "bag.npz"


def test_a_recording_is_read_once(recording, file, monkeypatch):
    first = keep(recording, None, file)
    assert (first.n_images, len(first.digest)) == (12, 12)
    monkeypatch.setattr(kept_footage, "read_footage", lambda *_: pytest.fail("read again"))
    assert keep(recording, None, file) == first


def test_another_recording_of_that_name_is_refused_with_both(recording, file, tmp_path):
    keep(recording, None, file)
    other = write_rosbag2(tmp_path / "two" / "bag", n_images=12)
    with pytest.raises(UserError) as refusal:
        keep(other, None, file)
    said = str(refusal.value)
    assert said.startswith(f"{other}: {file} was made of {recording} (")
    assert f"wanted {other} (" in said and said.endswith("give another --out")


def test_a_recording_that_has_changed_is_refused(recording, file):
    keep(recording, None, file)
    (part,) = recording.glob("*.mcap")
    os.utime(part, ns=(0, part.stat().st_mtime_ns + 1))
    with pytest.raises(UserError, match="give another --out"):
        keep(recording, None, file)


def test_a_recording_that_is_no_longer_there_is_refused(recording, file):
    keep(recording, None, file)
    shutil.rmtree(recording)
    with pytest.raises(BagRefused, match="bag: no such file or folder"):
        keep(recording, None, file)


def test_another_topic_is_another_source(tmp_path, file):
    recording = write_rosbag2(tmp_path / "bag", topics=("/left", "/right"))
    with pytest.raises(BagRefused, match="--topic"):
        keep(recording, None, file)
    keep(recording, "/left", file)
    with pytest.raises(UserError, match=r"was made of .* \(/left, .*; wanted .* \(/right, "):
        keep(recording, "/right", file)


@pytest.mark.parametrize("n_bytes", [0, 100, -100])
def test_footage_that_was_cut_is_read_anew(recording, file, n_bytes):
    first = keep(recording, None, file)
    file.write_bytes(file.read_bytes()[:n_bytes])
    assert keep(recording, None, file) == first
    assert len(load_footage(file).frames) == 12


def test_footage_without_its_source_is_read_anew(recording, file):
    first = keep(recording, None, file)
    kept_footage.np.savez(file, frames=load_footage(file).frames[:3], times_s=load_footage(file).times_s[:3])
    assert keep(recording, None, file) == first
