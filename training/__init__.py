"""How `tiny-vla` is trained: expert roll-outs, behaviour cloning as deployed, evaluation."""

UNFINISHED = 3
"""Exit code where time was up before the end: the same command again goes on from what there is by then."""
