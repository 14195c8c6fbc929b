"""Bags, offline replay, reports and benchmarks."""
