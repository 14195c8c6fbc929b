"""The gate of the CUDA engine, on an engine that rounds as the kernels do: it can fail without a GPU."""

import argparse
import json
import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from vla_edge_ros.cli import main
from vla_edge_ros.engine import gate as numpy_gate
from vla_edge_ros.engine.cuda import gate

torch = pytest.importorskip("torch", reason="the gate's references run in torch (the `test` extra)")

from emulated import CONFIG, N_PASSES, N_SLOTS, EmulatedEngine  # noqa: E402

from vla_edge_ros.engine.cuda import gate_examination  # noqa: E402
from vla_edge_ros.engine.cuda.gate_checks import (  # noqa: E402
    OperatorInputs,
    compare_bits,
    compare_operators,
    compare_stream,
    compare_tokens,
    differs_clearly,
)
from vla_edge_ros.engine.cuda.gate_examination import Examination  # noqa: E402
from vla_edge_ros.engine.cuda.gate_passes import EnginePass, pass_states  # noqa: E402
from vla_edge_ros.engine.cuda.reference import Reference  # noqa: E402

N_REPEATS = 11


def examine(tensors, passes, probe=None) -> dict:
    probe = probe or EmulatedEngine(CONFIG, tensors, N_SLOTS)
    report = Examination(CONFIG, tensors, passes, probe).report(N_REPEATS, lambda what: None)
    return gate.conclude(report) | report


@pytest.fixture(scope="module")
def report(tensors, passes) -> dict:
    return examine(tensors, passes)


def test_an_engine_in_bf16_passes_every_check(report):
    failed = {name: row for name, row in report["checks"].items() if not row["passed"]}
    assert not failed
    assert report["passed"]
    assert report["token_agreement"] == 1.0
    for part in ("stream, prefilled", "stream, decoded", "stream after evictions"):
        row = report["checks"][part]
        assert 1e-3 < row["error"] <= row["limit"] <= 2.5e-2
        assert len(row["errors"]) == CONFIG.num_hidden_layers + 1
    assert report["checks"]["stream after evictions"]["reference_against_hugging_face"] < 1e-5
    for part in ("operators at 128", "operators at 192"):
        assert set(report["checks"][part]["errors"]) == {
            *("vision", "qkv", "attention", "output", "gate_up", "down", "head")
        }


@pytest.mark.parametrize(
    "fault",
    ["one slot unread", "positions off by one", "a bias dropped", "K and V swapped", "a split lost"],
)
def test_every_planted_fault_fails_the_checks_at_both_lengths(report, fault):
    row = report["faults"][fault]
    assert row["detected"]
    for length in ("at 128", "at 192"):
        assert not row[length]["passed"]
        assert row[length]["operators"] > 2
        assert row[length]["stream"] > 1


def test_a_slot_that_is_not_read_is_heard_among_marked_ones(report):
    clean = report["checks"]["every slot of 192"]
    assert clean["passed"] and clean["error"] < 1e-2
    for fault in ("one slot unread", "positions off by one", "a split lost"):
        assert report["faults"][fault]["marked"]["slots"] > 3
    # Values that are wrong in the cache are not what marks are for.
    assert report["faults"]["K and V swapped"]["marked"]["passed"]


def test_a_fault_that_no_check_sees_fails_the_gate(tensors, passes, monkeypatch):
    @contextmanager
    def nothing(site):
        yield site.context

    monkeypatch.setattr(gate_examination, "FAULTS", {"nothing": nothing})
    report = examine(tensors, passes)
    assert not report["faults"]["nothing"]["detected"]
    assert not report["passed"]


def test_a_check_that_cannot_run_fails_by_itself_and_the_others_are_made(tensors, passes, monkeypatch):
    class Blind(EmulatedEngine):
        def cached(self, slots):
            raise MemoryError("no more memory")

    monkeypatch.setattr(gate_examination, "FAULTS", {})
    report = examine(tensors, passes, Blind(CONFIG, tensors, N_SLOTS))
    failed = [name for name, row in report["checks"].items() if not row["passed"]]
    assert failed == ["operators at 128", "operators at 192", "every slot of 192"]
    assert report["checks"]["operators at 128"]["failure"] == "MemoryError: no more memory"
    assert not report["passed"]


