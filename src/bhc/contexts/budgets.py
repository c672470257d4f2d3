"""Contexts of the third kind: how much size matters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from bhc.contexts.context import ContextBatch
from bhc.contexts.registry import register_context
from bhc.contexts.space import (
    BudgetEmbedder,
    ContextSpace,
    Gaussian,
    Likelihood,
    Option,
    ProbeRequest,
    TrainingData,
    VectorEmbedder,
)
from bhc.errors import BhcError

MEANING = "0 is accuracy first, 1 is smallest"
MARGIN = Option(
    "margin",
    "With budgets: learn this far beyond 0 and 1 too, which makes both ends better.",
    value_type=float,
    default=0.0,
)
TWO_STAGE = "two_stage"  # chosen on the command line: budgets of 0 and 1 alone


@register_context
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

    rank = 3
    kind = "budgets"
    conditions = ("budget",)
    rises_with_budget = True
    options = (Option("budget", f"{MEANING}.", value_type=float, example="1"),)
    training_options = (MARGIN,)
    allowed = "a number from 0 to 1"
    step = 0.05  # of a slider
    probed: ClassVar[tuple[float, ...]] = (0.0, 0.25, 0.5, 0.75, 1.0)

    def __post_init__(self) -> None:
        low, high = self.kl_weights
        object.__setattr__(self, "kl_weights", (low, high))
        if not 0 < low < high < float("inf"):
            raise BhcError(f"kl_weights must be positive and ascending, given {self.kl_weights}")
        if not 0 <= self.margin <= 1:
            raise BhcError(f"margin is how far training goes beyond budgets 0 and 1, from 0 to 1, given {self.margin}")

    @property
    def default_budget(self) -> float:
        """The budget that stands for none: the stage's own weight, unchanged."""
        low, high = (torch.tensor(weight).log() for weight in self.kl_weights)
        return float((-low / (high - low)).clamp(0, 1))

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

    def default_parts(self) -> dict[str, Any]:
        return {"budget": self.default_budget}

    def divergence_weights(self, batch: ContextBatch) -> Tensor:
        """Geometric between the two given weights."""
        if batch.budget is None:
            return super().divergence_weights(batch)
        low, high = self.kl_weights
        return low * (high / low) ** batch.budget[:, 0]

    def embedder(self, width: int) -> nn.Module:
        return BudgetEmbedder(width)

    def embedder_alone(self, width: int) -> tuple[nn.Module, int]:
        return VectorEmbedder(1, width), width

    def probes(self, num_classes: int, limit: int) -> Sequence[ProbeRequest]:
        return [ProbeRequest({"budget": budget}) for budget in self.probed]

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        if batch.budget is None:
            return (torch.full_like(batch.class_rates[:, :1], self.default_budget),)
        return (batch.budget,)

    def likelihoods(self) -> tuple[Likelihood, ...]:
        return (Gaussian(1, std=0.25),)

    def form(self) -> dict[str, dict[str, Any]]:
        control = {"kind": "range", "low": 0.0, "high": 1.0, "step": self.step, "default": self.default_budget}
        title = {"title": "How much size matters", "ends": ["accuracy first", "smallest"]}
        return {"budget": {"words": f"{self.allowed}: {MEANING}", **control, **title}}

    def to_dict(self) -> dict[str, Any]:
        beyond = {"margin": self.margin} if self.margin else {}  # runs from before there was one say nothing of it
        return {"kind": self.kind, "kl_weights": list(self.kl_weights), **beyond}

    @classmethod
    def for_data(cls, data: TrainingData, chosen: Mapping[str, Any]) -> "Budgets | None":
        return None if chosen[TWO_STAGE] else cls(margin=chosen[MARGIN.name])


@register_context
@dataclass(frozen=True)
class BinaryBudget(Budgets):
    """The paper's own c_w: 0 or 1 and nothing between.

    Sampled as a fair coin, or trained in two stages that each fix it (``bhc.two_stage_budget``). The two networks
    are cut at thresholds of their own, so nothing ties one to the other.
    """

    margin: float = field(default=0.0, init=False)  # there is nothing beyond

    kind = "budget"
    rises_with_budget = False
    allowed = "0 or 1"
    step = 1.0
    probed = (0.0, 1.0)

    @property
    def default_budget(self) -> float:
        return float(round(super().default_budget))

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        budget = request["budget"]
        if isinstance(budget, bool) or not isinstance(budget, Real) or float(budget) not in (0, 1):
            raise BhcError(f"budget {budget!r} is outside what this model takes: 0 or 1", hint=MEANING)
        return {"budget": float(budget)}

    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        coin = torch.randint(0, 2, (len(batch), 1), generator=rng, device=rng.device)
        return replace(batch, budget=coin.float())

    def embedder_alone(self, width: int) -> tuple[nn.Module, int]:
        """One number that the maps can read as it is: an embedding would add nothing but width."""
        return nn.Identity(), 1

    @classmethod
    def for_data(cls, data: TrainingData, chosen: Mapping[str, Any]) -> "BinaryBudget | None":
        if not chosen[TWO_STAGE]:
            return None
        if margin := chosen[MARGIN.name]:
            raise BhcError(
                f"two stages have a budget of 0 and one of 1, given --margin {margin:g}", hint="leave it out"
            )
        return cls()
