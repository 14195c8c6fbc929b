"""What the steps of a measurement leave: written and read alike, and put together only where they belong."""

import pytest

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.record_parts import (
    files_sha256,
    read_part,
    require_alike,
    run_module,
    versions,
    write_part,
)


def test_a_part_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "parts/live.json"
    write_part(path, "live", {"sources_sha256": "5" * 64}, ["numpy"], lambda: {"ticks": 3})
    part = read_part(path, "live", ("sources_sha256", "device", "machine", "date", "versions", "wall_s"))
    assert (part["figures"], part["sources_sha256"]) == ({"ticks": 3}, "5" * 64)
    with pytest.raises(UserError, match="run the step study again"):
        read_part(path, "study", ())
    with pytest.raises(UserError, match="no part of a record"):
        read_part(path, "live", ("weights_sha256",))


def test_a_part_that_cannot_be_read_is_named_once_with_what_to_do(tmp_path):
    path = tmp_path / "live.json"
    path.mkdir()
    with pytest.raises(UserError) as refused:
        read_part(path, "live", ())
    assert (
        str(refused.value) == f"{path}: cannot be read: Is a directory; remove it and run the step live again"
    )


def test_parts_of_one_step_that_differ_are_all_told():
    parts = [{"step": "live", "device": device} for device in ("one", "one", "another")]
    with pytest.raises(UserError, match="different device: live of one, live of another;"):
        require_alike(parts, ["step", "device"])
    require_alike(parts[:2], ["step", "device"])


def test_the_hash_knows_names_and_contents_of_the_files_that_match(tmp_path):
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "notes.txt").write_text("1")
    before = files_sha256(tmp_path, ["*.py"])
    (tmp_path / "notes.txt").write_text("2")
    assert files_sha256(tmp_path, ["*.py"]) == before
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert files_sha256(tmp_path, ["*.py"]) != before


def test_packages_that_are_missing_have_no_version():
    assert versions(["numpy", "no-such-package"]).keys() == {"python", "numpy"}


def test_a_module_that_writes_nothing_is_named_with_its_exit_code():
    with pytest.raises(UserError, match="no_such_module ended with exit code 1 and measured nothing"):
        run_module("no_such_module")


def test_a_part_with_values_of_another_kind_is_refused_by_name(tmp_path):
    path = tmp_path / "live.json"
    path.write_text('{"step": "live", "sources_sha256": 2, "figures": {}}')
    with pytest.raises(
        UserError, match="sources_sha256 is 2, wanted a text: remove it and run the step live"
    ):
        read_part(path, "live", ("sources_sha256",))
