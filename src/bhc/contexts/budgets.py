"""Contexts of the third kind: how much size matters."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from bhc.contexts.context import ContextBatch
from bhc.contexts.likelihoods import Gaussian, Likelihood
from bhc.contexts.space import ContextSpace
from bhc.errors import BhcError


@dataclass(frozen=True)
class Budgets(ContextSpace):
    """The paper's binary c_w: 0 is accuracy first, 1 is smallest.

    The divergence of a context is weighted by ``kl_weights[budget]``, times the ``kl_weight`` of the stage.

    Sampled as a fair coin, or trained in two stages that each fix it (``bhc.training.two_stage_budget``).
    """

    kl_weights: tuple[float, float] = (0.1, 1.0)

    def __post_init__(self) -> None:
        low, high = self.kl_weights
        if not 0 < low <= high:
            raise BhcError(f"kl_weights must be positive and ascending, given {self.kl_weights}")

    @property
    def conditions(self) -> tuple[str, ...]:
        return ("budget",)

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        budget = request["budget"]
        if not isinstance(budget, int | float) or budget not in (0, 1):
            raise BhcError(f"budget {budget!r} is not supported", hint="0 is accuracy first, 1 is smallest")
        return {"budget": float(budget)}

    def refine(self, batch: ContextBatch, *, generator: Generator) -> ContextBatch:
        coin = torch.randint(0, 2, (len(batch), 1), generator=generator, device=generator.device)
        return replace(batch, budget=coin.float())

    def kl_weight(self, budget: Tensor) -> Tensor:
        """The weight of the divergence at each budget: geometric between the two given ones."""
        low, high = self.kl_weights
        return low * (high / low) ** budget

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        assert batch.budget is not None
        return (batch.budget,)

    def likelihoods(self) -> tuple[Likelihood, ...]:
        return (Gaussian(1, std=0.25),)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "budget", "kl_weights": list(self.kl_weights)}
