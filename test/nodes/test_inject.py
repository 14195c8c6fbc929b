"""`vla-edge inject`: under every fault the real node does what docs/faults.md says, or is found out."""

import json
import subprocess
import sys

import pytest
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_edge_ros.evaluation.faults import FAULTS
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.nodes.fault_actions import INJECTORS
from vla_edge_ros.nodes.fault_rig import FaultRig
from vla_edge_ros.nodes.inject import late_publishes, sharing_a_node
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.share import share_directory

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
        timeout=300,
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
    """The document of all faults in one run, each for as long as the table says."""
    done, document = inject(ros_environment, tmp_path_factory.mktemp("inject"), "all")
    assert document is not None, done.stdout + done.stderr
    # Whether publishes were late is for an idle machine to say.
    assert document["publishes"]["ticks"] > 500 and document["publishes"]["is_kept"] is not None
    assert done.returncode == (0 if document["passed"] else 1)
    return document


def test_faults_whose_misses_last_have_a_node_of_their_own_and_those_that_end_its_record_another():
    groups = [[fault.name for fault in group] for group in sharing_a_node(list(FAULTS.values()))]
    assert sorted(name for group in groups for name in group) == sorted(FAULTS)
    assert ["stage-slow"] in groups
    assert ["node-killed", "disk-full-ring"] in groups and ["disk-full"] in groups
    assert len(groups) == 5


def test_every_fault_of_the_table_can_be_injected():
    assert INJECTORS.keys() == FAULTS.keys()


@pytest.mark.parametrize("fault", [name for name in FAULTS if "fake" in FAULTS[name].backends])
def test_under_each_fault_the_node_does_what_the_table_says(injected, fault):
    assert_kept(verdicts(injected)[fault])


@pytest.mark.parametrize("fault", ["idle-gap", "subscriber-stops", "stage-slow", "camera-5hz"])
def test_what_takes_its_time_is_given_it(injected, fault):
    verdict = verdicts(injected)[fault]
    assert verdict["ended_ns"] - verdict["began_ns"] >= FAULTS[fault].seconds * 1e9


@pytest.mark.parametrize("fault", [name for name in FAULTS if FAULTS[name].backends == ("cuda",)])
def test_a_fault_of_a_gpu_is_not_injected_into_another_engine_and_not_said_to_be_kept(injected, fault):
    assert fault not in verdicts(injected)
    assert injected["not_injected"][fault].startswith("it needs engine.backend cuda, which is fake")


def test_a_model_of_numbers_survives_a_weight_that_becomes_nan_and_a_slow_stage(ros_environment, tmp_path):
    faults = "nan-weights", "stage-slow-once", "stage-slow"
    done, document = inject(ros_environment, tmp_path, *faults, **NUMPY)
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
    assert "camera-frozen: not so: the arm was brought to rest" in done.stdout
    assert not document["passed"]


def late_of(n_late: int, **counted) -> dict:
    """Of ten recorded ticks so many late, the bare loop one, and one fault of which `counted` is known."""
    ticks = [{"is_late": index < n_late} for index in range(10)]
    life = RecordedRun({}, [], ticks, {}, {"bare_loop": {"late": 1}})
    return late_publishes([life], [{"fault": "cpu-hogs"} | counted])


@pytest.mark.parametrize(("n_late", "is_kept"), [(3, True), (4, False)])
def test_two_late_publishes_a_fault_are_allowed_beyond_those_of_the_bare_loop(n_late, is_kept):
    found = late_of(n_late, late_publishes=0, late_allowed=None)
    assert (found["ticks"], found["late"], found["allowed"]) == (10, n_late, 3)
    assert found["is_kept"] is is_kept


def test_one_fault_alone_may_not_use_up_what_all_of_them_are_allowed():
    assert late_of(0, late_publishes=4, late_allowed=3)["beyond"] == {"cpu-hogs": 1}
    assert late_of(0, late_publishes=4, late_allowed=3)["is_kept"] is False
    assert late_of(0, late_publishes=3, late_allowed=3)["is_kept"] is True


def test_without_a_real_time_priority_no_fault_is_judged_alone():
    assert late_of(0, late_publishes=4, late_allowed=None)["is_kept"] is True


def test_a_fault_whose_node_has_no_whole_record_allows_no_late_publishes():
    assert late_of(0)["allowed"] == 1


def test_publishes_that_were_not_recorded_are_not_judged():
    assert late_publishes([], [])["is_kept"] is None


def trajectory(*velocities: list[float]) -> JointTrajectory:
    return JointTrajectory(points=[JointTrajectoryPoint(velocities=each) for each in velocities])


def test_an_arm_is_at_rest_once_every_controller_was_told_to_stop(tmp_path):
    topic = "/vla_edge_node/trajectory"
    rig = FaultRig(validate_all({}), "", tmp_path)
    assert rig.trajectories == {topic: None} and not rig.is_at_rest()
    for moves in (trajectory([]), trajectory([0.0, 0.1]), trajectory([0.0], [0.0])):
        rig.trajectories[topic] = moves
        assert not rig.is_at_rest()
    rig.trajectories[topic] = trajectory([0.0, 0.0])
    assert rig.is_at_rest()
    rig.trajectories["/another"] = None
    assert not rig.is_at_rest()


def test_a_policy_that_sends_no_trajectory_needs_none_to_be_at_rest(tmp_path):
    policy = share_directory() / "config/policies/panda_ee_delta.yaml"
    rig = FaultRig(validate_all({"actions.policy_file": str(policy)}), "", tmp_path)
    assert rig.trajectories == {} and rig.is_at_rest()


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
