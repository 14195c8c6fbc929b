"""Whether pictures of the simulation can be rendered here, asked before anything is begun."""

import sys

from vla_edge_ros.simulation.renderer import NoRenderer, Renderer
from vla_edge_ros.simulation.scene import Scene


def why_no_renderer() -> str | None:
    """What is missing, in one line; None where OpenGL opens."""
    hook = sys.unraisablehook
    # MuJoCo's context that could not be opened raises when it is freed, and Python prints a traceback.
    sys.unraisablehook = lambda unraisable: None
    try:
        Renderer(Scene()).close()
    except NoRenderer as reason:
        return str(reason)
    finally:
        sys.unraisablehook = hook
    return None
