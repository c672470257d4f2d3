"""Contexts of the first kind: only some of the classes will appear."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from operator import index
from typing import Any

import numpy as np
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
    request may give probabilities: ``classes={3: 0.9, 4: 0.1}``, or an array with one for every class.
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

    @property
    def decides_outputs(self) -> bool:
        return True

    def check_network(self, num_classes: int) -> None:
        if num_classes != self.num_classes:
            raise BhcError(
                f"the context space has {self.num_classes} classes, the network {num_classes} outputs",
                hint=f"use ClassSubsets({num_classes})",
            )

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        asked = self._by_class(request["classes"])
        if not isinstance(asked, Mapping):
            return {"classes": self._check(asked)}
        numbers = [self._number(label) for label in self._check_distinct(asked)]
        rates = dict(zip(numbers, asked.values(), strict=True))
        if not all(isinstance(rate, Real) and 0 <= float(rate) <= 1 for rate in rates.values()):
            raise BhcError(
                f"probabilities of appearance must lie between 0 and 1, given {list(asked.values())}",
                hint="for example classes={3: 0.9, 4: 0.1}",
            )
        largest = max(float(rate) for rate in rates.values())
        if largest == 0:
            raise BhcError("no class appears: all probabilities are 0", hint="give at least one class more than 0")
        # As 32-bit numbers: what is nothing beside the largest is nothing.
        rates = {number: float(rates[number]) for number in sorted(rates) if np.float32(rates[number] / largest) > 0}
        appearance = tuple(rate / largest for rate in rates.values())
        if min(appearance) == 1:
            return {"classes": tuple(rates)}
        if self.concentration is None:
            raise BhcError(
                "this model was not trained for classes that appear unequally often",
                hint="give the classes alone, or train with ClassSubsets(..., concentration=1.0)",
            )
        return {"classes": tuple(rates), "appearance": appearance}

    def _by_class(self, asked: Any) -> Any:
        """An array with a probability for every class as a mapping, anything else as it is."""
        if not isinstance(asked, Tensor | np.ndarray) or not torch.as_tensor(asked).is_floating_point():
            return asked
        rates = torch.as_tensor(asked)
        if rates.shape != (self.num_classes,):
            raise BhcError(
                f"probabilities of shape {tuple(rates.shape)}", hint=f"give one for each of {self.num_classes} classes"
            )
        return dict(enumerate(rates.tolist()))

    def _check_distinct(self, labels: Iterable[int | str]) -> list[int | str]:
        self._check(labels)
        return list(labels)

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

    def describe(self) -> dict[str, str]:
        unequal = ", equally often" if self.concentration is None else ", or with a probability each"
        return {"classes": f"any of {self._range()}{unequal}; trained on {self.sampler.describe()}"}

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
        if isinstance(classes, str | int) or not isinstance(classes, Iterable) or _is_mask(classes):
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


def _is_mask(classes: Any) -> bool:
    """Whether classes are given as truths, whose places in the list would be taken for labels."""
    if isinstance(classes, Tensor | np.ndarray):
        return torch.as_tensor(classes).dtype == torch.bool
    return isinstance(classes, Sequence) and any(isinstance(label, bool) for label in classes)
