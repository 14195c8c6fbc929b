"""Ticks, admission and decisions; time is always passed in as steady nanoseconds."""
