"""How `tiny-vla` is trained: expert roll-outs, behaviour cloning as deployed, evaluation."""
