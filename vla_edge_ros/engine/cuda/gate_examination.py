"""One engine under every check of the gate."""

import time
from collections.abc import Callable

import numpy as np
import torch

from vla_edge_ros.engine.cuda.gate_checks import (
    OperatorInputs,
    bits_of,
    compare_bits,
    compare_operators,
    compare_stream,
    compare_tokens,
    differs_clearly,
    likeness,
    mean_errors,
)
from vla_edge_ros.engine.cuda.gate_coverage import compare_marked, mark_values
from vla_edge_ros.engine.cuda.gate_evictions import compare_after_evictions
from vla_edge_ros.engine.cuda.gate_faults import FAULTS, Fault, Site, no_fault
from vla_edge_ros.engine.cuda.gate_hugging_face import run_hugging_face
from vla_edge_ros.engine.cuda.gate_passes import (
    PASS_TOKENS,
    PROMPT_TOKENS,
    SHORT_PASS,
    EnginePass,
    Passes,
    Probe,
    layers_of,
    pass_states,
)
from vla_edge_ros.engine.cuda.gate_weights import HeldWeights, Tensors
from vla_edge_ros.engine.cuda.reference import Reference
from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS
from vla_edge_ros.engine.model_config import ModelConfig

_REPEATS_BETWEEN_POISONS = 10


