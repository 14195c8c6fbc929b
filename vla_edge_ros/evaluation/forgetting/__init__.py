"""Forgetting measured: policies against an oracle, over recordings, capacities and seeds."""
