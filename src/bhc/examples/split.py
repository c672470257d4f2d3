"""Examples with what is to be said of them, in memory or wherever else they are kept."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from bhc.errors import BhcError, renamed, warn

Inputs = Tensor | tuple[Tensor, ...]  # what a network takes: one tensor, or several in its order

Own = TypeVar("Own", bound="Examples")


def each(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Every tensor of what a network takes, changed."""
    return change(inputs) if isinstance(inputs, Tensor) else tuple(map(change, inputs))


def together(parts: Sequence[Inputs], join: Callable[[list[Tensor]], Tensor] = torch.cat) -> Inputs:
    """The same tensors of several batches, joined."""
    first = parts[0]
    if isinstance(first, Tensor):
        return join([part for part in parts if isinstance(part, Tensor)])
    return tuple(join([part[place] for part in parts]) for place in range(len(first)))


def several(inputs: Inputs) -> tuple[Tensor, ...]:
    """As a tuple, also where there is one."""
    return (inputs,) if isinstance(inputs, Tensor) else inputs


def batches(inputs: Inputs, size: int) -> list[Inputs]:
    """Parts of so many examples."""
    if isinstance(inputs, Tensor):
        return list(inputs.split(size))
    return list(zip(*(tensor.split(size) for tensor in inputs), strict=True))


class Examples(ABC):
    """What a network is trained on or tried on: a number of examples, of which some may be chosen.

    ``labels`` are the classes that contexts draw examples by; None where there are none.
    """

    labels: Tensor | None  # (N,) int64
    sources: Tensor | None  # (N,) int64, where each is from: who speaks

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def at(self: Own, places: Tensor | slice) -> Own:
        """The examples at some places: a mask, numbers, or a slice."""

    @abstractmethod
    def loaded(self) -> "Split":
        """All of them, in memory."""

    @cached_property
    def present(self) -> tuple[int, ...]:
        """The classes of which there are examples."""
        return () if self.labels is None else tuple(self.labels.unique().tolist())

    def places_of(self, classes: Iterable[int]) -> Tensor:
        labels = self.known_labels
        wanted = torch.zeros(int(labels.max()) + 1, dtype=torch.bool, device=labels.device)
        wanted[list(classes)] = True
        return wanted[labels].nonzero().flatten()

    def restricted_to(self: Own, classes: Iterable[int]) -> Own:
        """Keep the examples of these classes, in their order and with their labels as they are."""
        wanted = sorted(set(classes))
        if not len(self.known_labels) or not wanted or not set(wanted) <= set(self.present):
            raise BhcError(
                f"cannot restrict the examples to the classes {wanted}; there are examples of {list(self.present)}",
                hint="name one or more of the classes there are",
            )
        return self if wanted == list(self.present) else self.at(self.places_of(wanted))

    def from_sources(self: Own, sources: Iterable[int]) -> Own:
        """Keep the examples from these sources, in their order."""
        wanted = sorted(set(sources))
        present = [] if self.sources is None else self.sources.unique().tolist()
        if self.sources is None or not wanted or not set(wanted) <= set(present):
            raise BhcError(
                f"there are no examples from the sources {wanted}; there are those of {present}",
                hint="name one or more of the sources there are",
            )
        return self.at(torch.isin(self.sources, torch.tensor(wanted, device=self.sources.device)))

    @property
    def known_labels(self) -> Tensor:
        """The class of each; BhcError where there are none."""
        if self.labels is None:
            raise BhcError("the examples have no labels, and contexts of classes draw by them", hint=GIVE_LABELS)
        return self.labels


GIVE_LABELS = "give the class of each example: bhc.fit(..., labels=...), or a data set with targets or labels"


@dataclass(frozen=True)
class Split(Examples):
    """Examples in memory, of any type and shape, with their classes and what a loss compares outputs with."""

    inputs: Inputs  # (N, ...): as the network takes them
    labels: Tensor | None  # (N,) int64
    sources: Tensor | None = None
    targets: Tensor | None = None  # (N, ...); None: the labels are what is to be said

    def __post_init__(self) -> None:
        tensors = several(self.inputs)
        if not tensors or not all(isinstance(tensor, Tensor) and tensor.dim() for tensor in tensors):
            raise BhcError(
                f"inputs are a tensor of examples, or a tuple of them, given {_described(self.inputs)}",
                hint="the first axis is that of the examples: (N, ...)",
            )
        for name, numbers in (("labels", self.labels), ("sources", self.sources)):
            if numbers is not None and (numbers.ndim != 1 or numbers.dtype != torch.int64):
                raise BhcError(f"{name} must be (N,) int64, not {_described(numbers)}")
        others = (("labels", self.labels), ("sources", self.sources), ("targets", self.targets))
        counted = [(name, numbers) for name, numbers in others if numbers is not None]
        for name, numbers in [*((f"inputs[{place}]", tensor) for place, tensor in enumerate(tensors)), *counted]:
            if len(numbers) != len(self):
                raise BhcError(f"{len(self):,} inputs cannot have {len(numbers):,} {name}")

    def __len__(self) -> int:
        return len(several(self.inputs)[0])

    @property
    def images(self) -> Inputs:
        """The old name of ``inputs``."""
        warn("Split.images is Split.inputs now", DeprecationWarning)
        return self.inputs

    @property
    def wanted(self) -> Tensor:
        """What a loss compares outputs with: targets, or the labels."""
        return self.known_labels if self.targets is None else self.targets

    @property
    def tensor(self) -> Tensor:
        """The inputs of a network that takes one."""
        if not isinstance(self.inputs, Tensor):
            raise BhcError(f"one input is needed here, and the examples have {len(self.inputs)}")
        return self.inputs

    def at(self, places: Tensor | slice) -> "Split":
        if isinstance(places, Tensor) and places.dtype == torch.int64:
            inputs = each(self.inputs, lambda tensor: tensor.index_select(0, places))  # several times faster
        else:
            inputs = each(self.inputs, lambda tensor: tensor[places])
        others = (None if tensor is None else tensor[places] for tensor in (self.labels, self.sources, self.targets))
        return Split(inputs, *others)

    def to(self, device: torch.device) -> "Split":
        moved = (None if own is None else own.to(device) for own in (self.labels, self.sources, self.targets))
        return Split(each(self.inputs, lambda tensor: tensor.to(device)), *moved)

    def loaded(self) -> "Split":
        return self


Split.__init__ = renamed(images="inputs")(Split.__init__)  # type: ignore[method-assign]


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {value.dtype}".replace("torch.", "")
    return f"a {type(value).__name__}"
