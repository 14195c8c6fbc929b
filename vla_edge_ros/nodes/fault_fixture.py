"""The faults of `vla-edge inject` in tests of one's own: a plugin of pytest with the fixture `inject_fault`.

pytest_plugins = ["vla_edge_ros.nodes.fault_fixture"]  # in the conftest.py beside pytest's settings

def test_my_arm_survives_a_camera_that_is_unplugged(inject_fault):
    verdict = inject_fault("camera-unplugged", {"actions.policy_file": "my_arm.yaml"})
    assert verdict["is_kept"], verdict["checks"]
"""

import os
from collections.abc import Callable, Iterator, Mapping

import pytest
from rich.console import Console

from vla_edge_ros.evaluation.faults import FAULTS
from vla_edge_ros.nodes.inject import OWN, inject, obstacle
from vla_edge_ros.parameters import validate_all


@pytest.fixture
def inject_fault() -> Iterator[Callable[..., dict]]:
    """`inject_fault(name, parameters={}, seconds=None)`: a fault of docs/faults.md into the real node.

    The node runs with `parameters` in a ROS domain of its own and is ended afterwards; the fault lasts for
    `seconds`, or as the table says. Gives what `vla-edge inject --json` has of it: `is_kept`, `checks` by
    what was wanted, and the decisions `before`, `during` and `after`. Skips the test where the engine cannot
    have the fault. Raises KeyError for a fault that there is not, UserError where no node can be started:
    rclpy's default context must be free.
    """
    environment = dict(os.environ)

    def injected(name: str, parameters: Mapping[str, object] = {}, seconds: float | None = None) -> dict:
        fault, values = FAULTS[name], validate_all({**parameters, **OWN})
        if why := obstacle(fault, values["engine.backend"]):
            pytest.skip(f"{name}: {why}")
        (verdict,), _ = inject([fault], values, seconds, Console(quiet=True))
        return verdict

    yield injected
    os.environ.clear()
    os.environ.update(environment)
