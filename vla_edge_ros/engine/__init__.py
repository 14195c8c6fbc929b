"""Model geometry, weights and the engines that run a pass."""
