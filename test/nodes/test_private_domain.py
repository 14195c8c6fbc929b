"""A demo never meets the robot that it may be started on, nor another demo."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from vla_edge_ros.errors import UserError
from vla_edge_ros.nodes import private_domain as module
from vla_edge_ros.nodes.private_domain import claimed_domain, private_domain

ROOT = Path(__file__).resolve().parents[2]
CLAIM = """
import time
from vla_edge_ros.nodes import private_domain
private_domain._DOMAINS = {domains}
with private_domain.claimed_domain() as domain:
    print(domain, flush=True)
    time.sleep(60)
"""


def test_the_domain_of_the_environment_is_left_for_one_that_nobody_uses():
    environment = {"ROS_DOMAIN_ID": "0", "ROS_STATIC_PEERS": "10.0.0.7", "ROS_DISTRO": "kilted"}
    with private_domain(environment):
        domain = int(environment["ROS_DOMAIN_ID"])
        assert 1 <= domain < 100
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("", 7400 + 250 * domain))
    assert environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert "ROS_STATIC_PEERS" not in environment
    assert "ROS_LOCALHOST_ONLY" not in environment


def test_humble_knows_another_variable():
    environment = {"ROS_DISTRO": "humble"}
    with private_domain(environment):
        assert environment["ROS_LOCALHOST_ONLY"] == "1"


def test_a_domain_with_nodes_in_it_is_passed_over(monkeypatch):
    with claimed_domain() as first:
        monkeypatch.setattr(module, "_DOMAINS", [first])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 7400 + 250 * first))
        with pytest.raises(UserError, match="every ROS domain"), claimed_domain():
            pass
    with claimed_domain() as again:
        assert again == first


def test_two_runs_that_begin_at_once_are_in_different_domains_before_either_has_a_node(monkeypatch):
    with claimed_domain() as one, claimed_domain() as other:
        assert one != other
    monkeypatch.setattr(module, "_DOMAINS", [one, other])
    command = [sys.executable, "-c", CLAIM.format(domains=[one, other])]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with contextlib.ExitStack() as cleanup:
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(2)]
        for run in runs:
            cleanup.enter_context(run)
            cleanup.callback(run.kill)
        assert {int(run.stdout.readline()) for run in runs} == {one, other}
        with pytest.raises(UserError, match="every ROS domain"), claimed_domain():
            pass
        for run in runs:
            run.kill()
            run.wait()
        with claimed_domain() as freed:
            assert freed in (one, other), "a claim does not outlive a killed run"
