"""Contexts of the first kind: only some of the classes will appear."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from bhc.contexts.context import ContextBatch
from bhc.contexts.registry import register_context
from bhc.contexts.space import Bernoulli, ContextSpace, Likelihood, Option, ProbeRequest, TrainingData, VectorEmbedder
from bhc.contexts.subsets import SUBSETS, RandomSubsets, SubsetSampler, sampler_from_dict, sampler_named
from bhc.errors import BhcError


def parse_classes(text: str) -> list[str] | dict[str, float]:
    """``"3,4"`` as a list, ``"3:0.9,4:0.1"`` with probabilities; names and numbers are told apart by the space."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not any(":" in part for part in parts):
        return parts
    pairs = [part.rsplit(":", 1) for part in parts]
    try:
        rates = {label.strip(): float(rate) for label, rate in pairs}
    except ValueError:
        hint = "each class with its probability, such as 3:0.9,4:0.1"
        raise BhcError(f"cannot read the classes {text!r}", hint=hint) from None
    if len(rates) < len(pairs):
        raise BhcError(f"a class is named twice in {text!r}", hint="name each class once")
    return rates


@dataclass(frozen=True)
class NamedClasses:
    """The classes there are, by number and name."""

    count: int
    names: tuple[str, ...]

    @property
    def range(self) -> str:
        """Which there are, in words."""
        numbers = f"0 to {self.count - 1}"
        usual = self.names == tuple(map(str, range(len(self.names))))
        return numbers if usual else f"{numbers} ({', '.join(self.names)})"

    def subset(self, classes: Iterable[int | str]) -> tuple[int, ...]:
        """The numbers of some classes, in their order, each named once."""
        if isinstance(classes, str | int) or not isinstance(classes, Iterable) or _is_mask(classes):
            raise BhcError(f"classes must be a list, given {classes!r}", hint="for example classes=[3, 4]")
        try:
            labels = list(classes)
        except TypeError:
            raise BhcError(f"classes must be a list, given {classes!r}", hint="for example classes=[3, 4]") from None
        numbers = [self.number(label) for label in labels]
        if not numbers:
            raise BhcError("the class subset is empty", hint=f"name one or more of {self.range}")
        repeated = sorted({number for number in numbers if numbers.count(number) > 1})
        if repeated:
            raise BhcError(f"class {repeated[0]} is named twice", hint="name each class once")
        return tuple(numbers)

    def rates(self, asked: Mapping[int | str, Any]) -> dict[int, float]:
        """Probabilities of appearance by number, in ascending order; those that are nothing beside others go."""
        rates = dict(zip(self.subset(asked), asked.values(), strict=True))
        if not all(isinstance(rate, Real) and 0 <= float(rate) <= 1 for rate in rates.values()):
            raise BhcError(
                f"probabilities of appearance must lie between 0 and 1, given {list(asked.values())}",
                hint="for example classes={3: 0.9, 4: 0.1}",
            )
        largest = max(float(rate) for rate in rates.values())
        if largest == 0:
            raise BhcError("no class appears: all probabilities are 0", hint="give at least one class more than 0")
        # As 32-bit numbers, in which contexts are encoded.
        return {number: float(rates[number]) for number in sorted(rates) if np.float32(rates[number] / largest) > 0}

    def number(self, label: int | str) -> int:
        """The number of a class."""
        names = [name.casefold() for name in self.names]
        if isinstance(label, str) and label.casefold() in names:
            return names.index(label.casefold())
        try:
            number = int(label) if isinstance(label, str) else index(label)
        except (TypeError, ValueError):
            raise BhcError(f"unknown class {label!r}", hint=f"the classes are {self.range}") from None
        if not 0 <= number < self.count:
            raise BhcError(f"class {label} is out of range", hint=f"the classes are {self.range}")
        return number

    def by_class(self, asked: Any) -> Any:
        """An array with a probability for every class as a mapping, anything else as it is."""
        if not isinstance(asked, Tensor | np.ndarray) or not torch.as_tensor(asked).is_floating_point():
            return asked
        rates = torch.as_tensor(asked)
        if rates.shape != (self.count,):
            raise BhcError(
                f"probabilities of shape {tuple(rates.shape)}", hint=f"give one for each of {self.count} classes"
            )
        return dict(enumerate(rates.tolist()))


