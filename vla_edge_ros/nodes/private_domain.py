"""A ROS domain that nobody else on this computer is in, and that does not leave it."""

import contextlib
import random
import socket
from collections.abc import MutableMapping

from vla_edge_ros.errors import UserError

_DOMAINS = range(1, 100)


def enter_private_domain(environment: MutableMapping[str, str]) -> None:
    """Have nodes that are started with `environment` meet only each other.

    A demo or a benchmark drives a node's life cycle and plays a camera: on a robot's own domain that would
    stop the node that moves the arm, and show it a recording. Raises UserError where no domain is free.
    """
    environment["ROS_DOMAIN_ID"] = str(free_domain())
    environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    environment.pop("ROS_STATIC_PEERS", None)
    environment.pop("ROS_DISCOVERY_SERVER", None)
    if environment.get("ROS_DISTRO") == "humble":  # knows no discovery range
        environment["ROS_LOCALHOST_ONLY"] = "1"


def free_domain() -> int:
    """A domain whose discovery port (7400 + 250 d, DDSI-RTPS 9.6.1.1) nobody on this computer uses."""
    for domain in random.sample(_DOMAINS, len(_DOMAINS)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.bind(("", 7400 + 250 * domain))
            return domain
    raise UserError("every ROS domain from 1 to 99 is in use on this computer: end some of its nodes")
