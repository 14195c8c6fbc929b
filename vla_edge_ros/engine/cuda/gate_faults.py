"""Faults planted in an engine, each of which the gate's checks must find."""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np

from vla_edge_ros.engine.cuda.gate_passes import Probe
from vla_edge_ros.engine.cuda.gate_weights import HeldWeights
from vla_edge_ros.engine.cuda.upload import rope_table
from vla_edge_ros.engine.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Site:
    """Where a fault is planted: an engine, and the slots that its pass should see."""

    probe: Probe
    config: ModelConfig
    weights: HeldWeights
    n_slots: int
    context: np.ndarray

    def projections(self, layer: int, kind: str) -> tuple[np.ndarray, slice, slice]:
        """A layer's `weight`s or `bias`es of queries, keys and values, stacked; rows of the latter two."""
        config = self.config
        query, kv = config.query_size, config.kv_size
        columns = (config.hidden_size,) if kind == "weight" else ()
        rows = np.empty((query + 2 * kv, *columns), np.float32)
        spans = {"q": slice(0, query), "k": slice(query, query + kv), "v": slice(query + kv, query + 2 * kv)}
        for name, span in spans.items():
            self.weights.read(f"model.layers.{layer}.self_attn.{name}_proj.{kind}", rows[span])
        return rows, spans["k"], spans["v"]


Fault = Callable[[Site], AbstractContextManager[np.ndarray]]
"""Breaks the engine of a site, gives the slots that its pass is told to see, and mends it at the end."""


@contextmanager
def no_fault(site: Site):
    yield site.context


@contextmanager
def _leave_a_slot_unread(site: Site):
    # RoPE sees differences of positions only, so without the first slot all else stays as it was.
    yield site.context[1:]


@contextmanager
def _shift_positions_by_one(site: Site):
    table = rope_table(site.config, site.n_slots)
    shifted, n = table.copy(), len(site.context)
    shifted[n:-1] = table[n + 1 :]
    site.probe.set_rope(shifted)
    try:
        yield site.context
    finally:
        site.probe.set_rope(table)


@contextmanager
def _drop_a_bias(site: Site):
    layer = site.config.num_hidden_layers - 1
    biases, _, of_values = site.projections(layer, "bias")
    dropped = biases.copy()
    dropped[of_values] = 0
    site.probe.set_biases(layer, dropped)
    try:
        yield site.context
    finally:
        site.probe.set_biases(layer, biases)


@contextmanager
def _swap_keys_and_values(site: Site):
    whole = {kind: site.projections(0, kind) for kind in ("weight", "bias")}
    swapped = {}
    for kind, (rows, keys, values) in whole.items():
        swapped[kind] = rows.copy()
        swapped[kind][keys], swapped[kind][values] = rows[values], rows[keys]
    site.probe.set_qkv(0, swapped["weight"])
    site.probe.set_biases(0, swapped["bias"])
    try:
        yield site.context
    finally:
        site.probe.set_qkv(0, whole["weight"][0])
        site.probe.set_biases(0, whole["bias"][0])


@contextmanager
def _lose_a_split(site: Site):
    site.probe.lose_split(True)
    try:
        yield site.context
    finally:
        site.probe.lose_split(False)


FAULTS: dict[str, Fault] = {
    "one slot unread": _leave_a_slot_unread,
    "positions off by one": _shift_positions_by_one,
    "a bias dropped": _drop_a_bias,
    "K and V swapped": _swap_keys_and_values,
    "a split lost": _lose_a_split,
}