@register_context
@dataclass(frozen=True)
class ClassSubsets(ContextSpace):
    """The paper's c_y: a vector with the appearance of each class, in training a probability, at use binary.

    The vector is scaled so that the most frequent class has 1; equal appearance is then the binary vector of
    use. With ``concentration`` set, training draws unequal appearances from a Dirichlet distribution, and a
    request may give probabilities: ``classes={3: 0.9, 4: 0.1}``, or an array with one for every class.
    """

    num_classes: int
    sampler: SubsetSampler = field(default_factory=RandomSubsets)
    class_names: tuple[str, ...] | None = None
    concentration: float | None = None

    rank = 0
    kind = "classes"
    conditions = ("classes",)
    decides_outputs = draws_examples = True
    options = (
        Option(
            "classes",
            "Classes it will meet: 3,4, or with probabilities 3:0.9,4:0.1.",
            parse=parse_classes,
            example="3,4",
        ),
    )
    training_options = (
        SUBSETS,
        Option(
            "concentration",
            "Draw unequal appearances of the classes, Dirichlet with this concentration.",
            value_type=float,
        ),
    )

    def __post_init__(self) -> None:
        if self.num_classes < 2:
            raise BhcError(f"a class subset needs at least 2 classes to choose from, given {self.num_classes}")
        if self.concentration is not None and not self.concentration > 0:
            raise BhcError(f"the concentration must be positive, given {self.concentration}")
        if self.class_names is not None:
            object.__setattr__(self, "class_names", tuple(self.class_names))
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise BhcError(f"{len(self.class_names)} class names for {self.num_classes} classes")

    def check_network(self, num_classes: int) -> None:
        if num_classes != self.num_classes:
            raise BhcError(
                f"the context space has {self.num_classes} classes, the network {num_classes} outputs",
                hint=f"use ClassSubsets({num_classes})",
            )

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        asked = self._named.by_class(request["classes"])
        if not isinstance(asked, Mapping):
            return {"classes": tuple(sorted(self._named.subset(asked)))}
        rates = self._named.rates(asked)
        appearance = tuple(rate / max(rates.values()) for rate in rates.values())
        if min(appearance) == 1:
            return {"classes": tuple(rates)}
        if self.concentration is None:
            raise BhcError(
                "this model was not trained for classes that appear unequally often",
                hint="give the classes alone, or train with ClassSubsets(..., concentration=1.0)",
            )
        return {"classes": tuple(rates), "appearance": appearance}

    @property
    def _named(self) -> NamedClasses:
        return NamedClasses(self.num_classes, self.class_names or ())

    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        members = self.sampler.draw(len(batch), self.num_classes, rng=rng)
        rates = members.float()
        if self.concentration is not None:
            # Gamma variates, normalised below, are Dirichlet; the private sampler takes a generator.
            shape = torch.full_like(rates, self.concentration)
            rates = rates * torch._standard_gamma(shape, generator=rng)
        return replace(
            batch,
            class_rates=rates / rates.sum(1, keepdim=True),
            outputs=members,
            appearance=rates / rates.amax(1, keepdim=True),
        )

    def forget(self, batch: ContextBatch, told: Tensor) -> ContextBatch:
        assert batch.appearance is not None
        unsaid = ~told[:, None]
        return replace(batch, outputs=batch.outputs | unsaid, appearance=batch.appearance.masked_fill(unsaid, 1.0))

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        return (torch.ones_like(batch.class_rates) if batch.appearance is None else batch.appearance,)

    def form(self) -> dict[str, dict[str, Any]]:
        unequal = ", equally often" if self.concentration is None else ", or with a probability each"
        words = f"any of {self._named.range}{unequal}; trained on {self.sampler.describe()}"
        return {"classes": {"kind": "classes", "words": words, "appearance": self.concentration is not None}}

    def example(self, seen: Tensor | None) -> dict[str, Any]:
        return {"classes": [0, 1]}

    def embedder(self, width: int) -> nn.Module:
        return VectorEmbedder(self.num_classes, width)

    def likelihoods(self) -> tuple[Likelihood, ...]:
        return (Bernoulli(self.num_classes),)

    def probes(self, num_classes: int, limit: int) -> Sequence[ProbeRequest]:
        return [ProbeRequest({"classes": subset}) for subset in self.sampler.examples(num_classes, limit)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "classes",
            "num_classes": self.num_classes,
            "sampler": self.sampler.to_dict(),
            "class_names": None if self.class_names is None else list(self.class_names),
            "concentration": self.concentration,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ClassSubsets":
        return cls(data["num_classes"], sampler_from_dict(data["sampler"]), data["class_names"], data["concentration"])

    @classmethod
    def for_data(cls, data: TrainingData, chosen: Mapping[str, Any]) -> "ClassSubsets":
        sampler = sampler_named(chosen["subsets"], data.num_classes)
        return cls(data.num_classes, sampler, data.class_names, chosen["concentration"])


def _is_mask(classes: Any) -> bool:
    """Whether classes are given as truths, whose places in the list would be taken for labels."""
    if isinstance(classes, Tensor | np.ndarray):
        return torch.as_tensor(classes).dtype == torch.bool
    return isinstance(classes, Sequence) and any(isinstance(label, bool) for label in classes)
