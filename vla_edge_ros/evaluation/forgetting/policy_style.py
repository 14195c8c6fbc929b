"""How a policy looks in every plot: a colour and a marker of its own, whatever else is compared."""

from typing import NamedTuple

from matplotlib.figure import Figure

from vla_edge_ros.evaluation.plot_style import COLOUR
from vla_edge_ros.memory.policies import POLICIES

_MARKERS = "osD^v<>PXph"


class PolicyStyle(NamedTuple):
    """colour: a stand-in of `plot_style`. marker: of matplotlib; it tells policies apart without colour."""

    colour: str
    marker: str


def style_of(policy: str) -> PolicyStyle:
    """The same for a policy on every page; one that is unknown here looks like the first."""
    place = POLICIES.index(policy) if policy in POLICIES else 0
    return PolicyStyle(COLOUR[f"policy{place}"], _MARKERS[place])


def add_legend(figure: Figure, handles: list, labels: list[str], where: str = "lower") -> None:
    """One legend for all panels, below them or ("upper") above."""
    figure.legend(handles, labels, loc=f"outside {where} center", ncols=6, frameon=False, fontsize=8.5)
