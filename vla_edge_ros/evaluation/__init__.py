"""Recordings, offline replay, reports, and a look at the machine."""