def test_an_engine_whose_results_vary_fails_the_repeats_and_what_they_are_compared_by(
    tensors, passes, monkeypatch
):
    class Restless(EmulatedEngine):
        n_runs = 0

        def run(self, *arguments, **others):
            computed = super().run(*arguments, **others)
            self.n_runs += 1
            computed.logits[0, 0] += np.float32(1e-6 * (self.n_runs % 3))
            return computed

    monkeypatch.setattr(gate_examination, "FAULTS", {})
    checks = examine(tensors, passes, Restless(CONFIG, tensors, N_SLOTS))["checks"]
    assert checks[f"{N_REPEATS} repeats"]["distinct"] == 3
    assert not checks[f"{N_REPEATS} repeats"]["passed"]
    assert not checks["same bits with traces"]["passed"]
    assert checks["tokens"]["passed"]


@pytest.fixture(scope="module")
def exact_pass(tensors, passes):
    """A pass in float64, as operators' inputs and as an engine without errors would show it."""
    exact = Reference(CONFIG, tensors, N_SLOTS, torch.float64)
    actions = np.arange(8)
    with torch.no_grad():
        exact.extend(exact.embed(passes.prompt))
        states = pass_states(exact, passes, 0, actions)
        # Keys and values as a cache holds them: in bf16.
        exact.split = lambda qkv, split=exact.split: tuple(
            part if i == 0 else part.bfloat16().double() for i, part in enumerate(split(qkv))
        )
        x, trace = exact.extend(states, is_traced=True)
        del exact.split
        logits = exact.logits(x[32:]).float().numpy()
    keys, values = (torch.stack([layer[:-8] for layer in held]) for held in (exact.keys, exact.values))
    computed = EnginePass(states[:32].mean(0).float().numpy(), actions, logits, trace)
    return exact, OperatorInputs(states, keys, values), computed


def test_an_engine_without_errors_has_none_in_any_operator(exact_pass):
    exact, inputs, computed = exact_pass
    with torch.no_grad():
        found = compare_operators(exact, inputs, computed)
    assert found["passed"] and found["error"] < 1e-6


@pytest.mark.parametrize(
    ("part", "operator"),
    [
        ("qkv", "qkv"),
        ("attended", "attention"),
        ("middle", "output"),
        ("gated", "gate_up"),
        ("out", "down"),
    ],
)
def test_an_error_in_one_token_of_one_operator_is_found_there(exact_pass, part, operator):
    exact, inputs, computed = exact_pass
    trace, layer = computed.trace.clone(), CONFIG.num_hidden_layers - 1
    span = exact.parts.spans[part]
    noise = torch.randn(span.stop - span.start, generator=torch.Generator().manual_seed(0))
    trace[5, layer, span] += 0.02 * noise * trace[5, layer, span].norm() / noise.norm()
    with torch.no_grad():
        found = compare_operators(exact, inputs, replace(computed, trace=trace))
    assert not found["passed"]
    assert found["errors"][operator][layer] > 1e-2
    assert all(error[0] < 1e-6 for name, error in found["errors"].items() if name != "head")


def test_errors_of_the_frame_s_embedding_and_of_the_head_are_found(exact_pass):
    exact, inputs, computed = exact_pass
    with torch.no_grad():
        other = replace(computed, embedding=computed.embedding * np.float32(1.02))
        assert compare_operators(exact, inputs, other)["errors"]["vision"][0] == pytest.approx(0.02, rel=0.01)
        logits = computed.logits.copy()
        logits[7] *= 1.02
        found = compare_operators(exact, inputs, replace(computed, logits=logits))
        assert found["errors"]["head"][0] == pytest.approx(0.02, rel=0.01) and not found["passed"]
        logits[7, 3] = np.nan
        assert not compare_operators(exact, inputs, replace(computed, logits=logits))["passed"]


