"""`vla-edge inject`: under every fault the real node does what docs/faults.md says, or is found out."""

import json
import subprocess
import sys

import pytest

from vla_edge_ros.evaluation.faults import FAULTS
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.nodes.fault_actions import INJECTORS
from vla_edge_ros.nodes.inject import late_publishes, sharing_a_node

FAKE = {"engine.backend": "fake", "engine.model": "fake:service_ms=5"}
NUMPY = {"engine.backend": "numpy", "engine.model": "tiny"}


def inject(environment, folder, *words, **parameters):
    """The finished command and the JSON that it wrote, None where it wrote none."""
    path = folder / "inject.json"
    settings = [
        word for name, value in (FAKE | parameters).items() for word in ("--param", f"{name}={value}")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "vla_edge_ros.cli", "inject", *words, "--json", str(path), *settings],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    return done, json.loads(path.read_text()) if path.exists() else None


def verdicts(document) -> dict:
    return {verdict["fault"]: verdict for verdict in document["faults"]}


def assert_kept(verdict):
    checks = verdict["checks"]
    assert len(checks) >= 5
    assert [what for what, is_kept in checks.items() if not is_kept] == []


@pytest.fixture(scope="module")
def injected(ros_environment, tmp_path_factory):
    """The document of all faults in one run."""
    done, document = inject(ros_environment, tmp_path_factory.mktemp("inject"), "all", "--seconds", "0.6")
    assert document is not None, done.stdout + done.stderr
    # Whether publishes were late is for an idle machine to say.
    assert document["publishes"]["ticks"] > 500 and document["publishes"]["is_kept"] is not None
    assert done.returncode == (0 if document["passed"] else 1)
    return document


def test_faults_whose_misses_last_have_a_node_of_their_own_and_those_that_end_its_record_another():
    groups = [[fault.name for fault in group] for group in sharing_a_node(list(FAULTS.values()))]
    assert sorted(name for group in groups for name in group) == sorted(FAULTS)
    assert ["stage-slow"] in groups and ["node-killed", "disk-full"] in groups
    assert len(groups) == 4


def test_every_fault_of_the_table_can_be_injected():
    assert INJECTORS.keys() == FAULTS.keys()


@pytest.mark.parametrize("fault", [name for name in FAULTS if "fake" in FAULTS[name].backends])
def test_under_each_fault_the_node_does_what_the_table_says(injected, fault):
    assert_kept(verdicts(injected)[fault])


@pytest.mark.parametrize("fault", [name for name in FAULTS if FAULTS[name].backends == ("cuda",)])
def test_a_fault_of_a_gpu_is_not_injected_into_another_engine_and_not_said_to_be_kept(injected, fault):
    assert fault not in verdicts(injected)
    assert injected["not_injected"][fault].startswith("it needs engine.backend cuda, which is fake")


def test_a_model_of_numbers_survives_a_weight_that_becomes_nan_and_a_slow_stage(ros_environment, tmp_path):
    faults = "nan-weights", "stage-slow-once", "stage-slow"
    done, document = inject(ros_environment, tmp_path, *faults, "--seconds", "0.6", **NUMPY)
    assert document is not None, done.stdout + done.stderr
    found = verdicts(document)
    assert found.keys() == set(faults)
    for verdict in found.values():
        assert_kept(verdict)
    assert found["nan-weights"]["checks"]['the node said "not finite"']


def test_a_node_that_does_not_do_what_the_table_says_is_found(ros_environment, tmp_path):
    words = "camera-frozen", "--seconds", "0.6"
    done, document = inject(ros_environment, tmp_path, *words, **{"camera.withhold_frozen": "false"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "camera-frozen: not so: SAFE_STOP seen" in done.stdout
    assert not document["passed"]


@pytest.mark.parametrize(("n_late", "is_kept"), [(3, True), (4, False)])
def test_two_late_publishes_a_fault_are_allowed_beyond_those_of_the_bare_loop(n_late, is_kept):
    ticks = [{"is_late": index < n_late} for index in range(10)]
    life = RecordedRun({}, [], ticks, {}, {"bare_loop": {"late": 1}})
    found = late_publishes([life], n_faults=1)
    assert (found["ticks"], found["late"], found["allowed"]) == (10, n_late, 3)
    assert found["is_kept"] is is_kept


def test_publishes_that_were_not_recorded_are_not_judged():
    assert late_publishes([], n_faults=1)["is_kept"] is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["no-such-fault"], "invalid choice: 'no-such-fault'"),
        (["cpu-hogs", "--param", "control.bare_loop=false"], "control.bare_loop: inject sets it itself"),
        (["cuda-fault"], "nothing was injected: it needs engine.backend cuda, which is fake"),
    ],
)
def test_what_cannot_be_injected_ends_in_one_line(ros_environment, tmp_path, words, line):
    done, document = inject(ros_environment, tmp_path, *words)
    assert (done.returncode, document) == (2, None)
    assert line in done.stderr
