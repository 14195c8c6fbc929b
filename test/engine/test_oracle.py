"""The cached decoder against an oracle without a cache, over random histories."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.engine.numpy_decoder import NumpyDecoder
from vla_edge_ros.engine.oracle import ForgettingOracle
from vla_edge_ros.engine.weights import EMBEDDING, SeededWeights

CONFIG = ModelConfig(
    vocab_size=520,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)
BLOCK = 6
N_SLOTS = 64
WEIGHTS = SeededWeights(CONFIG, seed=0)
TABLE = WEIGHTS.read(EMBEDDING, np.empty((520, 24), np.float32))


class Both:
    """One history, kept by a decoder in random slots of its cache and by the oracle."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.decoder = NumpyDecoder(CONFIG, WEIGHTS, N_SLOTS, max_tokens=32)
        self.decoder.after_layer = self._keep
        self.oracle = ForgettingOracle(CONFIG, WEIGHTS)
        self.free = list(self.random.permutation(N_SLOTS))
        self.context: list[tuple[int, np.ndarray]] = []
        self.found: list[np.ndarray] = []

    def _keep(self, layer: int, states: np.ndarray) -> None:
        if layer == CONFIG.num_hidden_layers - 1:
            self.found.append(states.copy())

    def start(self) -> None:
        slots = [block_slots for _, block_slots in self.context]
        self.decoder.start(np.concatenate(slots) if slots else np.zeros(0, np.int32))

    def extend(self, states: np.ndarray, visible: list[int]) -> tuple[int, np.ndarray]:
        slots = np.array([self.free.pop() for _ in range(len(states))])
        self.decoder.extend(states.copy(), slots)
        return self.oracle.append(states, visible), slots

    def insert(self, n_tokens: int) -> None:
        self.start()
        states = self.random.standard_normal((n_tokens, CONFIG.hidden_size)).astype(np.float32)
        self.context.append(self.extend(states, [block for block, _ in self.context]))

    def decode(self, n_tokens: int) -> None:
        """Tokens that see the context and each other, and are forgotten at once."""
        self.start()
        visible = [block for block, _ in self.context]
        for token in self.random.integers(0, 520, n_tokens):
            block, slots = self.extend(TABLE[token : token + 1], visible)
            visible = [*visible, block]
            self.forget(slots)

    def evict(self, place: int) -> None:
        """Any block but the first, which stands for the prompt."""
        if len(self.context) > 1:
            _, slots = self.context.pop(1 + place % (len(self.context) - 1))
            self.forget(slots)

    def forget(self, slots: np.ndarray) -> None:
        self.decoder.forget(slots)
        self.free += slots.tolist()
        self.random.shuffle(self.free)

    def largest_error(self) -> float:
        wanted = self.oracle.last_layer_states()
        return max(np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(self.found, wanted, strict=True))


operations = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.just(BLOCK)),
        st.tuples(st.just("decode"), st.integers(1, 3)),
        st.tuples(st.just("evict"), st.integers(0, 9)),
    ),
    max_size=16,
)


@given(seed=st.integers(0, 1000), prompt=st.integers(1, 12), history=operations)
@settings(max_examples=25, deadline=None)
def test_the_cached_decoder_agrees_with_the_oracle_over_any_history(seed, prompt, history):
    both = Both(seed)
    both.insert(prompt)
    for name, argument in history:
        if name == "insert" and len(both.free) < 2 * BLOCK:
            both.evict(argument)
        getattr(both, name)(argument)
    assert both.largest_error() < 1e-5


def test_evicted_frames_act_through_the_states_that_saw_them():
    """The same retained blocks give other states when a block between them was seen and forgotten."""
    states = np.random.default_rng(0).standard_normal((3, BLOCK, CONFIG.hidden_size)).astype(np.float32)
    oracle = ForgettingOracle(CONFIG, WEIGHTS)
    first = oracle.append(states[0], [])
    forgotten = oracle.append(states[1], [first])
    oracle.append(states[2], [first, forgotten])
    oracle.append(states[2], [first])
    seen, unseen = oracle.last_layer_states()[2:]
    assert np.linalg.norm(seen - unseen) > 0.01 * np.linalg.norm(seen)


@pytest.mark.parametrize("fault", ["a rank", "a key"])
def test_the_comparison_notices_what_it_is_for(fault):
    both = Both(seed=1)
    both.insert(5)
    both.insert(BLOCK)
    if fault == "a rank":
        both.decoder.cosines[-1:0:-1] = both.decoder.cosines[-2::-1].copy()
    else:
        block, slots = both.context[0]
        both.context[0] = (block, slots[1:])
    both.insert(BLOCK)
    assert both.largest_error() > 1e-3
