"""A ROS domain that nobody else on this computer is in, and that does not leave it."""

import contextlib
import random
import socket
from collections.abc import Iterator, MutableMapping

from vla_edge_ros.errors import UserError

_DOMAINS = range(1, 100)


@contextlib.contextmanager
def private_domain(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Have nodes that are started with `environment` within the `with` block meet only each other.

    A demo or a benchmark drives a node's life cycle and plays a camera: on a robot's own domain that would
    stop the node that moves the arm, and show it a recording. Raises UserError where no domain is free.
    """
    with claimed_domain() as domain:
        environment["ROS_DOMAIN_ID"] = str(domain)
        environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        environment.pop("ROS_STATIC_PEERS", None)
        environment.pop("ROS_DISCOVERY_SERVER", None)
        if environment.get("ROS_DISTRO") == "humble":  # knows no discovery range
            environment["ROS_LOCALHOST_ONLY"] = "1"
        yield


@contextlib.contextmanager
def claimed_domain() -> Iterator[int]:
    """A domain whose discovery port (7400 + 250 d, DDSI-RTPS 9.6.1.1) nobody on this computer uses.

    Nodes take the port only some time after it was found free. So a run claims the domain from other runs by
    an abstract socket of that name, which goes with the process however that ends and, unlike a lock file,
    holds among all that share the ports.
    """
    for domain in random.sample(_DOMAINS, len(_DOMAINS)):
        with contextlib.ExitStack() as claim:
            try:
                _bind(claim, socket.AF_UNIX, f"\0vla_edge_ros/domain/{domain}")
                with contextlib.ExitStack() as probe:
                    _bind(probe, socket.AF_INET, ("", 7400 + 250 * domain))
            except OSError:
                continue
            yield domain
            return
    raise UserError("every ROS domain from 1 to 99 is in use on this computer: end some of its nodes")


def _bind(stack: contextlib.ExitStack, family: socket.AddressFamily, address: object) -> None:
    stack.enter_context(socket.socket(family, socket.SOCK_DGRAM)).bind(address)
