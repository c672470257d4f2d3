"""Contexts of the third kind: how much size matters."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import torch
from torch import Generator, Tensor

from bhc.contexts.context import ContextBatch
from bhc.contexts.likelihoods import Gaussian, Likelihood
from bhc.contexts.space import ContextSpace
from bhc.errors import BhcError

MEANING = "0 is accuracy first, 1 is smallest"


@dataclass(frozen=True)
class Budgets(ContextSpace):
    """The paper's c_w as any number from 0, accuracy first, to 1, smallest.

    The divergence of a context is weighted by ``kl_weights[0]`` at budget 0, ``kl_weights[1]`` at budget 1, and
    geometrically between them, times the ``kl_weight`` of the stage. Training draws budgets evenly, and beyond both
    ends by ``margin``: a model is at its weakest at the edge of what it has seen. In use a larger budget never keeps
    more weights (``ConditionalNetwork.dropouts``). Where a budget may be left out, that is a weight of 1, or the
    nearest there is.
    """

    kl_weights: tuple[float, float] = (0.1, 1.0)
    margin: float = 0.0

    def __post_init__(self) -> None:
        low, high = self.kl_weights
        if not 0 < low < high < float("inf"):
            raise BhcError(f"kl_weights must be positive and ascending, given {self.kl_weights}")
        if not 0 <= self.margin <= 1:
            raise BhcError(f"margin is how far training goes beyond budgets 0 and 1, from 0 to 1, given {self.margin}")

    @property
    def conditions(self) -> tuple[str, ...]:
        return ("budget",)

    @property
    def default_budget(self) -> float:
        """The budget that stands for none: the stage's own weight, unchanged."""
        low, high = (torch.tensor(weight).log() for weight in self.kl_weights)
        return float((-low / (high - low)).clamp(0, 1))

    @property
    def rises_with_budget(self) -> bool:
        return True

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        budget = request["budget"]
        if isinstance(budget, bool) or not isinstance(budget, Real) or not 0 <= float(budget) <= 1:
            raise BhcError(f"budget {budget!r} is outside what this model takes: 0 to 1", hint=MEANING)
        return {"budget": float(budget)}

    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        even = torch.rand(len(batch), 1, generator=rng, device=rng.device)
        return replace(batch, budget=even * (1 + 2 * self.margin) - self.margin)

    def forget(self, batch: ContextBatch, told: Tensor) -> ContextBatch:
        assert batch.budget is not None
        return replace(batch, budget=batch.budget.where(told[:, None], self.default_budget))

    def kl_weight(self, budget: Tensor) -> Tensor:
        """The weight of the divergence at each budget: geometric between the two given ones."""
        low, high = self.kl_weights
        return low * (high / low) ** budget

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        if batch.budget is None:
            return (torch.full_like(batch.class_rates[:, :1], self.default_budget),)
        return (batch.budget,)

    def likelihoods(self) -> tuple[Likelihood, ...]:
        return (Gaussian(1, std=0.25),)

    def describe(self) -> dict[str, str]:
        return {"budget": f"a number from 0 to 1: {MEANING}"}

    def to_dict(self) -> dict[str, Any]:
        beyond = {"margin": self.margin} if self.margin else {}  # runs from before there was one say nothing of it
        return {"kind": "budgets", "kl_weights": list(self.kl_weights), **beyond}


@dataclass(frozen=True)
class BinaryBudget(Budgets):
    """The paper's own c_w: 0 or 1 and nothing between.

    Sampled as a fair coin, or trained in two stages that each fix it (``bhc.two_stage_budget``). The two networks
    are cut at thresholds of their own, so nothing ties one to the other.
    """

    margin: float = field(default=0.0, init=False)  # there is nothing beyond

    @property
    def default_budget(self) -> float:
        return float(round(super().default_budget))

    @property
    def rises_with_budget(self) -> bool:
        return False

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        budget = request["budget"]
        if isinstance(budget, bool) or not isinstance(budget, Real) or float(budget) not in (0, 1):
            raise BhcError(f"budget {budget!r} is outside what this model takes: 0 or 1", hint=MEANING)
        return {"budget": float(budget)}

    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        coin = torch.randint(0, 2, (len(batch), 1), generator=rng, device=rng.device)
        return replace(batch, budget=coin.float())

    def describe(self) -> dict[str, str]:
        return {"budget": f"0 or 1: {MEANING}"}

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "budget", "kl_weights": list(self.kl_weights)}
