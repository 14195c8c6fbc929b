"""Slots of the KV cache, the frames that they hold, and which frame is forgotten."""
