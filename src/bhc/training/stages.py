"""What a training run consists of: stages, each with its own loss and its own parameters."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from bhc.contexts import BinaryBudget, ContextBatch, ContextSpace
from bhc.errors import BhcError
from bhc.hypernet import ConditionalNetwork
from bhc.tasks import ABSENT
from bhc.training.batches import BatchSource


def blend(
    kinds: tuple[Tensor, ...],  # (K * B, ...) each: images, targets, ... of the same examples
    contexts: int,
    *,
    part: float,
    rng: Generator,
) -> tuple[Tensor, ...]:
    """Each example of such a part mixed with another of its context, up to half and half; all kinds alike."""
    examples, device = len(kinds[0]), rng.device
    chosen, share = torch.rand(2, examples, generator=rng, device=device)
    share = torch.where(chosen < part, share / 2, 0.0)
    blended = []
    for values in kinds:
        apart = values.float().unflatten(0, (contexts, -1))
        own = share.reshape(contexts, -1, *[1] * (values.ndim - 1))
        blended.append(torch.lerp(apart, apart.roll(1, dims=1), own).flatten(0, 1))
    return tuple(blended)


EXTRAS = ("context_weight", "blended")  # numbers that are off at zero


@dataclass(frozen=True)
class Loss:
    """What a step minimises, with the terms worth showing."""

    total: Tensor
    terms: dict[str, Tensor]


@dataclass(frozen=True)
class StepScalars:
    """Numbers that change from step to step; on the device, so that a captured step reads what they are by then."""

    warmth: Tensor  # (): how far what is warmed up has come, 0 to 1
    dropped_fraction: Tensor  # (): the part of the units that is gone, in stages that narrow


class Stage(ABC):
    """A number of optimiser steps with one loss. Frozen values: a run stores them and compares them."""

    kind: ClassVar[str]
    title: ClassVar[str]
    noisy: ClassVar[bool] = True  # whether what it computes with is drawn
    looks: ClassVar[bool] = False  # whether it is of use without steps, for what it finds out
    within_ends: ClassVar[bool] = False  # whether budgets beyond both ends become the ends, which can be asked for
    steps: int
    contexts: int = 16  # K
    examples: int = 16  # B
    budget: float | None = None  # the only one that it trains for, where budgets are conditioned on
    context_weight: float = 0.0  # of reading contexts back from the masks; 0 where it does not

    def check(self, network: ConditionalNetwork) -> None:
        """Raise if this stage makes no sense for such a network or its contexts."""
        return

    @abstractmethod
    def prepare_(self, network: ConditionalNetwork) -> None:
        """Freeze or thaw what this stage needs; called once at its start, and again after a resume."""

    def equipped(self, network: ConditionalNetwork, draw: BatchSource) -> BatchSource:
        """What its steps draw from, with all that need not be worked out in each of them; called once, after that."""
        return draw

    @abstractmethod
    def parameter_groups(self, network: ConditionalNetwork) -> list[dict[str, Any]]:
        """Parameters with their learning rates, as an optimiser takes them."""

    @abstractmethod
    def loss(self, network: ConditionalNetwork, draw: BatchSource, scalars: StepScalars) -> Loss:
        """The loss of one step on contexts and examples drawn anew."""

    def warmth(self, step: int) -> float:
        """How far what is warmed up has come, 0 to 1."""
        return 1.0

    def ratio(self, step: int) -> float | None:
        """How many times smaller networks are by then, where the stage decides that."""
        return None

    @property
    def largest_ratio(self) -> float | None:
        """The most that the stage asks for, where it asks for ratios."""
        return None

    def resolved(self, network: ConditionalNetwork, contexts: ContextBatch) -> "Stage":
        """The stage as it is run, once all before it is done; ``contexts`` are some that it trains for."""
        return self

    def rate_factor(self, step: int) -> float:
        """Constant, then linearly to zero over the last part of the stage."""
        left = (self.steps - step) / self.steps
        return min(1.0, left / 0.4)

    def to_dict(self) -> dict[str, Any]:
        """What describes it. Extras that are off are left out, so that checkpoints from before there were any go on."""
        numbers = asdict(self)  # type: ignore[call-overload]
        return {"kind": self.kind} | {name: value for name, value in numbers.items() if value or name not in EXTRAS}


@dataclass(frozen=True)
class WithoutSteps(Stage):
    """Something that is done between stages, or once they are over."""

    steps: int = 0

    def parameter_groups(self, network: ConditionalNetwork) -> list[dict[str, Any]]:
        return []

    def loss(self, network: ConditionalNetwork, draw: BatchSource, scalars: StepScalars) -> Loss:
        raise AssertionError("a stage without steps has no loss")


@dataclass(frozen=True)
class FreezeOffsets(WithoutSteps):
    """Between the two stages of a budget: what a zero embedding generates stays as it is from here on."""

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


@dataclass(frozen=True)
class MeasureCurvature(WithoutSteps):
    """Look at the pretrained network on some examples of each class: what it can spare for a context, and what makes
    up for that (``bhc.curvature``). Nothing is learned, and it takes no steps; networks that keep much of the original
    come from it. ``per_class`` examples show what layers read, ``graded`` of them what that does to the outputs.
    """

    per_class: int = 256
    graded: int = 64
    kind = "measure-curvature"
    title = "measuring the curvature"
    looks = True

    def __post_init__(self) -> None:
        if not 0 < self.graded <= self.per_class or self.steps:
            raise BhcError(
                f"curvature is measured on some examples of each class, without steps; given {self.per_class} of which"
                f" {self.graded} are graded, {self.steps} steps",
                hint="MeasureCurvature(per_class=256, graded=64) are the usual numbers",
            )

    def check(self, network: ConditionalNetwork) -> None:
        if not network.pretrained:
            raise BhcError("a network that knows nothing has no curvature to be cut by", hint="leave the stage out")

    def prepare_(self, network: ConditionalNetwork) -> None:
        """Nothing changes."""


Recipe = tuple[Stage, ...]


def groups(by_parameter: dict[nn.Parameter, float]) -> list[dict[str, Any]]:
    """Parameters that learn, those of one rate together, as an optimiser takes them."""
    by_rate: dict[float, list[nn.Parameter]] = {}
    for parameter, rate in by_parameter.items():
        if parameter.requires_grad:
            by_rate.setdefault(rate, []).append(parameter)
    return [{"params": parameters, "lr": rate} for rate, parameters in by_rate.items()]


def check_numbers(stage: Any, *, positive: tuple[str, ...], not_negative: tuple[str, ...]) -> None:
    """Every number of a stage is finite and on the right side of zero."""
    limits = [(name, 0.0, False) for name in positive] + [(name, 0.0, True) for name in not_negative]
    limits += [("steps", 0, True), ("contexts", 1, True), ("examples", 1, True)]
    for name, least, allowed in limits:
        value = getattr(stage, name)
        if value is not None and not (isfinite(value) and (value > least or (allowed and value == least))):
            word = "at least" if allowed else "more than"
            raise BhcError(f"{name} must be a number of {word} {least:g}, given {value}")


def check_budget(budget: float | None, space: ContextSpace) -> None:
    if budget is not None and "budget" not in space.conditions:
        raise BhcError(f"a stage at budget {budget:g}, but budgets are not conditioned on")


def restrict(outputs: Tensor, kept: Tensor) -> Tensor:
    """Outputs (K * B, O, ...) with those that each context has not, of (K, O), ruled out."""
    apart = outputs.unflatten(0, (len(kept), -1))
    absent = ~kept.reshape(len(kept), 1, -1, *[1] * (outputs.dim() - 2))
    return apart.masked_fill(absent, ABSENT).flatten(0, 1)


def negative_elbo(
    cross_entropy: Tensor,
    divergence: Tensor,  # (K or 1,) of each context's posterior from the prior
    *,
    num_data: Tensor,  # (K,)
    kl_weight: Tensor,  # (K,)
) -> Tensor:
    """``E[-log p(y | x, W)] + lambda_KL KL / N`` a training example, averaged over the contexts."""
    return cross_entropy + (kl_weight * divergence / num_data).mean()
