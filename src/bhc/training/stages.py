"""What a training run consists of: stages, each with its own loss and its own parameters."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bhc.contexts import Budgets, ContextBatch, ContextSpace, Joint
from bhc.data import Split
from bhc.data.augment import Augmentation
from bhc.errors import BhcError
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import FreshNoise, LayerPosterior, Noise, PooledNoise
from bhc.training import rates
from bhc.training.batches import ClassIndex
from bhc.training.evaluation import threshold_for
from bhc.training.objective import distillation, negative_elbo, restrict

USUAL_THRESHOLDS = (-2.0, 1.0)  # a unit with a log dropout rate of more than 1 tells nothing


@dataclass(frozen=True)
class Draw:
    """Where a step's randomness and examples come from."""

    data: ClassIndex
    generator: Generator  # of contexts and examples, on the device of the data
    noise: Noise
    augment: Augmentation | None = None

    @classmethod
    def of(
        cls,
        split: Split,
        num_classes: int,
        *,
        device: torch.device,
        seed: int,
        augment: Augmentation | None = None,
    ) -> "Draw":
        """Everything on one device, and following from the seed."""
        generator = Generator(device).manual_seed(seed)
        noise = PooledNoise(seed) if device.type == "cpu" else FreshNoise(Generator(device).manual_seed(seed + 1))
        return cls(ClassIndex(split, num_classes, device=device), generator, noise, augment)

    @property
    def generators(self) -> dict[str, Generator]:
        """Those whose states are kept with a run, by name."""
        named = {"draw": self.generator, "noise": self.noise.generator}
        return {name: generator for name, generator in named.items() if generator is not None}


@dataclass(frozen=True)
class Loss:
    """What a step minimises, with the terms worth showing."""

    total: Tensor
    terms: dict[str, Tensor]


@dataclass(frozen=True)
class Dials:
    """Numbers that change from step to step; on the device, so that a captured step reads what they are by then."""

    warmth: Tensor  # (): how far what is warmed up has come, 0 to 1
    gone: Tensor  # (): the part of the units that is gone, in stages that narrow


class Stage(ABC):
    """A number of optimiser steps with one loss. Frozen values: a run stores them and compares them."""

    kind: ClassVar[str]
    title: ClassVar[str]
    steps: int

    def check(self, network: ConditionalNetwork) -> None:
        """Raise if this stage makes no sense for such a network or its contexts."""
        return

    @abstractmethod
    def prepare_(self, network: ConditionalNetwork) -> None:
        """Freeze or thaw what this stage needs; called once at its start, and again after a resume."""

    @abstractmethod
    def parameter_groups(self, network: ConditionalNetwork) -> list[dict[str, Any]]:
        """Parameters with their learning rates, as an optimiser takes them."""

    @abstractmethod
    def loss(self, network: ConditionalNetwork, draw: Draw, dials: Dials) -> Loss:
        """The loss of one step on contexts and examples drawn anew."""

    def warmth(self, step: int) -> float:
        """How far what is warmed up has come, 0 to 1."""
        return 1.0

    def ratio(self, step: int) -> float | None:
        """How many times smaller networks are by then, where the stage decides that."""
        return None

    def rate_factor(self, step: int) -> float:
        """Constant, then linearly to zero over the last part of the stage."""
        left = (self.steps - step) / self.steps
        return min(1.0, left / 0.4)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Learn(Stage):
    """Variational learning: the noisy network under the objective of Eq. 3.

    ``num_data`` is N in the objective; by default ``|D_t|``, the training examples of each context's classes.
    ``budget`` fixes c_w for the whole stage; by default it is drawn. Log-variances start far from where they
    end and move by about a rate a step, hence a rate of their own. What depends on the context, the embedder
    and the maps that read it, moves more slowly than what all contexts share (``map_slowdown``). Means of weights take
    smaller steps in deep networks and where they are small (``bhc.training.rates``).
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
    kind = "learn"
    title = "learning"

    def __post_init__(self) -> None:
        _check_numbers(self, positive=("rate", "logvar_rate", "map_slowdown", "num_data"), not_negative=("kl_weight",))
        if not 0 <= self.warm_up <= 1:
            raise BhcError(f"warm_up is a fraction of the steps, 0 to 1, given {self.warm_up}")

    def check(self, network: ConditionalNetwork) -> None:
        _check_budget(self.budget, network.space)

    def prepare_(self, network: ConditionalNetwork) -> None:
        network.hypernet.thaw_()

    def parameter_groups(self, network: ConditionalNetwork) -> list[dict[str, Any]]:
        factors, others = rates.of_weights(network), rates.of_vectors(network)
        by_parameter = {}
        for name, parameter in network.hypernet.named_parameters():
            rate = self.logvar_rate if "logvar" in name else self.rate * factors.get(parameter, others)
            by_parameter[parameter] = rate if name.endswith("offset") else rate / self.map_slowdown
        return _groups(by_parameter)

    def loss(self, network: ConditionalNetwork, draw: Draw, dials: Dials) -> Loss:
        batch, x, labels = _draw(network, draw, self.contexts, self.examples, self.budget)
        logits, posteriors = self._sample(network, x, batch, draw, dials)
        cross_entropy = F.cross_entropy(restrict(logits, batch.outputs), labels)
        divergence = network.hypernet.kl(posteriors)
        num_data = draw.data.context_sizes(batch)
        if self.num_data is not None:
            num_data = torch.full_like(num_data, self.num_data)
        weight = _budget_weights(network.space, batch) * self.kl_weight * dials.warmth
        total = negative_elbo(cross_entropy, divergence, num_data=num_data, kl_weight=weight)
        return Loss(total, {"cross_entropy": cross_entropy, "kl": (divergence / num_data).mean()})

    def _sample(
        self, network: ConditionalNetwork, x: Tensor, batch: ContextBatch, draw: Draw, dials: Dials
    ) -> tuple[Tensor, tuple[LayerPosterior, ...]]:
        return network.noisy(x, batch, noise=draw.noise)

    def warmth(self, step: int) -> float:
        """The warm-up factor of the divergence, from 0 to 1."""
        warm_steps = self.warm_up * self.steps
        return 1.0 if warm_steps <= 0 else min(1.0, step / warm_steps)


@dataclass(frozen=True)
class Narrow(Learn):
    """Learning that goes on while units go, until networks are ``final_ratio`` times smaller.

    Wide layers share what they know among many units: each is of little use, none of no use, and cutting nine of ten
    at once leaves nothing. Here those with the largest dropout rates go first, a few at a time, and the rates of the
    others fall as they take over, so that no layer runs dry. The ratio rises by equal factors over ``closing`` of the
    steps.
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
            raise BhcError("narrowing takes units away, and this family has scales for single weights alone")

    def ratio(self, step: int) -> float:
        closing = self.closing * self.steps
        return float(self.final_ratio ** (1.0 if closing <= 0 else min(1.0, step / closing)))

    def _sample(
        self, network: ConditionalNetwork, x: Tensor, batch: ContextBatch, draw: Draw, dials: Dials
    ) -> tuple[Tensor, tuple[LayerPosterior, ...]]:
        return network.noisy(x, batch, noise=draw.noise, gone=dials.gone)