class Examination:
    """The engine behind `probe` holds `tensors`; `passes` is what it is given.

    It computes all passes once in each build, and Hugging Face computes them once in float32 and once in
    bf16; the checks read what they left.
    """

    def __init__(self, config: ModelConfig, tensors: Tensors, passes: Passes, probe: Probe):
        self.config, self.tensors, self.passes, self.probe = config, tensors, passes, probe
        self.exact = Reference(config, tensors, passes.n_slots, torch.float64)
        self.single = Reference(config, tensors, passes.n_slots)
        self.last = len(passes.frames) - 1

    @torch.no_grad()
    def report(self, n_repeats: int, say: Callable[[str], None]) -> dict:
        """`checks` and `faults` by name, `seconds` by part; a check that cannot run has failed and says why.

        say: is told what begins.
        """
        report: dict = {"checks": {}, "faults": {}, "seconds": {}}
        checks = report["checks"]

        def attempt(name: str, check: Callable[[], dict], into: dict = checks) -> None:
            say(name)
            began = time.perf_counter()
            try:
                into[name] = check()
            except Exception as error:
                into[name] = {"passed": False, "failure": f"{type(error).__name__}: {error}"}
            report["seconds"][name] = round(time.perf_counter() - began, 2)

        attempt("same bits with traces", self.compute)
        attempt("hugging face", self.refer)
        attempt("tokens", self.check_tokens)
        attempt("stream, prefilled", lambda: self.check_stream(~self.passes.is_decoded()))
        attempt("stream, decoded", lambda: self.check_stream(self.passes.is_decoded()))
        for index in (SHORT_PASS, self.last):
            attempt(f"operators at {self.n_ranks(index)}", lambda index=index: self.check_operators(index))
        attempt(f"every slot of {self.n_ranks(self.last)}", self.check_coverage)
        attempt(f"{n_repeats} repeats", lambda: self.check_repeats(n_repeats))
        for name, fault in FAULTS.items():
            attempt(name, lambda fault=fault: self.check_fault(fault), report["faults"])
        attempt("same bits after the faults", self.check_mended)
        # Last: it leaves other frames in memory than all others look at.
        attempt("stream after evictions", self.check_evictions)
        return report

    def n_ranks(self, index: int) -> int:
        return len(self.passes.context(index)) + PASS_TOKENS

    def compute(self) -> dict:
        """All passes in both builds. Traces must change no bit: what is seen in them holds for both."""
        passes, out = self.passes, self.exact.parts.spans["out"]
        n_tokens = PROMPT_TOKENS + len(passes.frames) * PASS_TOKENS
        shape = (n_tokens, self.config.num_hidden_layers, self.config.hidden_size)
        self.found = torch.empty(shape, device=self.exact.device)
        self.found[:PROMPT_TOKENS] = self.probe.fill_prompt(passes.prompt, passes.prompt_slots)
        self.plain: list[EnginePass] = []
        bits_only = []
        for index in range(len(passes.frames)):
            self.plain.append(self.run_pass(index, is_traced=False))
            traced = self.run_pass(index)
            self.found[passes.tokens_of(index)] = traced.trace[..., out]
            bits_only.append(EnginePass(traced.embedding, traced.actions, traced.logits, None))
        self.actions = np.stack([computed.actions for computed in self.plain])
        return compare_bits(bits_only, self.plain)

    def run_pass(self, index: int, block: int | None = None, is_traced: bool = True) -> EnginePass:
        """Pass `index`, its frame's keys and values to the slots of its own block or of another one."""
        passes = self.passes
        slots = passes.block_slots(passes.n_kept(index) if block is None else block)
        return self.probe.run(
            passes.context(index), slots, passes.frames[index], int(passes.starts[index]), is_traced
        )

    def refer(self) -> dict:
        states = [self.single.embed(self.passes.prompt)]
        for index, actions in enumerate(self.actions):
            states.append(pass_states(self.single, self.passes, index, actions))
        inputs = torch.cat(states)
        run = (self.config, self.tensors)
        self.wanted = run_hugging_face(*run, torch.float32, self.passes, inputs)
        self.rounded = run_hugging_face(*run, torch.bfloat16, self.passes, inputs)
        return {"passed": True, "tokens": len(inputs)}

    def check_tokens(self) -> dict:
        return compare_tokens(self.actions, self.wanted.logits.cpu().numpy())

    def check_stream(self, tokens: np.ndarray) -> dict:
        chosen = torch.from_numpy(np.flatnonzero(tokens)).to(self.found.device)
        wanted, rounded = (
            [layer[chosen] for layer in stream.layers] for stream in (self.wanted, self.rounded)
        )
        report = compare_stream(
            layers_of(self.single, self.found[chosen]), wanted, mean_errors(rounded, wanted)
        )
        return report | {"tokens": len(chosen), "likeness_of_bf16": likeness(rounded, wanted)}

    def check_operators(self, index: int) -> dict:
        """Of pass `index`, run again with its frame in the last block's slots: no bit may change by that."""
        computed = self.run_pass(index, self.passes.n_frames - 1)
        report = compare_operators(self.exact, self.operator_inputs(index, computed), computed)
        report["slots_matter"] = bits_of(computed) != bits_of(self.plain[index])
        report["passed"] = report["passed"] and not report["slots_matter"]
        return report

    def operator_inputs(self, index: int, computed: EnginePass) -> OperatorInputs:
        passes = self.passes
        slots = np.concatenate([passes.context(index), passes.block_slots(passes.n_frames - 1)])
        states = pass_states(self.exact, passes, index, computed.actions)
        return OperatorInputs(states, *self.probe.cached(slots))

    def check_coverage(self, fault: Fault = no_fault) -> dict:
        """The last pass over a context with marked values."""
        context = self.passes.context(self.last)
        values = mark_values(self.probe, context)
        try:
            computed = self.run_broken(self.last, fault)
            return compare_marked(self.exact, self.operator_inputs(self.last, computed), computed)
        finally:
            self.probe.set_values(context, values)

    def run_broken(self, index: int, fault: Fault) -> EnginePass:
        """Pass `index` with a fault in it, its frame in the last block's slots."""
        passes, weights = self.passes, HeldWeights(self.tensors)
        site = Site(self.probe, self.config, weights, passes.n_slots, passes.context(index))
        with fault(site) as context:
            slots = passes.block_slots(passes.n_frames - 1)
            return self.probe.run(context, slots, passes.frames[index], int(passes.starts[index]))

    def check_fault(self, fault: Fault) -> dict:
        """The passes with the fault in them, by the same comparisons; `detected` if one of them fails."""
        found = {
            f"at {self.n_ranks(index)}": self._judge_pass(index, self.run_broken(index, fault))
            for index in (SHORT_PASS, self.last)
        }
        coverage = self.check_coverage(fault)
        found["marked"] = {"passed": coverage["passed"], "slots": coverage["error"] / coverage["limit"]}
        detected = [row for row in found.values() if not row["passed"]]
        return {"detected": bool(detected), "passed": bool(detected)} | found

    def _judge_pass(self, index: int, computed: EnginePass) -> dict:
        operators = compare_operators(self.exact, self.operator_inputs(index, computed), computed)
        # Steps that were fed as the reference was: up to the first token that differs.
        differences = np.flatnonzero(computed.actions != self.actions[index])
        n_alike = int(differences[0]) + 1 if len(differences) else MAX_ACTION_TOKENS
        tokens = slice(0, FRAME_TOKENS + n_alike)
        span = self.passes.tokens_of(index)
        wanted, rounded = (
            [layer[span][tokens] for layer in stream.layers] for stream in (self.wanted, self.rounded)
        )
        out = computed.trace[tokens, :, self.exact.parts.spans["out"]]
        stream = compare_stream(layers_of(self.single, out), wanted, mean_errors(rounded, wanted))
        logits = self.wanted.logits[index, :n_alike].cpu().numpy()
        is_clear = differs_clearly(computed.actions[:n_alike], logits)
        return {
            "passed": operators["passed"] and stream["passed"] and not is_clear,
            "operators": operators["error"] / operators["limit"],
            "stream": stream["error"] / stream["limit"],
            "tokens_differ_clearly": is_clear,
        }

    def check_mended(self) -> dict:
        indices = (SHORT_PASS, self.last)
        again = [self.run_pass(index, self.passes.n_frames - 1) for index in indices]
        return compare_bits(again, [self.plain[index] for index in indices])

    def check_repeats(self, n_repeats: int) -> dict:
        """The last pass again and again, in the build that robots run, whatever workspaces held before."""
        seen = {bits_of(self.plain[self.last])}
        for repeat in range(n_repeats):
            if repeat % _REPEATS_BETWEEN_POISONS == 0:
                self.probe.poison_workspaces()
            seen.add(bits_of(self.run_pass(self.last, is_traced=False)))
        return {"passed": len(seen) == 1, "repeats": n_repeats, "distinct": len(seen)}

    def check_evictions(self) -> dict:
        return compare_after_evictions(
            self.config, self.tensors, self.passes, self.probe, self.wanted, self.rounded
        )
