"""What every kind of context can do: be asked for by a user, and be drawn and encoded in training; its samplers; and
how an encoded context becomes the embedding that all weight generators read, and how its parts are read back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bhc.contexts.context import Context, ContextBatch, Presence
from bhc.errors import BhcError

P = TypeVar("P", bound="ContextSpace")


@dataclass(frozen=True)
class Option:
    """An option of the command line: of a request, named as the condition, or of training.

    The command line makes a ``value_type`` of what is typed, and ``parse`` what is meant of that. ``example`` stands in
    hints, as it would be typed. A value that is sent to a service and is an array goes to ``upload`` first, which
    answers with what stands for it.
    """

    name: str
    help: str
    value_type: type[str] | type[int] | type[float] | type[Path] = str
    parse: Callable[[Any], Any] = lambda value: value
    example: str = ""
    default: Any = None
    upload: str | None = None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


class TrainingData(Protocol):
    """What a space can be made from: a data set, as ``bhc.data.load`` gives it."""

    @property
    def num_classes(self) -> int: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    @property
    def image_shape(self) -> tuple[int, ...]: ...
    @property
    def full_scale(self) -> float: ...
    @property
    def source_names(self) -> tuple[str, ...]: ...
    @property
    def vocabulary(self) -> Any: ...
    @property
    def train(self) -> Any: ...


@dataclass(frozen=True)
class ProbeRequest:
    """A request that a run is judged on, and whose examples: of the classes it asks for, unless others are named."""

    asked: Mapping[str, Any]
    classes: tuple[int, ...] | None = None
    sources: tuple[int, ...] | None = None


class Askable(ABC):
    """The side of a space that users meet: what a request may say, and how it is said everywhere."""

    kind: ClassVar[str]  # its name in run folders
    rank: ClassVar[int] = 100  # its place where several are asked for
    conditions: tuple[str, ...]  # what a request may give, such as ``("classes",)``
    options: ClassVar[tuple[Option, ...]] = ()  # of the command line, one for each condition
    training_options: ClassVar[tuple[Option, ...]] = ()  # of ``bhc train``
    optional: bool = False  # whether a request may leave conditions out

    @abstractmethod
    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Check the conditions of a request and return them as fields of a ``Context``.

        What is no field of it is kept under its own name in ``Context.values``.
        """

    @abstractmethod
    def form(self) -> dict[str, dict[str, Any]]:
        """Of each condition what it takes, in ``words``, and by which ``kind`` of control the studio asks for it.

        Any space may have ``{"kind": "range", "low", "high", "step", "default"}``, with ``title`` and ``ends``, two
        words, if wanted; ``{"kind": "choice", "choices": [...], "default"}``; or ``{"kind": "text", "default"}``.
        """

    def describe(self) -> dict[str, str]:
        """What each condition takes, in words."""
        return {name: control["words"] for name, control in self.form().items()}

    def example(self, seen: Tensor | None) -> dict[str, Any]:
        """A request in JSON that this space takes; ``seen`` are inputs of the run's validation sample."""
        return {option.name: option.parse(option.value_type(option.example)) for option in self.options}

    def default_parts(self) -> dict[str, Any]:
        """Fields of a ``Context`` where a request says nothing of this space."""
        return {}

    def resolve_or_default(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a ``Context`` for a request that may say nothing of this space."""
        return self.resolve_parts(request) if set(self.conditions) <= set(request) else self.default_parts()

    def to_dict(self) -> dict[str, Any]:
        """Plain data that ``bhc.contexts.from_dict`` turns back into this space: of a dataclass, its fields."""
        if not is_dataclass(self):
            raise BhcError(f"{type(self).__name__} is no dataclass", hint="make it one, or write to_dict and from_dict")
        return {"kind": self.kind} | {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The space that ``to_dict`` described."""
        return cls(**{name: value for name, value in data.items() if name != "kind"})

    @classmethod
    def for_data(cls, data: TrainingData, chosen: Mapping[str, Any]) -> "ContextSpace | None":
        """The usual space for a data set, with what was chosen on the command line; None where it does not fit."""
        return None

    def resolve(self, request: Mapping[str, Any]) -> Context:
        """The context a user asks for, or an error that says what may be asked."""
        given = {name: value for name, value in request.items() if value is not None}
        allowed = ", ".join(self.conditions)
        unknown = [name for name in given if name not in self.conditions]
        if unknown:
            raise BhcError(
                f"this model was not trained for a condition on {', '.join(unknown)}",
                hint=f"it takes: {allowed}" if allowed else "it was made for one context: leave the conditions out",
            )
        missing = [name for name in self.conditions if name not in given]
        if missing and not self.optional:
            raise BhcError(f"the context lacks {', '.join(missing)}", hint=f"this model takes all of: {allowed}")
        parts = self.resolve_parts(given)
        if not isinstance(parts, Mapping):
            raise BhcError(f"{type(self).__name__}: resolve_parts gives {type(parts).__name__}", hint="give a dict")
        return Context.of(parts)


class Trainable(ABC):
    """The side of a space that training meets: contexts as tensors, with a leading K."""

    decides_outputs: bool = False  # whether a context says which of a network's outputs there are
    draws_examples: bool = False  # whether it says whose examples are drawn
    rises_with_budget: bool = False  # whether a larger budget must never keep what a smaller one gave up
    presence: Presence = Presence()  # which values of an input are there
    most_probes: ClassVar[int] = 32  # so many are combined with those of other conditions

    @abstractmethod
    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        """Draw this space's part of every context in ``batch``."""

    @abstractmethod
    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        """What the embedder reads, one tensor with a leading K for each part."""

    @abstractmethod
    def embedder(self, width: int) -> nn.Module:
        """From what ``encode`` gives to the (K, width) that all weight generators read.

        Its linear and convolutional weights are drawn anew, so that they follow from the run's seed.
        """

    @abstractmethod
    def probes(self, num_classes: int, limit: int) -> Sequence[ProbeRequest]:
        """At most ``limit`` requests that a run is judged on, spread over all; always the same."""

    def embedder_alone(self, width: int) -> tuple[nn.Module, int]:
        """The embedder where no other condition is beside it, and the width it embeds to."""
        return self.embedder(width), width

    def likelihoods(self) -> "tuple[Likelihood, ...]":
        """How each part of ``encode`` is distributed; nothing where there is nothing to read back."""
        return ()

    def observe(self, batch: ContextBatch, x: Tensor) -> ContextBatch:
        """Note what only the drawn examples tell, (K, B, ...); most contexts are known beforehand."""
        return batch

    def forget(self, batch: ContextBatch, told: Tensor) -> ContextBatch:
        """Say nothing of this space's part where ``told``, (K,) bool, is false."""
        raise BhcError(
            f"contexts of type {type(self).__name__} cannot be left unsaid", hint="join them with Joint(..., missing=0)"
        )

    def divergence_weights(self, batch: ContextBatch) -> Tensor:  # (K,)
        """By how much the divergence of each context counts."""
        return torch.ones(len(batch), device=batch.class_rates.device)

    def sample(self, count: int, num_classes: int, *, rng: Generator) -> ContextBatch:
        """Draw contexts for a training step, on the generator's device."""
        batch = ContextBatch.unconditioned(count, num_classes, device=rng.device)
        return self.refine(batch, rng=rng)

    def check_network(self, num_classes: int) -> None:
        """Raise if a network with so many outputs cannot be conditioned on this space."""
        return


class ContextSpace(Askable, Trainable):
    """The contexts a model is trained for. Subclass it for your own, see ``docs/adding-a-context.md``."""

    @property
    def observes(self) -> bool:
        """Whether drawn examples tell something of a context."""
        return any(type(part).observe is not ContextSpace.observe for part in self.parts)

    @property
    def parts(self) -> tuple["ContextSpace", ...]:
        """The spaces of single conditions that this one consists of."""
        return (self,)

    def find(self, kind: type[P]) -> P | None:
        """The part of a kind, if there is one."""
        return next((part for part in self.parts if isinstance(part, kind)), None)


LATER = ("never_together", "shares")  # fields that data of older releases lacks

S = TypeVar("S", bound="Sampler")


class Sampler(ABC):
    """Something that contexts are drawn by. A dataclass need not say more of itself than its ``kind``."""

    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data that describes the sampler."""
        return {"kind": self.kind} | {each.name: _plain(getattr(self, each.name)) for each in fields(self)}  # type: ignore[arg-type]

    @abstractmethod
    def describe(self) -> str:
        """What can be drawn, in words."""


def sampler_of(kinds: Mapping[str, type[S]], data: dict[str, Any], *, what: str) -> S:
    """The sampler that ``to_dict`` described, of one of these kinds."""
    kind = kinds.get(data["kind"])
    if kind is None:
        raise BhcError(f"unknown kind of {what} sampler: {data['kind']!r}")
    names = [each.name for each in fields(kind) if each.name in data or each.name not in LATER]  # type: ignore[arg-type]
    return kind(**{name: _tuples(data[name]) for name in names})


def _plain(value: Any) -> Any:
    if isinstance(value, Sampler):
        return value.to_dict()
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


POOLED_SIDE = 4


class VectorEmbedder(nn.Sequential):
    """The paper's for class subsets: two fully connected layers of width 100.

    The second ends in tanh: a ReLU there dies at useful learning rates, and with it the conditioning.
    """

    def __init__(self, num_features: int, width: int) -> None:
        super().__init__(nn.Linear(num_features, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh())


class ImageEmbedder(nn.Sequential):
    """The paper's for input domains: two convolutions of 20 filters; here pooled and projected to the width.

    Unpooled, 20 maps of MNIST's size are 15,680 numbers, and a full generator on them eight billion weights.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__(
            nn.Conv2d(channels, 20, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(20, 20, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(POOLED_SIDE),
            nn.Flatten(),
            nn.Linear(20 * POOLED_SIDE**2, width),
            nn.Tanh(),
        )


class BudgetEmbedder(nn.Linear):
    """A budget beside other conditions. No bias: a budget of 0 adds nothing to what they embed to."""

    def __init__(self, width: int) -> None:
        super().__init__(1, width, bias=False)


class JointEmbedder(nn.Module):
    """Sum of the parts' embeddings, mixed by one more layer so that conditions can act on each other."""

    def __init__(self, parts: Sequence[nn.Module], width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.mix = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.Tanh())

    def forward(self, *encodings: Tensor) -> Tensor:
        total = sum(part(encoding) for part, encoding in zip(self.parts, encodings, strict=True))
        return self.mix(total)


class Likelihood(ABC):
    """The distribution of one encoded part, told by ``num_numbers`` numbers a context."""

    @property
    @abstractmethod
    def num_numbers(self) -> int:
        """How many numbers tell the distribution."""

    @abstractmethod
    def nll(self, numbers: Tensor, part: Tensor) -> Tensor:  # (K, num_numbers), (K, ...) -> (K,)
        """``-log p(part)`` of each context, up to a constant."""


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Zeros and ones, each told by its logit; a value between them counts as so much of a one."""

    count: int

    @property
    def num_numbers(self) -> int:
        return self.count

    def nll(self, numbers: Tensor, part: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(numbers, part, reduction="none").sum(1)


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Numbers told by their means, all with one known standard deviation: how closely they are to be read."""

    count: int
    std: float

    @property
    def num_numbers(self) -> int:
        return self.count

    def nll(self, numbers: Tensor, part: Tensor) -> Tensor:
        return 0.5 * ((part.flatten(1) - numbers) / self.std).square().sum(1)


@dataclass(frozen=True)
class PooledGaussian(Likelihood):
    """An image (K, C, H, W) by the means of its ``side`` x ``side`` regions: an embedder sees it no finer."""

    channels: int
    side: int
    std: float

    @property
    def num_numbers(self) -> int:
        return self.channels * self.side**2

    def nll(self, numbers: Tensor, part: Tensor) -> Tensor:
        return Gaussian(self.num_numbers, self.std).nll(numbers, F.adaptive_avg_pool2d(part, self.side))
