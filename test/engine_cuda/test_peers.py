"""A peer that computes something else is no peer: each gives Hugging Face's tokens, on a small model."""

# ruff: noqa: E402
import json

import pytest

REASON = "peers are part of the `test` extra"
torch = pytest.importorskip("torch", reason=REASON)
pytest.importorskip("transformers", reason=REASON)

from vla_edge_ros.engine.cuda import peer_attention
from vla_edge_ros.engine.cuda.benchmark import full_context
from vla_edge_ros.engine.cuda.hugging_face_peers import HuggingFaceCompiled, HuggingFaceEager
from vla_edge_ros.engine.cuda.peer_attention import WAYS, fastest, products
from vla_edge_ros.engine.cuda.peer_scene import make_scene
from vla_edge_ros.engine.cuda.peers import COMPETITORS
from vla_edge_ros.engine.cuda.static_qwen2 import StaticQwen2
from vla_edge_ros.engine.presets import PRESETS

N_CONTEXT = 77


def run(function):
    """A stand-in for a clock: each call takes the same time, so the first way is taken."""
    function()
    return 1.0


def traced(function):
    """Through torch.compile's tracing, which must find one whole graph, and no compiler."""
    return torch.compile(function, backend="eager", fullgraph=True, dynamic=False)


@pytest.fixture(scope="module")
def scene():
    return make_scene(PRESETS["tiny"], N_CONTEXT, "cpu", torch.float32)


@pytest.fixture(scope="module")
def expected(scene):
    peer = HuggingFaceEager(scene)
    logits = []
    peer.prepare()
    return peer.run(logits), torch.cat(logits)


PEERS = {
    "static": lambda scene: StaticQwen2(scene, lambda function: function, run),
    "static, compiled": lambda scene: StaticQwen2(scene, traced, run),
    "Hugging Face, compiled": lambda scene: HuggingFaceCompiled(scene, traced),
    "Hugging Face, eager": HuggingFaceEager,
}


@pytest.mark.parametrize("name", PEERS)
def test_every_pass_of_a_peer_gives_the_tokens_and_logits_of_hugging_face(scene, expected, name):
    rows, expected_logits = expected
    peer = PEERS[name](scene)
    for _ in range(3):
        logits = []
        if hasattr(peer, "prepare"):
            peer.prepare()
        assert peer.run(logits).tolist() == rows.tolist()
        torch.testing.assert_close(torch.cat(logits), expected_logits, rtol=1e-4, atol=1e-4)


def test_the_decoded_tokens_depend_on_the_context_and_on_the_frame(scene, expected):
    rows, logits = expected
    for changed in ("keys", "frame"):
        other = make_scene(PRESETS["tiny"], N_CONTEXT, "cpu", torch.float32)
        getattr(other, changed).mul_(-1)
        found = []
        StaticQwen2(other, lambda function: function, run).run(found)
        assert (torch.cat(found) - logits).norm() > 0.05 * logits.norm()
    assert len(set(rows.tolist())) > 1


@pytest.mark.parametrize("n_queries", [1, 32])
def test_the_ways_of_attention_agree_and_the_fastest_of_them_is_taken(n_queries):
    torch.manual_seed(0)
    q, keys, values = torch.randn(n_queries, 6, 32), torch.randn(2, 90, 32), torch.randn(2, 90, 32)
    times = iter(range(100, 0, -1))
    name, found = fastest(q, keys, values, lambda way: float(next(times)))
    assert name == list(found)[-1] != "products"
    for way in found:
        torch.testing.assert_close(
            WAYS[way](q, keys, values), products(q, keys, values), rtol=1e-4, atol=1e-5
        )


def test_a_way_that_computes_something_else_or_is_refused_is_not_taken(monkeypatch):
    def refused(q, keys, values):
        raise RuntimeError("No available kernel")

    wrong = {"one key unread": lambda q, keys, values: products(q, keys[:, :-1], values[:, :-1])}
    monkeypatch.setattr(peer_attention, "WAYS", wrong | {"refused": refused, "products": products})
    q, keys, values = torch.randn(1, 6, 32), torch.randn(2, 90, 32), torch.randn(2, 90, 32)
    assert fastest(q, keys, values, run) == ("products", {"products": 1.0})


def test_the_context_is_that_of_a_full_memory():
    # (4096 - 45 of a prompt - 8 tokens) / 32 leaves 126 frames; the last of them is the pass's own.
    assert full_context(4096) == 45 + 125 * 32


def test_every_competitor_says_what_it_is():
    assert all(json.dumps(competitor.__doc__) for competitor in COMPETITORS.values())
    assert all(len(competitor.__doc__) > 20 for competitor in COMPETITORS.values())
