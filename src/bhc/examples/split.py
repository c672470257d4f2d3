"""Examples with what is to be said of them, in memory or wherever else they are kept; and items of a data set put
together in one batch: as torch does it, lists of numbers too, and texts filled up at their ends."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

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


OF_TOKENIZERS = ("attention_mask", "token_type_ids")  # 0 is what they have where there is no word


class ItemError(BhcError):
    """What is wrong with one of the items that are put together; ``place`` is where it stands among them."""

    def __init__(self, place: int, problem: str, *, hint: str) -> None:
        super().__init__(f"item {place:,}: {problem}", hint=hint)
        self.place, self.of_item = place, problem


def put_together(items: Sequence[Any]) -> Any:
    """As torch's ``default_collate``, but that lists of numbers are what tensors of them are, as tables give them, and
    that words and gaps in items which are dicts stay as they are."""
    if isinstance(items[0], Mapping):
        _check_names(items)
        return {name: _column([item[name] for item in items]) for name in items[0]}
    return default_collate(list(map(_with_tensors, items)))


def _column(values: list[Any]) -> Any:
    if any(value is None or _is_words(value) for value in values):
        return values
    return default_collate(list(map(_as_numbers, values)))


def _with_tensors(item: Any) -> Any:
    """An item with tensors in the place of lists of numbers; a pair stays one, whatever it is of."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return tuple(map(_as_numbers, item))
    return _as_numbers(item)


def _as_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_numbers(part) for name, part in value.items()}
    if isinstance(value, list) and _is_list_of_numbers(value):
        try:
            return torch.tensor(value)
        except (ValueError, TypeError):  # rows of several lengths
            return value
    return type(value)(map(_as_numbers, value)) if type(value) in (tuple, list) else value


def _is_list_of_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_list_of_numbers, value))
    return isinstance(value, bool | int | float | np.number)


@dataclass(frozen=True)
class PadTexts:
    """Puts texts of different lengths into one batch: a ``collate`` for ``bhc.fit`` and torch's ``DataLoader``.

    Texts are whole numbers, as tensors, arrays or lists. An item is a text; a pair (text, target), where several texts
    of one item are a tuple or a dict; or a dict with texts in it, as tokenizers give them. What else is in a dict is
    put together as torch does it, and texts that are words stay lists.

    - ``padding`` is what a text is filled up with. ``attention_mask`` and ``token_type_ids`` have 0 there. A dict says
      it by name, ``{"input_ids": 1, "labels": -100}``; those that it does not name have 0.
    - ``length``: every batch has this length. Without it a batch is as long as the longest text in it. A longer text is
      refused, and with ``truncate=True`` what is beyond is left out.

    >>> bhc.data.PadTexts()([([5, 6, 7], 0), ([8], 1)])
    [tensor([[5, 6, 7],
            [8, 0, 0]]), tensor([0, 1])]
    """

    padding: int | Mapping[str, int] = 0
    length: int | None = None
    truncate: bool = False

    def __post_init__(self) -> None:
        values = list(self.padding.values()) if isinstance(self.padding, Mapping) else [self.padding]
        if not all(type(value) is int for value in values):
            raise BhcError(f"padding is a whole number, or one for each name, given {self.padding!r}")
        if self.length is not None and (type(self.length) is not int or self.length < 1):
            raise BhcError(f"length is a whole number from 1 on, given {self.length!r}")
        if self.truncate and self.length is None:
            raise BhcError("truncate=True without a length", hint="say how long texts may be: length=128")

    def __call__(self, items: Sequence[Any]) -> Any:
        first = items[0]
        if isinstance(first, tuple | list) and len(first) == 2 and not _is_number(first[0]):
            texts, targets = zip(*items, strict=True)
            return [self._together(texts), put_together(targets)]
        return self._together(items)

    def _together(self, values: Sequence[Any], name: str = "") -> Any:
        """The same part of every item, put together."""
        first = values[0]
        if isinstance(first, Mapping):
            _check_names(values)
            return {key: self._together([value[key] for value in values], str(key)) for key in first}
        if any(value is None or _is_words(value) for value in values):
            return list(values)
        if isinstance(first, tuple | list) and not all(map(_is_number, first)):
            return tuple(self._together(part, name) for part in zip(*values, strict=True))
        tensors = list(map(_as_tensor, values))
        return self._padded(tensors, name) if all(map(_is_text, tensors)) else default_collate(tensors)

    def _padded(self, texts: Sequence[Tensor], name: str) -> Tensor:  # (N, T)
        longest = max(map(len, texts)) if self.length is None else self.length
        for place, text in enumerate(texts):
            if not len(text):
                raise ItemError(place, f"{name or 'a text'} is empty", hint="leave empty texts out")
            if len(text) > longest and not self.truncate:
                raise ItemError(
                    place,
                    f"{name or 'a text'} has {len(text):,} numbers, and there is room for {longest:,}",
                    hint="give PadTexts a larger length=, or truncate=True, which leaves out what is beyond",
                )
        batch = texts[0].new_full((len(texts), longest), self._filling(name))
        for row, text in zip(batch, texts, strict=True):
            row[: len(text)] = text[:longest]
        return batch

    def _filling(self, name: str) -> int:
        if isinstance(self.padding, Mapping):
            return self.padding.get(name, 0)
        return 0 if name in OF_TOKENIZERS else self.padding


def _check_names(items: Sequence[Mapping[str, Any]]) -> None:
    for place, item in enumerate(items):
        missing = [str(name) for name in items[0] if name not in item]
        if missing:
            raise ItemError(
                place, f"it has no {missing[0]!r}, as the first has", hint="give all items the names of the first"
            )


def _is_text(value: Tensor) -> bool:
    return value.dim() == 1 and (not value.is_floating_point() or not len(value))  # of an empty list nothing is known


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) or (isinstance(value, Tensor | np.ndarray) and not value.ndim)


def _is_words(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list | tuple) and any(isinstance(one, str) for one in value))


def _as_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
