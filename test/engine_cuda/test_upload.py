"""Which weights go where on the device, and that each is read once."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from vla_edge_ros.engine.cuda.upload import Uploader, bf16_bits, bf16_rounded
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.engine.vision import VISION_BIAS, VISION_WEIGHT
from vla_edge_ros.engine.weights import EMBEDDING, HEAD, SeededWeights, decoder_shapes

CONFIG = PRESETS["tiny"]
STAGING = 7
SIZES = {"qkv": 1000, "output": 200, "gate_up": 30, "down": 4, "head": 1, "vision": 1}
AT = {
    name: 1_000_000 * (i + 1)
    for i, name in enumerate(("weights", "vision", "norms", "qkv_bias", "rows", "vision_bias"))
}


class Source(SeededWeights):
    def __init__(self, config):
        super().__init__(config, 5)
        self.reads = Counter()

    def read(self, name, out, first_row=0):
        self.reads[name] += 1
        return super().read(name, out, first_row)

    def all_of(self, name):
        return super().read(name, np.empty(self._shapes[name], np.float32))


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def uploaded(request):
    """The source, and what was packed and copied: by (name, address), and by address."""
    config = replace(CONFIG, tie_word_embeddings=request.param)
    source = Source(config)
    memory, packed = {}, {}

    def pack(name, at, to, stream):
        packed[name, to] = memory[at]

    device = SimpleNamespace(
        allocate=lambda n_bytes, purpose: STAGING,
        upload=lambda at, array: memory.update({at: array.copy()}),
        synchronize=lambda: None,
    )
    uploader = Uploader(device, SimpleNamespace(sizes=SIZES, pack=pack), config, source)
    uploader.upload(AT)
    return config, source, packed, memory


def test_every_matrix_is_packed_in_the_order_in_which_layers_read_it(uploaded):
    config, source, packed, _ = uploaded
    at = AT["weights"]
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        for name, tensors in (
            ("qkv", [f"self_attn.{n}_proj" for n in "qkv"]),
            ("output", ["self_attn.o_proj"]),
            ("gate_up", ["mlp.gate_proj", "mlp.up_proj"]),
            ("down", ["mlp.down_proj"]),
        ):
            wanted = np.concatenate([source.all_of(f"{prefix}{tensor}.weight") for tensor in tensors])
            assert packed.pop((name, at)).tobytes() == wanted.tobytes()
            at += SIZES[name]
    table = source.all_of(EMBEDDING if config.tie_word_embeddings else HEAD)
    assert packed.pop(("head", at)).tobytes() == table[-256:].tobytes()
    assert packed.pop(("vision", AT["vision"])).tobytes() == source.all_of(VISION_WEIGHT).tobytes()
    assert packed == {}


def test_vectors_are_rounded_as_the_kernels_want_them(uploaded):
    config, source, _, memory = uploaded
    norms = memory[AT["norms"]]
    last = f"model.layers.{config.num_hidden_layers - 1}."
    assert norms[-1].tobytes() == bf16_rounded(source.all_of("model.norm.weight")).tobytes()
    second = source.all_of(last + "post_attention_layernorm.weight")
    assert norms[-2].tobytes() == bf16_rounded(second).tobytes()
    biases = np.concatenate([source.all_of(f"{last}self_attn.{n}_proj.bias") for n in "qkv"])
    assert memory[AT["qkv_bias"]][-1].tobytes() == bf16_rounded(biases).tobytes()
    assert memory[AT["rows"]].tobytes() == bf16_bits(source.all_of(EMBEDDING)[-257:]).tobytes()
    assert memory[AT["vision_bias"]].tobytes() == bf16_rounded(source.all_of(VISION_BIAS)).tobytes()


def test_each_tensor_is_read_once(uploaded):
    config, source, _, _ = uploaded
    wanted = dict.fromkeys([*decoder_shapes(config), VISION_WEIGHT, VISION_BIAS], 1)
    if config.tie_word_embeddings:
        wanted[EMBEDDING] = 2  # its rows as they are, and as the head
    assert source.reads == wanted
