"""What the gate compares an engine with: a memory of passes, told to decoders that have none."""

import numpy as np
import pytest

from vla_edge_ros.engine.cuda.upload import bf16_rounded
from vla_edge_ros.engine.numpy_decoder import NumpyDecoder
from vla_edge_ros.engine.weights import EMBEDDING, SeededWeights

torch = pytest.importorskip("torch", reason="the gate's references run in torch (the `test` extra)")

from emulated import CONFIG, N_PASSES, N_SLOTS  # noqa: E402

from vla_edge_ros.engine.cuda.gate_hugging_face import run_hugging_face  # noqa: E402
from vla_edge_ros.engine.cuda.gate_passes import (  # noqa: E402
    PROMPT_TOKENS,
    SHORT_PASS,
    Passes,
    pass_states,
)
from vla_edge_ros.engine.cuda.gate_weights import HeldWeights  # noqa: E402
from vla_edge_ros.engine.cuda.reference import Reference  # noqa: E402


def test_every_token_sees_one_token_at_each_rank_up_to_its_own(passes):
    positions, is_seen = passes.positions(), passes.is_seen("cpu").numpy()
    for own, seen in zip(positions, is_seen, strict=True):
        assert sorted(positions[seen]) == list(range(own + 1))


def test_action_tokens_are_seen_in_their_own_pass_only(passes):
    is_seen, is_decoded = passes.is_seen("cpu").numpy(), passes.is_decoded()
    for index in range(N_PASSES):
        own = passes.tokens_of(index)
        others = np.delete(np.arange(len(is_seen)), np.r_[own])
        decoded = np.flatnonzero(is_decoded)[8 * index : 8 * index + 8]
        assert not is_seen[np.ix_(others, decoded)].any()


def test_the_short_pass_ends_at_rank_128_and_the_last_one_at_the_end_of_the_memory(passes):
    at_4096 = Passes.draw(CONFIG, 4096, 130, seed=0)
    for memory, n_slots in ((passes, N_SLOTS), (at_4096, 4096)):
        assert memory.positions()[memory.tokens_of(SHORT_PASS)].max() == 127
        assert memory.positions().max() == n_slots - 1


def test_a_pass_writes_to_slots_that_its_context_does_not_read(passes):
    for index in range(N_PASSES):
        block = passes.block_slots(passes.n_kept(index))
        assert not set(block) & set(passes.context(index))
        assert len(set(passes.context(index))) == len(passes.context(index))


def test_held_weights_are_those_of_the_source_in_bf16(tensors):
    source, held = SeededWeights(CONFIG, 0), HeldWeights(tensors)
    rows = np.empty((5, CONFIG.hidden_size), np.float32)
    wanted = bf16_rounded(source.read(EMBEDDING, rows, 200).copy())
    assert held.read(EMBEDDING, rows, 200).tobytes() == wanted.tobytes()
    bias = np.empty(CONFIG.query_size, np.float32)
    name = "model.layers.1.self_attn.q_proj.bias"
    wanted = bf16_rounded(source.read(name, bias).copy())
    assert held.read(name, bias).tobytes() == wanted.tobytes()


class NumpyMemory:
    """The NumPy decoder in slots, as the engine would run the passes."""

    def __init__(self, tensors):
        self.decoder = NumpyDecoder(CONFIG, HeldWeights(tensors), N_SLOTS, 40)
        self.layers: list[np.ndarray] = []
        self.decoder.after_layer = lambda layer, states: self.layers.append(states.copy())

    def run(self, context: np.ndarray, slots: np.ndarray, states) -> np.ndarray:
        """The stream (T, layers, hidden)."""
        self.layers.clear()
        self.decoder.start(context)
        self.decoder.extend(states.numpy().copy(), slots)
        return np.stack(self.layers, axis=1)


def relative_l2(found, wanted) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@torch.no_grad()
def test_hugging_face_over_all_passes_at_once_is_the_numpy_decoder_pass_by_pass(tensors, passes):
    reference, memory = Reference(CONFIG, tensors, N_SLOTS), NumpyMemory(tensors)
    action_slots = passes.slots[-8:]
    actions = np.random.default_rng(0).integers(0, 256, (N_PASSES, 8))
    prompt = reference.embed(passes.prompt)
    inputs = [prompt, *(pass_states(reference, passes, i, actions[i]) for i in range(N_PASSES))]
    wanted = [memory.run(passes.slots[:0], passes.prompt_slots, prompt)]
    for index in range(N_PASSES):
        slots = np.concatenate([passes.block_slots(passes.n_kept(index)), action_slots])
        wanted.append(memory.run(passes.context(index), slots, inputs[1 + index]))
    found = run_hugging_face(CONFIG, tensors, torch.float32, passes, torch.cat(inputs))
    wanted = np.concatenate(wanted)
    for layer in range(CONFIG.num_hidden_layers):
        assert relative_l2(found.layers[layer].numpy(), wanted[:, layer]) < 1e-5
    last = torch.from_numpy(wanted[:, -1])
    normed = reference.norm(last, "model.norm.weight")
    assert relative_l2(found.layers[-1].numpy(), normed.numpy()) < 1e-5
    logits = reference.logits(last[passes.is_decoded()]).reshape(N_PASSES, 8, 256)
    assert relative_l2(found.logits.numpy(), logits.numpy()) < 1e-5


@torch.no_grad()
def test_the_reference_forgets_as_the_numpy_decoder_does(tensors, passes):
    reference, memory = Reference(CONFIG, tensors, N_SLOTS), NumpyMemory(tensors)
    prompt = reference.embed(passes.prompt)
    memory.run(passes.slots[:0], passes.prompt_slots, prompt)
    reference.extend(prompt)
    blocks, free = [], list(range(passes.n_frames))
    for tick in range(9):
        if not free:
            gone = tick * 3 % (len(blocks) - 1)
            first = PROMPT_TOKENS + 32 * gone
            reference.forget(first, first + 32)
            free.append(blocks.pop(gone))
        states = pass_states(reference, passes, tick % N_PASSES, np.arange(8))
        context = np.concatenate([passes.prompt_slots, *map(passes.block_slots, blocks)])
        blocks.append(free.pop(0))
        slots = np.concatenate([passes.block_slots(blocks[-1]), passes.slots[-8:]])
        wanted = memory.run(context, slots, states)
        _, trace = reference.extend(states, is_traced=True)
        reference.forget(len(context) + 32, len(context) + 40)
        assert relative_l2(trace[..., reference.parts.spans["out"]].numpy(), wanted) < 1e-5