@dataclass(frozen=True)
class FreezeOffsets(Stage):
    """Between the two stages of a budget: what a zero embedding generates stays as it is from here on."""

    steps: int = 0
    kind = "freeze-offsets"
    title = "freezing"

    def check(self, network: ConditionalNetwork) -> None:
        if not isinstance(network.space, Budgets):
            raise BhcError(
                "the two-stage recipe is for budgets alone: with other conditions budget 0 is not one network",
                hint="leave it out; budgets are then drawn at random",
            )

    def prepare_(self, network: ConditionalNetwork) -> None:
        network.hypernet.freeze_offsets_()

    def parameter_groups(self, network: ConditionalNetwork) -> list[dict[str, Any]]:
        return []

    def loss(self, network: ConditionalNetwork, draw: Draw, dials: Dials) -> Loss:
        raise AssertionError("a stage without steps has no loss")


@dataclass(frozen=True)
class Consolidate(Stage):
    """Train the means with the masks on and the noise off, over all contexts and a range of thresholds.

    The mean of a noisy ReLU network is not the network of the means; this closes the gap. Masks are frozen
    first. The threshold is drawn anew for each context of each step, so that emission may choose any in the
    range. The range is ``thresholds``, or those that make networks ``ratios`` times smaller: which these are is known
    when learning has ended. The pretrained network is a free teacher. Offsets frozen for a budget stay as they are.
    """

    steps: int = 3500
    thresholds: tuple[float, float] | None = None  # (-2, 1) unless ratios are given
    ratios: tuple[float, float] | None = None
    rate: float = 2e-3
    contexts: int = 16
    examples: int = 16
    teacher_weight: float = 0.7
    temperature: float = 2.0
    budget: float | None = None
    kind = "consolidate"
    title = "consolidating"

    def __post_init__(self) -> None:
        _check_numbers(self, positive=("rate", "temperature"), not_negative=("teacher_weight",))
        if self.thresholds is not None and self.ratios is not None:
            raise BhcError("consolidation covers thresholds or ratios, given both", hint="leave one of them out")
        if self.ratios is None:
            thresholds = USUAL_THRESHOLDS if self.thresholds is None else self.thresholds
            object.__setattr__(self, "thresholds", _ascending("thresholds", thresholds))
        else:
            object.__setattr__(self, "ratios", _ascending("ratios", self.ratios))
            if self.ratios[0] < 1:
                raise BhcError(f"a network cannot become less than 1 times smaller, given ratios {self.ratios}")

    def check(self, network: ConditionalNetwork) -> None:
        _check_budget(self.budget, network.space)

    def settled(self, network: ConditionalNetwork, contexts: ContextBatch) -> "Consolidate":
        """The same with thresholds where ratios were given; the dropout rates of the network are final by now."""
        if self.ratios is None:
            return self
        small, large = self.ratios
        thresholds = threshold_for(network, contexts, large), threshold_for(network, contexts, small)
        return replace(self, thresholds=thresholds, ratios=None)

    def prepare_(self, network: ConditionalNetwork) -> None:
        if network.hypernet.gates is None:
            network.hypernet.freeze_gates_()
        network.hypernet.freeze_variances_()

    def parameter_groups(self, network: ConditionalNetwork) -> list[dict[str, Any]]:
        factors = rates.of_weights(network)
        others = 1 / rates.slowdown(network)  # nothing has a long way to go any more
        return _groups({p: self.rate * factors.get(p, others) for p in network.hypernet.parameters()})

    def loss(self, network: ConditionalNetwork, draw: Draw, dials: Dials) -> Loss:
        batch, x, labels = _draw(network, draw, self.contexts, self.examples, self.budget)
        assert self.thresholds is not None, "ratios are settled before the first step"
        low, high = self.thresholds
        threshold = low + (high - low) * torch.rand(self.contexts, 1, generator=draw.generator, device=x.device)
        logits = network.masked(x, batch, threshold=threshold)
        with torch.no_grad():
            teacher = network.bayesian.plain(x)
        total = distillation(
            restrict(logits, batch.outputs),
            labels,
            restrict(teacher, batch.outputs),
            teacher_weight=self.teacher_weight if network.pretrained else 0.0,
            temperature=self.temperature,
        )
        return Loss(total, {"distillation": total})


