"""What a training run consists of: stages, each with its own loss and its own parameters, and the batches they draw."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bhc.contexts import ContextBatch, ContextSpace, checked_draw
from bhc.errors import BhcError
from bhc.examples import Augmentation, Split
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import FreshNoise, Noise, PooledNoise


class ClassIndex:
    """A training set sorted by class, so that an example of a given class is one look-up away.

    Where examples have sources it is sorted by source and class, for contexts that ask for sources.
    """

    def __init__(self, split: Split, num_classes: int, *, device: torch.device | None = None) -> None:
        if len(split) == 0 or int(split.labels.max()) >= num_classes:
            raise BhcError(f"the training set must be non-empty with labels from 0 to {num_classes - 1}")
        self.inputs = split.inputs.to(device)
        self.counts = torch.bincount(split.labels.cpu(), minlength=num_classes)
        missing = (self.counts == 0).nonzero().flatten().tolist()
        if missing:
            raise BhcError(
                f"the training set has no example of class {missing[0]}",
                hint="every class of the network needs examples",
            )
        self.counts = self.counts.to(device)
        self._order = split.labels.cpu().argsort(stable=True).to(device)
        self._starts = self.counts.cumsum(0) - self.counts
        self.by_source = None if split.sources is None else SourceIndex(split, num_classes, device=device)

    def draw(self, batch: ContextBatch, examples: int, *, rng: Generator) -> tuple[Tensor, Tensor]:
        """Places of images and their labels, (K * B,) each: each context's classes at its rates, with replacement.

        Batch, generator and data are on one device, so that nothing is waited for.
        """
        if batch.source_rates is not None:
            if self.by_source is None:
                raise BhcError("contexts are sources, and the training set does not say where its examples are from")
            return self.by_source.draw(batch.class_rates, batch.source_rates, examples, rng=rng)
        labels = torch.multinomial(batch.class_rates, examples, replacement=True, generator=rng)
        places = torch.rand(labels.shape, generator=rng, device=rng.device) * self.counts[labels]
        return self._order[self._starts[labels] + places.long()].flatten(), labels.flatten()

    def context_sizes(self, batch: ContextBatch) -> Tensor:  # (K,)
        """``|D_t|``: how many training examples belong to each context."""
        if batch.source_rates is not None and self.by_source is not None:
            return self.by_source.context_sizes(batch.class_rates, batch.source_rates)
        return ((batch.class_rates > 0) * self.counts).sum(1).float()


class SourceIndex:
    """A training set in cells, one for each source and class."""

    def __init__(self, split: Split, num_classes: int, *, device: torch.device | None) -> None:
        assert split.sources is not None
        cells = (split.sources * num_classes + split.labels).cpu()
        num_sources = int(split.sources.max()) + 1
        counts = torch.bincount(cells, minlength=num_sources * num_classes)
        self.num_classes = num_classes
        self.counts = counts.to(device)  # (S * C,)
        self._order = cells.argsort(stable=True).to(device)
        self._starts = self.counts.cumsum(0) - self.counts

    def draw(
        self,
        class_rates: Tensor,  # (K, C)
        source_rates: Tensor,  # (K, S)
        examples: int,
        *,
        rng: Generator,
    ) -> tuple[Tensor, Tensor]:  # (K * B,) each
        """Places and labels, cells at the product of their rates; those that are empty are passed over."""
        rates = self._rates(class_rates, source_rates)
        cells = torch.multinomial(rates, examples, replacement=True, generator=rng)
        places = torch.rand(cells.shape, generator=rng, device=rng.device) * self.counts[cells]
        return self._order[self._starts[cells] + places.long()].flatten(), (cells % self.num_classes).flatten()

    def context_sizes(self, class_rates: Tensor, source_rates: Tensor) -> Tensor:  # (K,)
        return ((self._rates(class_rates, source_rates) > 0) * self.counts).sum(1).float()

    def _rates(self, class_rates: Tensor, source_rates: Tensor) -> Tensor:  # (K, S * C)
        return (source_rates[:, :, None] * class_rates[:, None]).flatten(1) * (self.counts > 0)


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
class BatchSource:
    """Where a step's randomness and examples come from."""

    data: ClassIndex
    rng: Generator  # of contexts and examples, on the device of the data
    noise: Noise
    augment: Augmentation | None = None
    teacher: Tensor | None = None  # (n, C): what the pretrained network says of each training example

    @classmethod
    def of(
        cls,
        split: Split,
        num_classes: int,
        *,
        device: torch.device,
        seed: int,
        augment: Augmentation | None = None,
    ) -> "BatchSource":
        """Everything on one device, and following from the seed."""
        rng = Generator(device).manual_seed(seed)
        noise = PooledNoise(seed) if device.type == "cpu" else FreshNoise(Generator(device).manual_seed(seed + 1))
        return cls(ClassIndex(split, num_classes, device=device), rng, noise, augment)

    @property
    def generators(self) -> dict[str, Generator]:
        """Those whose states are kept with a run, by name."""
        named = {"draw": self.rng, "noise": self.noise.rng}
        return {name: rng for name, rng in named.items() if rng is not None}


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
    steps: int
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


