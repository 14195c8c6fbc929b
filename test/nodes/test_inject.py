"""`vla-edge inject`: under every fault the real node does what docs/faults.md says, or is found out."""

import json
import subprocess
import sys

import pytest

from vla_edge_ros.evaluation.faults import FAULTS
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.nodes.fault_actions import INJECTORS
from vla_edge_ros.nodes.inject import late_publishes

FAKE = {"engine.backend": "fake", "engine.model": "fake:service_ms=5"}


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


@pytest.fixture(scope="module")
def injected(ros_environment, tmp_path_factory):
    """The verdict on each fault by its name: all of them in one run."""
    done, document = inject(ros_environment, tmp_path_factory.mktemp("inject"), "all", "--seconds", "0.6")
    assert document is not None, done.stdout + done.stderr
    # Whether publishes were late is for an idle machine to say.
    assert document["publishes"]["ticks"] > 500 and document["publishes"]["is_kept"] is not None
    assert done.returncode == (0 if document["passed"] else 1)
    return {verdict["fault"]: verdict for verdict in document["faults"]}


def test_every_fault_of_the_table_can_be_injected():
    assert INJECTORS.keys() == FAULTS.keys()


@pytest.mark.parametrize("fault", FAULTS)
def test_under_each_fault_the_node_does_what_the_table_says(injected, fault):
    checks = injected[fault]["checks"]
    assert len(checks) >= 5
    assert [what for what, is_kept in checks.items() if not is_kept] == []


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
    ],
)
def test_what_cannot_be_injected_ends_in_one_line(ros_environment, tmp_path, words, line):
    done, document = inject(ros_environment, tmp_path, *words)
    assert (done.returncode, document) == (2, None)
    assert line in done.stderr