Recipe = tuple[Stage, ...]


def _groups(by_parameter: dict[nn.Parameter, float]) -> list[dict[str, Any]]:
    """Parameters that learn, those of one rate together, as an optimiser takes them."""
    by_rate: dict[float, list[nn.Parameter]] = {}
    for parameter, rate in by_parameter.items():
        if parameter.requires_grad:
            by_rate.setdefault(rate, []).append(parameter)
    return [{"params": parameters, "lr": rate} for rate, parameters in by_rate.items()]


def two_stage_budget(low: Learn, high: Learn) -> Recipe:
    """The paper's c_w recipe: learn at budget 0, freeze what that generates, learn at budget 1."""
    return (replace(low, budget=0.0), FreezeOffsets(), replace(high, budget=1.0))


def _check_numbers(stage: Any, *, positive: tuple[str, ...], not_negative: tuple[str, ...]) -> None:
    """Every number of a stage is finite and on the right side of zero."""
    bounds = [(name, 0.0, False) for name in positive] + [(name, 0.0, True) for name in not_negative]
    bounds += [("steps", 0, True), ("contexts", 1, True), ("examples", 1, True)]
    for name, least, allowed in bounds:
        value = getattr(stage, name)
        if value is not None and not (isfinite(value) and (value > least or (allowed and value == least))):
            word = "at least" if allowed else "more than"
            raise BhcError(f"{name} must be a number of {word} {least:g}, given {value}")


def _ascending(name: str, bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = (float(bound) for bound in bounds)
    if not low <= high:
        raise BhcError(f"the range of {name} must ascend, given {bounds}")
    return low, high


def _check_budget(budget: float | None, space: ContextSpace) -> None:
    if budget is not None and "budget" not in space.conditions:
        raise BhcError(f"a stage at budget {budget:g}, but budgets are not conditioned on")


def _draw(
    network: ConditionalNetwork, draw: Draw, contexts: int, examples: int, budget: float | None
) -> tuple[ContextBatch, Tensor, Tensor]:
    """Contexts, their examples (K * B, ...) and labels, all on the network's device."""
    batch = network.space.sample(contexts, network.num_classes, generator=draw.generator)
    if budget is not None:
        batch = replace(batch, budget=torch.full((contexts, 1), budget, device=draw.generator.device))
    x, labels = draw.data.draw(batch, examples, generator=draw.generator)
    batch = network.space.observe(batch, x.reshape(contexts, examples, *x.shape[1:]))
    if draw.augment is not None:
        x = draw.augment(x, generator=draw.generator)
    return batch, x, labels


def _budget_weights(space: ContextSpace, batch: ContextBatch) -> Tensor:  # (K,)
    """The divergence's weight for each context's budget; 1 where budgets are not conditioned on."""
    parts = space.spaces if isinstance(space, Joint) else (space,)
    for part in parts:
        if isinstance(part, Budgets) and batch.budget is not None:
            return part.kl_weight(batch.budget[:, 0])
    return torch.ones(len(batch), device=batch.class_rates.device)
