"""Files that commands write for their user, and the lines that say why they cannot."""

import os
from pathlib import Path

import pytest

from vla_edge_ros import output
from vla_edge_ros.errors import UserError


def test_the_folder_is_made_and_nothing_else(tmp_path):
    output.prepare(tmp_path / "out/today/demo.json")
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out/today"]
    assert list((tmp_path / "out/today").iterdir()) == []


def test_a_file_that_is_there_stays_as_it_is_until_it_is_written(tmp_path):
    path = tmp_path / "demo.json"
    path.write_text("before")
    output.prepare(path)
    assert path.read_text() == "before"
    output.write_text(path, "after")
    assert path.read_text() == "after"


def test_a_pipe_is_not_opened_before_there_is_something_to_write(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    output.prepare(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("folder", "Is a directory"),
        ("file/demo.json", "its folder is a file"),
        ("file/deeper/demo.json", "its folder is a file"),
        ("n" * 300, "File name too long"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(tmp_path, name, reason):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"cannot be written: .*{reason}"):
        output.prepare(tmp_path / name)


def test_a_full_disk_is_said_when_it_is_met():
    output.prepare(Path("/dev/full"))
    with pytest.raises(UserError, match="/dev/full: cannot be written: No space left"):
        output.write_text(Path("/dev/full"), "x" * 100_000)


def test_text_from_a_broken_command_line_is_written_all_the_same(tmp_path):
    output.write_text(tmp_path / "page.html", "say \udcff")
    assert (tmp_path / "page.html").read_text() == "say ?"
