"""The steps of the GPU check: each leaves its part, whatever came of it, and only what fits is merged."""

import json

import pytest

from vla_edge_ros.engine.cuda.sources import sources_sha256
from vla_edge_ros.evaluation import gpu_check
from vla_edge_ros.evaluation.faults import FAULTS
from vla_edge_ros.evaluation.gpu_check import main


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """Runs the check with steps that do what `outcomes` says: an exit code and figures."""
    outcomes = {
        "passes": (0, {"pass_ms_p50": 7.0}),
        "node": (0, {"late_publishes": 0}),
        "gate": (1, {}),
    }
    steps = {name: lambda options, folder, name=name: outcomes[name] for name in outcomes}
    monkeypatch.setattr(gpu_check, "STEPS", steps)
    monkeypatch.setattr(gpu_check.nvidia_smi, "device_and_driver", lambda: ("NVIDIA H200", "580"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        code = main([*words, "--parts", "parts"])
        return code, "".join(capsys.readouterr())

    run.outcomes = outcomes
    run.record = lambda: json.loads((tmp_path / "docs/benchmarks/h200.json").read_text())
    run.part = lambda step: json.loads((tmp_path / f"parts/{step}.json").read_text())
    run.folder = tmp_path
    return run


def test_all_steps_run_one_after_another_and_one_that_fails_hides_no_other(check):
    code, text = check()
    assert code == 1
    assert check.part("gate")["exit_code"] == 1
    record = check.record()
    assert (record["pass_ms_p50"], record["late_publishes"], record["token_agreement"]) == (7.0, 0, None)
    assert record["sources_sha256"] == sources_sha256()
    assert "the step gate ended with exit code 1" in text and "written: docs/benchmarks/h200.json" in text


def test_steps_may_run_in_calls_of_their_own(check):
    assert check("passes")[0] == 0
    assert check("node")[0] == 0
    assert not (check.folder / "docs").exists()
    assert check("record")[0] == 1  # most musts were not measured
    assert check.record()["steps"].keys() == {"passes", "node"}


def test_a_step_that_is_run_again_leaves_nothing_of_the_run_before(check):
    check("passes")
    check.outcomes["passes"] = (1, {})
    assert check("passes")[0] == 1
    assert check.part("passes")["figures"] == {}
    check.outcomes["passes"] = None
    with pytest.raises(TypeError):
        check("passes")
    assert not (check.folder / "parts/passes.json").exists()


def test_parts_of_other_sources_are_refused_in_one_line_and_write_no_record(check):
    check("passes", "node")
    path = check.folder / "parts/passes.json"
    path.write_text(json.dumps(check.part("passes") | {"sources_sha256": "0" * 64}))
    code, text = check("record")
    assert code == 2 and "different sources_sha256" in text and text.count("\n") == 1
    (check.folder / "parts/node.json").unlink()
    code, text = check("record")
    assert code == 2 and "older than the sources" in text and text.count("\n") == 1
    assert not (check.folder / "docs").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"step": "node"}'])
def test_a_file_that_is_no_part_is_refused_by_name(check, text):
    check("passes")
    (check.folder / "parts/passes.json").write_text(text)
    code, said = check("record")
    assert code == 2 and "passes.json" in said and said.count("\n") == 1


def test_without_parts_there_is_no_record(check):
    code, text = check("record")
    assert code == 2 and "run a step first" in text


def test_every_fault_of_a_gpu_is_injected_on_one():
    assert set(gpu_check.FAULTS) <= FAULTS.keys()
    of_a_gpu = {name for name, fault in FAULTS.items() if fault.backends == ("cuda",)}
    assert of_a_gpu | {"idle-gap"} <= set(gpu_check.FAULTS)


def test_a_command_that_writes_nothing_has_failed(tmp_path):
    assert gpu_check._measured(tmp_path / "a.json", "-c", "pass") == (1, {})
    assert gpu_check._measured(tmp_path / "a.json", "-c", "raise SystemExit(3)") == (3, {})
    writes = "import sys; open(sys.argv[-1], 'w').write('{\"figure\": 1}'); raise SystemExit(1)"
    assert gpu_check._measured(tmp_path / "a.json", "-c", writes) == (1, {"figure": 1})
