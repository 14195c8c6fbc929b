"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest
from processes import private_ros_environment

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
    with private_ros_environment():
        yield {**os.environ, "PYTHONPATH": str(ROOT)}
