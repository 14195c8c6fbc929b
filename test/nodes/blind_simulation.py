"""The simulation where OpenGL does not open."""

import sys

from vla_edge_ros.nodes.simulation_node import main
from vla_edge_ros.simulation import renderer


def no_context(width, height):
    raise renderer.NoRenderer("no OpenGL: sudo apt-get install libegl1")


if __name__ == "__main__":
    renderer._open_context = no_context
    sys.exit(main())
