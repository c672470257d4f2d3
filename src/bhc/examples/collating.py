"""Items of a data set in one batch: as torch does it, lists of numbers too; and texts filled up at their ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from bhc.errors import BhcError

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
