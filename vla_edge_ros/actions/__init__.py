"""From action tokens to limited joint targets, and what to do when there are none."""