def states_with_error(error: float) -> tuple[torch.Tensor, torch.Tensor]:
    """States whose relative L2 error is `error` in every token, and what they should be."""
    random = torch.Generator().manual_seed(1)
    wanted, noise = torch.randn(2, 6, 64, generator=random, dtype=torch.float64)
    noise *= wanted.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True)
    return wanted + error * noise, wanted


@pytest.mark.parametrize(
    ("error", "bound", "passes"),
    [(2.4e-2, 1.0, True), (2.6e-2, 1.0, False), (1.1e-2, 1e-2, False), (0.9e-2, 1e-2, True)],
)
def test_the_stream_is_bounded_by_the_limit_and_by_hugging_face_in_bf16(error, bound, passes):
    found, wanted = states_with_error(error)
    row = compare_stream([wanted, found, wanted], [wanted] * 3, [1.0, bound, 1.0])
    assert row["passed"] == passes
    assert row["error"] == pytest.approx(error) and row["limit"] == pytest.approx(min(bound, 2.5e-2))


def test_the_stream_is_judged_by_the_mean_over_tokens_in_every_layer():
    found, wanted = states_with_error(0.1)
    one_token = wanted.clone()
    one_token[2] = found[2]
    assert compare_stream([one_token], [wanted], [1.0])["error"] == pytest.approx(0.1 / 6)
    assert not compare_stream([wanted, found], [wanted] * 2, [1.0, 1.0])["passed"]
    assert not compare_stream([found * torch.nan, wanted], [wanted] * 2, [1.0, 1.0])["passed"]
    assert not compare_stream([wanted], [wanted], [float("nan")])["passed"]


def logits_with_margins(margins: np.ndarray) -> np.ndarray:
    """(passes, 8, 256) whose highest logit is 17, by `margins` (passes, 8) deviations over that of 3."""
    logits = np.random.default_rng(0).uniform(-1, 1, (*margins.shape, 256))
    logits[..., 3] = 5
    for _ in range(50):  # the deviation depends a little on the margin
        logits[..., 17] = 5 + margins * logits.std(axis=-1)
    return logits.astype(np.float32)


def test_clear_tokens_must_be_equal_and_others_need_not():
    margins = np.full((200, 8), 0.5)
    margins[:, 6:] = 0.05
    logits = logits_with_margins(margins)
    actions = np.full((200, 8), 17)
    row = compare_tokens(actions, logits)
    assert row["passed"] and row["token_agreement"] == 1.0
    assert row["clear_share"] == pytest.approx(0.75) and row["positions"] == 1600
    actions[:, 6] = 3
    row = compare_tokens(actions, logits)
    assert row["passed"] and row["token_agreement"] == 1.0
    assert row["first_divergences"] == 200
    assert row["largest_margin_of_a_first_divergence"] == pytest.approx(0.05, rel=1e-3)
    assert not differs_clearly(actions[0], logits[0])


def test_one_clear_token_in_a_thousand_may_differ_but_not_as_the_first_of_its_pass():
    margins = np.full((200, 8), 0.5)
    margins[0, 0] = 0.05
    logits = logits_with_margins(margins)
    actions = np.full((200, 8), 17)
    actions[0, :2] = 3
    row = compare_tokens(actions, logits)
    assert row["passed"] and 0.999 <= row["token_agreement"] < 1
    assert differs_clearly(actions[0], logits[0])
    actions[0, 0] = 17
    assert not compare_tokens(actions, logits)["passed"]


def test_two_in_a_thousand_or_too_few_clear_positions_fail():
    margins = np.full((100, 8), 0.5)
    margins[0, 0] = 0.05
    actions = np.full((100, 8), 17)
    actions[0, :3] = 3
    assert not compare_tokens(actions, logits_with_margins(margins))["passed"]
    margins[:, 4:] = 0.05
    row = compare_tokens(np.full((100, 8), 17), logits_with_margins(margins))
    assert row["token_agreement"] == 1.0 and row["clear_share"] < 0.6 and not row["passed"]


