"""Tests of one's own can inject faults: `pytest_plugins = ["vla_edge_ros.nodes.fault_fixture"]`."""

import subprocess
import sys

OWN_TESTS = """
import os

FAKE = {"engine.backend": "fake", "engine.model": "fake:service_ms=5"}


def test_it_is_kept(inject_fault):
    verdict = inject_fault("memory-reset", FAKE)
    assert verdict["is_kept"], verdict["checks"]
    assert inject_fault("camera-frozen", FAKE | {"camera.withhold_frozen": False}, 0.6)["is_kept"] is False


def test_the_environment_is_as_before_and_what_the_engine_cannot_have_is_skipped(inject_fault):
    assert os.environ["ROS_DOMAIN_ID"] == DOMAIN
    inject_fault("nan-weights", FAKE)
    raise AssertionError("not skipped")


def test_a_fault_that_there_is_not_is_an_error(inject_fault):
    inject_fault("earthquake", FAKE)
"""


def test_a_test_outside_this_package_injects_faults_and_reads_the_verdict(ros_environment, tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["vla_edge_ros.nodes.fault_fixture"]\n')
    domain = ros_environment["ROS_DOMAIN_ID"]
    (tmp_path / "test_my_arm.py").write_text(f"DOMAIN = {domain!r}\n{OWN_TESTS}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", str(tmp_path)],
        env=ros_environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "1 failed, 1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "nan-weights: it needs engine.backend" in done.stdout
    assert "KeyError: 'earthquake'" in done.stdout
