"""Contexts of the first kind: only some of the classes will appear."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from operator import index
from typing import Any

import torch
from torch import Generator, Tensor

from bhc.contexts.context import ContextBatch
from bhc.contexts.likelihoods import Bernoulli, Likelihood
from bhc.contexts.space import ContextSpace
from bhc.contexts.subsets import RandomSubsets, SubsetSampler
from bhc.errors import BhcError


@dataclass(frozen=True)
class ClassSubsets(ContextSpace):
    """The paper's c_y: a vector with the appearance of each class, in training a probability, at use binary.

    The vector is scaled so that the most frequent class has 1; equal appearance is then the binary vector of
    use. With ``concentration`` set, training draws unequal appearances from a Dirichlet distribution, and a
    request may weigh its classes: ``classes={3: 0.9, 4: 0.1}``.
    """

    num_classes: int
    sampler: SubsetSampler = field(default_factory=RandomSubsets)
    class_names: tuple[str, ...] | None = None
    concentration: float | None = None

    def __post_init__(self) -> None:
        if self.num_classes < 2:
            raise BhcError(f"a class subset needs at least 2 classes to choose from, given {self.num_classes}")
        if self.concentration is not None and not self.concentration > 0:
            raise BhcError(f"the concentration must be positive, given {self.concentration}")
        if self.class_names is not None:
            object.__setattr__(self, "class_names", tuple(self.class_names))
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise BhcError(f"{len(self.class_names)} class names for {self.num_classes} classes")

    @property
    def conditions(self) -> tuple[str, ...]:
        return ("classes",)

    def check_network(self, num_classes: int) -> None:
        if num_classes != self.num_classes:
            raise BhcError(
                f"the context space has {self.num_classes} classes, the network {num_classes} outputs",
                hint=f"use ClassSubsets({num_classes})",
            )

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        asked = request["classes"]
        if not isinstance(asked, Mapping):
            return {"classes": self._check(asked)}
        weights = dict(zip([self._number(label) for label in asked], asked.values(), strict=True))
        classes = self._check(list(asked))
        if not all(isinstance(w, int | float) and 0 < w < inf for w in weights.values()):
            raise BhcError(f"appearances must be positive numbers, given {list(weights.values())}")
        largest = max(weights.values())
        return {"classes": classes, "appearance": tuple(weights[number] / largest for number in classes)}

    def refine(self, batch: ContextBatch, *, generator: Generator) -> ContextBatch:
        members = self.sampler.draw(len(batch), self.num_classes, generator=generator)
        rates = members.float()
        if self.concentration is not None:
            # Gamma variates, normalised below, are Dirichlet; the private sampler takes a generator.
            shape = torch.full_like(rates, self.concentration)
            rates = rates * torch._standard_gamma(shape, generator=generator)
        return replace(batch, class_rates=rates / rates.sum(1, keepdim=True), outputs=members)

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        return (batch.class_rates / batch.class_rates.amax(1, keepdim=True),)

    def likelihoods(self) -> tuple[Likelihood, ...]:
        return (Bernoulli(self.num_classes),)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "classes",
            "num_classes": self.num_classes,
            "sampler": self.sampler.to_dict(),
            "class_names": None if self.class_names is None else list(self.class_names),
            "concentration": self.concentration,
        }

    def _check(self, classes: Iterable[int | str]) -> tuple[int, ...]:
        if isinstance(classes, str | int) or not isinstance(classes, Iterable):
            raise BhcError(f"classes must be a list, given {classes!r}", hint="for example classes=[3, 4]")
        try:
            labels = list(classes)
        except TypeError:
            raise BhcError(f"classes must be a list, given {classes!r}", hint="for example classes=[3, 4]") from None
        numbers = [self._number(label) for label in labels]
        if not numbers:
            raise BhcError("the class subset is empty", hint=f"name one or more of {self._range()}")
        repeated = sorted({number for number in numbers if numbers.count(number) > 1})
        if repeated:
            raise BhcError(f"class {repeated[0]} is named twice", hint="name each class once")
        return tuple(sorted(numbers))

    def _number(self, label: int | str) -> int:
        names = [name.casefold() for name in self.class_names or ()]
        if isinstance(label, str) and label.casefold() in names:
            return names.index(label.casefold())
        try:
            number = int(label) if isinstance(label, str) else index(label)
        except (TypeError, ValueError):
            raise BhcError(f"unknown class {label!r}", hint=f"the classes are {self._range()}") from None
        if not 0 <= number < self.num_classes:
            raise BhcError(f"class {label} is out of range", hint=f"the classes are {self._range()}")
        return number

    def _range(self) -> str:
        numbers = f"0 to {self.num_classes - 1}"
        names = self.class_names or ()
        return numbers if names == tuple(map(str, range(len(names)))) else f"{numbers} ({', '.join(names)})"
