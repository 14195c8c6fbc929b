"""Fixtures shared by all tests."""

import os
import sys
from pathlib import Path

import pytest

from vla_edge_ros.nodes.private_domain import private_domain
from vla_edge_ros.share import large_image_variables

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real recordings, policies and arms beside the repository."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the folder ../shared with real recordings is not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def has_renderer():
    """Skips where OpenGL does not open without a screen."""
    from vla_edge_ros.simulation.renderer import NoRenderer, Renderer
    from vla_edge_ros.simulation.scene import Scene

    try:
        Renderer(Scene()).close()
    except NoRenderer as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def ros_environment():
    """An environment with a ROS domain of its own on this computer, for this process and its children."""
    changes = {
        "AMENT_PREFIX_PATH": os.environ.get("AMENT_PREFIX_PATH") or sys.prefix,
        "RMW_IMPLEMENTATION": "rmw_fastrtps_cpp",
    }
    with private_domain(changes):
        changes.update(large_image_variables(changes))
        before = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        yield {**os.environ, "PYTHONPATH": str(ROOT)}
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