def test_one_bit_of_one_pass_is_seen():
    def zeros() -> EnginePass:
        return EnginePass(
            np.zeros(4, np.float32), np.zeros(8, np.int32), np.zeros((8, 256), np.float32), None
        )

    first, second = [zeros(), zeros()], [zeros(), zeros()]
    assert compare_bits(first, second)["passed"]
    second[1].embedding[2] = -0.0
    assert compare_bits(first, second) == {"passed": False, "passes": 2, "unequal": [1]}


def described(report: dict) -> dict:
    return report | {
        "model": "tiny",
        "n_slots": N_SLOTS,
        "passes": N_PASSES,
        "plan_id": "cuda-128x8-0123456789ab",
        "seconds": {"whole": 1.0},
    }


def test_the_table_says_what_was_found_and_the_verdict(report, capsys):
    gate.print_table(described(report))
    printed = capsys.readouterr().out
    assert "gate passed" in printed and "FAILED" not in printed
    assert "cuda-128x8-0123456789ab" in printed and "planted" in printed
    assert "vla-edge-backend asks 0.999" in printed


def test_the_table_of_a_failed_gate_names_the_checks_that_failed(report, capsys):
    checks = report["checks"] | {"tokens": {"passed": False, "failure": "EngineError: lost"}}
    faults = report["faults"] | {"a split lost": {"passed": False, "failure": "EngineError: lost"}}
    broken = {"checks": checks, "faults": faults}
    broken |= gate.conclude(broken)
    assert broken["passed"] is False and broken["token_agreement"] is None
    gate.print_table(described(broken))
    printed = capsys.readouterr().out
    assert "gate FAILED" in printed and "NOT" in printed and "lost" in printed


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    numpy_gate.add_arguments(parser)
    return parser.parse_args(words)


def test_the_command_gates_the_1_5b_on_cuda_and_writes_what_it_found(monkeypatch, report, tmp_path, capsys):
    asked = []
    monkeypatch.setattr(gate, "require_device", lambda: None)
    monkeypatch.setattr(gate, "run_gate", lambda *given: asked.append(given) or described(report))
    path = tmp_path / "out" / "gate.json"
    assert numpy_gate.run(parse("--backend", "cuda", "--json", str(path))) == 0
    assert numpy_gate.run(parse("--backend", "cuda", "--model", "tiny", "--seed", "4")) == 0
    assert asked == [("qwen2.5-coder-1.5b", 0), ("tiny", 4)]
    assert json.loads(path.read_text())["token_agreement"] == 1.0
    failed = described(report) | {"passed": False}
    monkeypatch.setattr(gate, "run_gate", lambda *given: failed)
    assert numpy_gate.run(parse("--backend", "cuda")) == 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("obstacle", "module", "said"),
    [
        ("no NVIDIA driver", None, "backend cuda cannot run: no NVIDIA driver; --backend numpy needs no GPU"),
        ("", "transformers", "transformers is not installed"),
    ],
)
def test_what_is_missing_is_said_in_one_line(monkeypatch, capsys, tmp_path, obstacle, module, said):
    monkeypatch.setattr(gate, "cuda_obstacle", lambda: obstacle)
    if module is not None:
        monkeypatch.setitem(sys.modules, module, None)
    path = tmp_path / "gate.json"
    assert main(["gate", "--backend", "cuda", "--json", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vla-edge gate: ") and error.count("\n") == 1 and said in error
    assert not path.exists()


def test_a_torch_that_finds_no_gpu_is_said_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(gate, "cuda_obstacle", lambda: "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["gate", "--backend", "cuda"]) == 2
    error = capsys.readouterr().err
    assert "finds no GPU" in error and error.count("\n") == 1
