"""Variational learning: with all units, while units go, and in the two stages of a budget."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bhc.contexts import BinaryBudget, Budgets
from bhc.errors import BhcError
from bhc.hypernet import ConditionalNetwork
from bhc.training import optimiser
from bhc.training.objective import negative_elbo, restrict
from bhc.training.stages import (
    BatchSource,
    Loss,
    Recipe,
    Stage,
    StepScalars,
    check_budget,
    check_numbers,
    draw_examples,
    groups,
)


@dataclass(frozen=True)
class Learn(Stage):
    """Variational learning: the noisy network under the objective of Eq. 3.

    ``num_data`` is N in the objective; by default ``|D_t|``, the training examples of each context's classes.
    ``budget`` fixes c_w for the whole stage; by default it is drawn. Log-variances start far from where they
    end and move by about a rate a step, hence a rate of their own. What depends on the context, the embedder
    and the maps that read it, moves more slowly than what all contexts share (``map_slowdown``). Means of weights take
    smaller steps in deep networks and where they are small (``bhc.training.optimiser``).

    ``context_weight`` is that of ``-log p(c | z)``, the term of Eq. 2 that the paper leaves out: a decoder learns
    beside the hypernetwork to read the context back from the masks, and is dropped when training ends.
    """

    steps: int = 4000
    kl_weight: float = 2.0
    warm_up: float = 0.5  # fraction of the steps over which the weight rises from zero
    rate: float = 3e-3
    logvar_rate: float = 3e-2
    map_slowdown: float = 3.0
    contexts: int = 16  # K
    examples: int = 16  # B
    budget: float | None = None
    num_data: float | None = None
    context_weight: float = 0.0
    kind = "learn"
    title = "learning"

    def __post_init__(self) -> None:
        positive = ("rate", "logvar_rate", "map_slowdown", "num_data")
        check_numbers(self, positive=positive, not_negative=("kl_weight", "context_weight"))
        if not 0 <= self.warm_up <= 1:
            raise BhcError(f"warm_up is a fraction of the steps, 0 to 1, given {self.warm_up}")

    def check(self, network: ConditionalNetwork) -> None:
        check_budget(self.budget, network.space)
        if self.context_weight:
            network.check_readable()
            if self.budget is not None and isinstance(network.space, Budgets):
                raise BhcError(
                    f"a stage at budget {self.budget:g} has one context, and nothing to read back",
                    hint="leave context_weight at 0, or let budgets be drawn",
                )

    def prepare_(self, network: ConditionalNetwork) -> None:
        network.hypernet.thaw_()

    def parameter_groups(self, network: ConditionalNetwork) -> list[dict[str, Any]]:
        factors, others = optimiser.of_weights(network), optimiser.of_vectors(network)
        by_parameter = {}
        for name, parameter in network.hypernet.named_parameters():
            rate = self.logvar_rate if "logvar" in name else self.rate * factors.get(parameter, others)
            by_parameter[parameter] = rate if name.endswith("offset") else rate / self.map_slowdown
        if self.context_weight and network.decoder is not None:
            by_parameter |= dict.fromkeys(network.decoder.parameters(), self.rate / self.map_slowdown)
        return groups(by_parameter)

    def loss(self, network: ConditionalNetwork, draw: BatchSource, scalars: StepScalars) -> Loss:
        batch, x, labels = draw_examples(network, draw, self.contexts, self.examples, self.budget)
        logits, posteriors = network.noisy(x, batch, noise=draw.noise, dropped_fraction=self.left_out(scalars))
        cross_entropy = F.cross_entropy(restrict(logits, batch.outputs), labels)
        divergence = network.hypernet.kl(posteriors)
        num_data = draw.data.context_sizes(batch)
        if self.num_data is not None:
            num_data = torch.full_like(num_data, self.num_data)
        weight = network.space.divergence_weights(batch) * self.kl_weight * scalars.warmth
        total = negative_elbo(cross_entropy, divergence, num_data=num_data, kl_weight=weight)
        terms = {"cross_entropy": cross_entropy, "kl": (divergence / num_data).mean()}
        if self.context_weight:
            terms["context_nll"] = network.context_nll(posteriors, batch, noise=draw.noise).mean()
            total = total + self.context_weight * terms["context_nll"]
        return Loss(total, terms)

    def left_out(self, scalars: StepScalars) -> Tensor | None:
        """Which part of the units a step does without; None where none is left out."""
        return None

    def warmth(self, step: int) -> float:
        warm_steps = self.warm_up * self.steps
        return 1.0 if warm_steps <= 0 else min(1.0, step / warm_steps)


@dataclass(frozen=True)
class Narrow(Learn):
    """Learning that goes on while units go, until networks are ``final_ratio`` times smaller.

    Wide layers share what they know among many units: each is of little use, none of no use, and cutting nine of ten
    at once leaves nothing. Here those with the largest dropout rates go first, a few at a time, and the rates of the
    others fall as they take over, so that no layer runs dry. The ratio, harmonic over contexts, rises from 1 by equal
    factors over ``closing`` of the steps.
    """

    warm_up: float = 0.0
    final_ratio: float = 10.0
    closing: float = 0.7  # fraction of the steps
    kind = "narrow"
    title = "narrowing"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.final_ratio < float("inf"):
            raise BhcError(f"final_ratio is how many times smaller networks become, given {self.final_ratio}")
        if not 0 <= self.closing <= 1:
            raise BhcError(f"closing is a fraction of the steps, 0 to 1, given {self.closing}")

    def check(self, network: ConditionalNetwork) -> None:
        super().check(network)
        if network.hypernet.family.cuts_weights:
            raise BhcError(
                "narrowing takes units away, and this family has scales for single weights alone",
                hint="leave Narrow out of the recipe, or wrap with another family",
            )

    def ratio(self, step: int) -> float:
        closing = self.closing * self.steps
        return float(self.final_ratio ** (1.0 if closing <= 0 else min(1.0, step / closing)))

    @property
    def largest_ratio(self) -> float:
        return self.final_ratio

    def left_out(self, scalars: StepScalars) -> Tensor:
        return scalars.dropped_fraction


@dataclass(frozen=True)
class FreezeOffsets(Stage):
    """Between the two stages of a budget: what a zero embedding generates stays as it is from here on."""

    steps: int = 0
    kind = "freeze-offsets"
    title = "freezing"

    def check(self, network: ConditionalNetwork) -> None:
        if not isinstance(network.space, BinaryBudget):
            raise BhcError(
                "the two-stage recipe is for a budget of 0 or 1 alone: with others budget 0 is not one network",
                hint="wrap with BinaryBudget(), or leave it out; budgets are then drawn at random",
            )

    def prepare_(self, network: ConditionalNetwork) -> None:
        network.hypernet.freeze_offsets_()

    def parameter_groups(self, network: ConditionalNetwork) -> list[dict[str, Any]]:
        return []

    def loss(self, network: ConditionalNetwork, draw: BatchSource, scalars: StepScalars) -> Loss:
        raise AssertionError("a stage without steps has no loss")


def two_stage_budget(low: Learn, high: Learn) -> Recipe:
    """The paper's c_w recipe: learn at budget 0, freeze what that generates, learn at budget 1."""
    return (replace(low, budget=0.0), FreezeOffsets(), replace(high, budget=1.0))
