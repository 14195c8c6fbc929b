"""Muon for the layers' matrices, AdamW for all else, as one optimiser that a file can hold."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

MUON_RATE = 1.5
"""Muon's learning rate, as a multiple of AdamW's."""


class Optimiser:
    """Over parameters by name: those of `model.layers` with two dimensions are Muon's (Jordan et al., 2024).

    Its updates are scaled to the size of AdamW's (Liu et al., 2025), so both follow one schedule.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], weight_decay: float) -> None:
        self._parameters = dict(parameters)
        self._is_muons = {
            name: value.ndim == 2 and name.startswith("model.layers.")
            for name, value in self._parameters.items()
        }
        matrices, tables, vectors = [], [], []
        for name, value in self._parameters.items():
            (matrices if self._is_muons[name] else tables if value.ndim > 1 else vectors).append(value)
        self._muon = torch.optim.Muon(
            matrices, lr=0.0, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        groups = [
            {"params": tables, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98))

    def step(self, rate: float) -> None:
        """One step with gradients bounded to a norm of 1; `rate`: AdamW's learning rate."""
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), 1.0)
        for optimiser, of_its_own in ((self._muon, MUON_RATE), (self._adam, 1.0)):
            for group in optimiser.param_groups:
                group["lr"] = rate * of_its_own
            optimiser.step()

    def zero_grad(self) -> None:
        for value in self._parameters.values():
            value.grad = None

    def moments(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """First moments of all parameters, second ones of AdamW's."""
        first, second = {}, {}
        for name, value in self._parameters.items():
            if self._is_muons[name]:
                first[name] = self._muon.state[value]["momentum_buffer"]
            else:
                first[name] = self._adam.state[value]["exp_avg"]
                second[name] = self._adam.state[value]["exp_avg_sq"]
        return first, second

    def restore(self, first: Mapping[str, Tensor], second: Mapping[str, Tensor], step: int) -> None:
        for name, value in self._parameters.items():
            if self._is_muons[name]:
                self._muon.state[value] = {"momentum_buffer": first[name]}
            else:
                self._adam.state[value] = {
                    "step": torch.tensor(float(step)),
                    "exp_avg": first[name],
                    "exp_avg_sq": second[name],
                }
