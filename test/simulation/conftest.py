import pytest

from vla_edge_ros.simulation.environment import Environment


@pytest.fixture
def environment():
    """One that takes no pictures unless it is asked to."""
    made = Environment(renders=False)
    yield made
    made.close()
