import pytest

from vla_edge_ros.simulation.environment import Environment
from vla_edge_ros.simulation.renderer import NoRenderer, Renderer
from vla_edge_ros.simulation.scene import Scene


@pytest.fixture(scope="session")
def has_renderer():
    """Skips where OpenGL does not open without a screen."""
    try:
        Renderer(Scene()).close()
    except NoRenderer as reason:
        pytest.skip(str(reason))


@pytest.fixture
def environment():
    """One that takes no pictures unless it is asked to."""
    made = Environment(renders=False)
    yield made
    made.close()
