"""A demo never meets the robot that it may be started on."""

import socket

from vla_edge_ros.nodes.private_domain import enter_private_domain


def test_the_domain_of_the_environment_is_left_for_one_that_nobody_uses():
    environment = {"ROS_DOMAIN_ID": "0", "ROS_STATIC_PEERS": "10.0.0.7", "ROS_DISTRO": "kilted"}
    enter_private_domain(environment)
    domain = int(environment["ROS_DOMAIN_ID"])
    assert 1 <= domain < 100
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 7400 + 250 * domain))
    assert environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert "ROS_STATIC_PEERS" not in environment
    assert "ROS_LOCALHOST_ONLY" not in environment


def test_humble_knows_another_variable():
    environment = {"ROS_DISTRO": "humble"}
    enter_private_domain(environment)
    assert environment["ROS_LOCALHOST_ONLY"] == "1"


def test_two_of_them_at_once_are_in_different_domains():
    first, second = {}, {}
    enter_private_domain(first)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 7400 + 250 * int(first["ROS_DOMAIN_ID"])))
        for _ in range(200):
            enter_private_domain(second)
            assert second["ROS_DOMAIN_ID"] != first["ROS_DOMAIN_ID"]