def draw_examples(
    network: ConditionalNetwork, draw: BatchSource, contexts: int, examples: int, budget: float | None
) -> tuple[ContextBatch, Tensor, Tensor]:
    """Contexts, their examples (K * B, ...) and labels, all on the network's device."""
    batch, places, labels = draw_places(network, draw, contexts, examples, budget)
    return *show(network, draw, batch, places), labels


def draw_places(
    network: ConditionalNetwork, draw: BatchSource, contexts: int, examples: int, budget: float | None
) -> tuple[ContextBatch, Tensor, Tensor]:
    """Contexts, places of their examples in the training set, and labels, (K * B,) each."""
    batch = checked_draw(network.space, contexts, network.num_classes, rng=draw.rng)
    if budget is not None:
        batch = replace(batch, budget=torch.full((contexts, 1), budget, device=draw.rng.device))
    return batch, *draw.data.draw(batch, examples, rng=draw.rng)


def show(
    network: ConditionalNetwork, draw: BatchSource, batch: ContextBatch, places: Tensor
) -> tuple[ContextBatch, Tensor]:
    """The contexts with what is to be seen of their examples, and these as they are learned from, (K * B, ...)."""
    x = draw.data.inputs[places]
    batch = network.space.observe(batch, x.unflatten(0, (len(batch), -1)))
    return batch, x if draw.augment is None else draw.augment(x, rng=draw.rng)


# Far below any logit, and finite: the masked entries must not turn a gradient into NaN.
OUT_OF_CONTEXT = -1e9


def restrict(logits: Tensor, outputs: Tensor) -> Tensor:
    """Logits (K * B, C) with the classes outside each context (K, C) ruled out."""
    contexts = outputs.shape[0]
    apart = logits.reshape(contexts, -1, logits.shape[1])
    return apart.masked_fill(~outputs[:, None], OUT_OF_CONTEXT).flatten(0, 1)


def negative_elbo(
    cross_entropy: Tensor,
    divergence: Tensor,  # (K or 1,) of each context's posterior from the prior
    *,
    num_data: Tensor,  # (K,)
    kl_weight: Tensor,  # (K,)
) -> Tensor:
    """``E[-log p(y | x, W)] + lambda_KL KL / N`` a training example, averaged over the contexts."""
    return cross_entropy + (kl_weight * divergence / num_data).mean()


def distillation(
    logits: Tensor,  # (n, C), restricted
    labels: Tensor,  # (n,), or (n, C) where an example belongs to several in part
    teacher_logits: Tensor,  # (n, C), restricted alike
    *,
    teacher_weight: float,
    temperature: float,
) -> Tensor:
    """``(1 - w) CE + w T^2 KL(teacher || student)`` with both softened by T."""
    loss = F.cross_entropy(logits, labels)
    if teacher_weight == 0:
        return loss
    student = F.log_softmax(logits / temperature, dim=1)
    teacher = F.log_softmax(teacher_logits / temperature, dim=1)
    softened = F.kl_div(student, teacher, log_target=True, reduction="batchmean")
    return (1 - teacher_weight) * loss + teacher_weight * temperature**2 * softened
