"""Which class subsets training meets."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, inf
from operator import index
from typing import Any

import torch
from torch import Generator, Tensor

from bhc.contexts.space import LATER, Option, Sampler, sampler_of
from bhc.errors import BhcError, renamed

# A table row is C bytes; beyond this many rows subsets are drawn without one.
LARGEST_TABLE = 200_000
TRIES = 8  # subsets drawn for one that may be drawn, where there is no table

Subset = tuple[int, ...]


class SubsetSampler(Sampler):
    @abstractmethod
    def draw(self, count: int, num_classes: int, *, rng: Generator) -> Tensor:  # (K, C) bool
        """Membership rows of ``count`` subsets, on the generator's device."""

    @abstractmethod
    def examples(self, num_classes: int, limit: int) -> Sequence[Subset]:
        """At most ``limit`` subsets that can be drawn, spread over all of them, always the same."""


class TabledSubsets(SubsetSampler):
    """Draws from a finite list."""

    @abstractmethod
    def subsets(self, num_classes: int) -> tuple[Subset, ...]:
        """Every subset that can be drawn, in a fixed order."""

    def weights(self, subsets: Sequence[Subset]) -> Tensor:  # (T,)
        """Relative probability of each subset."""
        return torch.ones(len(subsets))

    @renamed(generator="rng")
    def draw(self, count: int, num_classes: int, *, rng: Generator) -> Tensor:
        table, weights = _table(self, num_classes, rng.device)
        return table[torch.multinomial(weights, count, replacement=True, generator=rng)]

    def examples(self, num_classes: int, limit: int) -> Sequence[Subset]:
        subsets = self.subsets(num_classes)
        if len(subsets) <= limit:
            return subsets
        return [subsets[place * len(subsets) // limit] for place in range(limit)]


@dataclass(frozen=True)
class ConsecutivePairs(TabledSubsets):
    """The paper's contexts: (0, 1), (1, 2), ..., (C - 2, C - 1)."""

    kind = "consecutive-pairs"

    def subsets(self, num_classes: int) -> tuple[Subset, ...]:
        if num_classes < 2:
            raise BhcError(f"there are no pairs of {num_classes} class")
        return tuple((first, first + 1) for first in range(num_classes - 1))

    def describe(self) -> str:
        return "pairs of consecutive classes"


@dataclass(frozen=True)
class ListedSubsets(TabledSubsets):
    """The given subsets and no others, equally likely or in proportion to ``shares``."""

    listed: tuple[Subset, ...]
    shares: tuple[float, ...] | None = None
    kind = "listed-subsets"

    def __post_init__(self) -> None:
        object.__setattr__(self, "listed", _subsets(self.listed))
        if not self.listed or not all(self.listed):
            raise BhcError("no subsets are listed", hint="for example ListedSubsets([(0, 1), (2, 3, 4)])")
        if self.shares is not None:
            object.__setattr__(self, "shares", _shares(self.shares, len(self.listed), "subsets"))

    def subsets(self, num_classes: int) -> tuple[Subset, ...]:
        for subset in self.listed:
            _check_inside(subset, num_classes)
        return self.listed

    def weights(self, subsets: Sequence[Subset]) -> Tensor:
        return super().weights(subsets) if self.shares is None else torch.tensor(self.shares)

    def describe(self) -> str:
        return f"{len(self.listed)} listed subsets"


@dataclass(frozen=True)
class RandomSubsets(TabledSubsets):
    """A size, equally likely or in proportion to ``shares``, then any subset of that size but for those left out.

    ``held_out`` are never drawn; nor is a subset with all classes of one of ``never_together``, which are known not
    to meet. Of up to 200,000 subsets there is a table; of more, some are drawn for each that is wanted and the first
    that is allowed is taken, or one of them made allowed by leaving classes out.
    """

    sizes: tuple[int, ...] = (2, 3)
    held_out: tuple[Subset, ...] = ()
    never_together: tuple[Subset, ...] = ()
    shares: tuple[float, ...] | None = None
    kind = "random-subsets"

    def __post_init__(self) -> None:
        (sizes,) = _subsets([self.sizes], ordered=False)
        object.__setattr__(self, "sizes", sizes)
        if not self.sizes or min(self.sizes) < 1 or len(set(self.sizes)) < len(self.sizes):
            raise BhcError(f"subset sizes must be 1 or more, each once, given {self.sizes}")
        object.__setattr__(self, "held_out", _subsets(self.held_out))
        object.__setattr__(self, "never_together", _subsets(self.never_together))
        if not all(self.never_together):
            raise BhcError("an empty set of classes that never meet leaves nothing to draw")
        if self.shares is not None:
            object.__setattr__(self, "shares", _shares(self.shares, len(self.sizes), "sizes"))

    @renamed(generator="rng")
    def draw(self, count: int, num_classes: int, *, rng: Generator) -> Tensor:
        if self._has_table(num_classes):
            return super().draw(count, num_classes, rng=rng)
        return _untabled(self, num_classes, rng.device).draw(count, rng=rng)

    def examples(self, num_classes: int, limit: int) -> Sequence[Subset]:
        if self._has_table(num_classes):
            return super().examples(num_classes, limit)
        rows = self.draw(limit, num_classes, rng=Generator().manual_seed(0))
        return [tuple(row.nonzero().flatten().tolist()) for row in rows]

    def subsets(self, num_classes: int) -> tuple[Subset, ...]:
        if not self._has_table(num_classes):
            raise BhcError(f"there are {self._total(num_classes):,} subsets of sizes {self.sizes}: too many to list")
        left_out = set(self.held_out)
        kept = tuple(s for s in all_subsets(num_classes, self.sizes) if s not in left_out and self._can_meet(s))
        if not kept or not self.weights(kept).any():
            raise BhcError("every subset is held out, so there is nothing to train on")
        return kept

    def weights(self, subsets: Sequence[Subset]) -> Tensor:
        sizes = torch.tensor([len(subset) for subset in subsets])
        shares = dict(zip(self.sizes, self.shares or [1.0] * len(self.sizes), strict=True))
        of_size = torch.tensor([shares[int(size)] for size in sizes])
        return of_size / torch.bincount(sizes)[sizes]

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if value or name not in LATER}

    def describe(self) -> str:
        sizes = sorted(self.sizes)
        consecutive = len(sizes) > 2 and sizes == list(range(sizes[0], sizes[-1] + 1))
        text = f"{sizes[0]} to {sizes[-1]}" if consecutive else ", ".join(map(str, sizes))
        held = f", {len(self.held_out)} held out" if self.held_out else ""
        return f"subsets of {text} classes{held}"

    def _total(self, num_classes: int) -> int:
        return sum(comb(num_classes, size) for size in self.sizes)

    def _has_table(self, num_classes: int) -> bool:
        if max(self.sizes) > num_classes:
            raise BhcError(
                f"subsets of {max(self.sizes)} classes, and the network has {num_classes}",
                hint=f"choose sizes from 1 to {num_classes}",
            )
        for subset in (*self.held_out, *self.never_together):
            _check_inside(subset, num_classes)
        return self._total(num_classes) <= LARGEST_TABLE

    def _can_meet(self, subset: Subset) -> bool:
        return not any(set(apart) <= set(subset) for apart in self.never_together)


class _Untabled:
    """Draws subsets of which there are too many to list, on one device and without ever waiting for it."""

    def __init__(self, sampler: RandomSubsets, num_classes: int, device: torch.device) -> None:
        self.num_classes = num_classes
        self.sizes = torch.tensor(sampler.sizes, device=device)
        self.shares = torch.tensor(sampler.shares or [1.0] * len(sampler.sizes), device=device)
        self.held_out = _rows(sampler.held_out, num_classes).float().to(device)
        self.apart = _rows(sampler.never_together, num_classes).float().to(device)
        self.known = self._find(device)

    def draw(self, count: int, *, rng: Generator) -> Tensor:  # (K, C) bool
        tried = self._try(count, rng)
        tried = torch.cat([tried, self._set_apart(tried[:, :1], rng)], dim=1)
        allowed = self._allowed(tried)
        first = tried.gather(1, allowed.int().argmax(1)[:, None, None].expand(-1, 1, self.num_classes))[:, 0]
        return torch.where(allowed.any(1, keepdim=True), first, self.known)

    def _try(self, count: int, rng: Generator) -> Tensor:  # (K, tries, C) bool
        place = torch.multinomial(self.shares, count, replacement=True, generator=rng)
        order = torch.rand(count, TRIES, self.num_classes, generator=rng, device=rng.device)
        return order.argsort(2).argsort(2) < self.sizes[place][:, None, None]

    def _set_apart(self, members: Tensor, rng: Generator) -> Tensor:  # (K, 1, C) bool
        """The same subsets without one class, drawn at random, of all that never meet: large ones have few others."""
        for apart in self.apart.bool():
            order = torch.rand(members.shape, generator=rng, device=rng.device).masked_fill(~apart, -1.0)
            one = torch.zeros_like(members).scatter(2, order.argmax(2, keepdim=True), True)
            members = members & ~(one & (members | ~apart).all(2, keepdim=True))
        return members

    def _allowed(self, members: Tensor) -> Tensor:  # (K, tries) bool
        rows = members.float()
        shared = rows @ self.held_out.T  # classes in common; a subset is held out if that is all of both
        held_out = (shared == self.held_out.sum(1)) & (shared == rows.sum(2, keepdim=True))
        together = rows @ self.apart.T == self.apart.sum(1)
        return members.any(2) & ~(held_out.any(2) | together.any(2))

    def _find(self, device: torch.device) -> Tensor:  # (C,) bool
        """One subset that is allowed: what is drawn where all tries fail."""
        tried = self._try(1024, Generator(device).manual_seed(0)).flatten(0, 1)[None]
        places = self._allowed(tried)[0].nonzero().flatten()
        if not len(places):
            raise BhcError(
                "of eight thousand subsets none may be drawn", hint="hold out less, or list the subsets: ListedSubsets"
            )
        return tried[0, places[0]]


def all_subsets(num_classes: int, sizes: Iterable[int]) -> Iterable[Subset]:
    """Every subset of the given sizes in lexical order, smaller sizes first."""
    return (subset for size in sorted(set(sizes)) for subset in combinations(range(num_classes), size))


SUBSET_SAMPLERS: dict[str, type[SubsetSampler]] = {
    sampler.kind: sampler for sampler in (ConsecutivePairs, ListedSubsets, RandomSubsets)
}


def sampler_from_dict(data: dict[str, Any]) -> SubsetSampler:
    return sampler_of(SUBSET_SAMPLERS, data, what="subset")


def sampler_named(sizes: Sequence[int] | str, num_classes: int) -> SubsetSampler:
    """Consecutive ``"pairs"``, subsets of ``"all"`` sizes, or of the given ones."""
    if sizes == "pairs":
        return ConsecutivePairs()
    return RandomSubsets(tuple(range(1, num_classes + 1)) if sizes == "all" else tuple(map(int, sizes)))


def _parse_sizes(text: str) -> Sequence[int] | str:
    """``"2,3"`` or ``"1-5"`` as numbers, a word for sizes as it is."""
    if text in ("pairs", "all"):
        return text
    try:
        ranges = [[int(end) for end in part.split("-")] for part in text.split(",")]
        return [size for ends in ranges for size in range(ends[0], ends[-1] + 1)]
    except ValueError:
        raise BhcError(
            f"cannot read the subsets {text!r}", hint="'pairs', 'all', or sizes such as '2,3' or '1-5'"
        ) from None


def _subsets(given: Iterable[Iterable[int]], *, ordered: bool = True) -> tuple[Subset, ...]:
    """Each as whole numbers; ``ordered`` ascending, and each class once."""
    try:
        numbers = [tuple(index(label) for label in subset) for subset in given]
        return tuple(tuple(sorted(set(own))) if ordered else own for own in numbers)
    except TypeError:
        raise BhcError(
            f"class subsets are lists of numbers, given {given!r}", hint="such as [(0, 1), (3, 7)]"
        ) from None


def _shares(given: Iterable[float], count: int, what: str) -> tuple[float, ...]:
    shares = tuple(float(share) for share in given)
    if len(shares) != count or not all(0 <= share < inf for share in shares) or sum(shares) == 0:
        raise BhcError(f"shares {shares} for {count} {what}", hint="give one for each, 0 or more, not all of them 0")
    return shares


def _check_inside(subset: Subset, num_classes: int) -> None:
    if subset and not 0 <= subset[0] <= subset[-1] < num_classes:
        raise BhcError(f"the subset {subset} of {num_classes} classes", hint=f"classes are 0 to {num_classes - 1}")


def _rows(subsets: Sequence[Subset], num_classes: int) -> Tensor:  # (T, C) bool
    rows = torch.zeros(len(subsets), num_classes, dtype=torch.bool)
    for row, subset in zip(rows, subsets, strict=True):
        row[list(subset)] = True
    return rows


@lru_cache(maxsize=16)
def _table(sampler: TabledSubsets, num_classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Membership rows (T, C) and their probabilities (T,), built once for a device."""
    subsets = sampler.subsets(num_classes)
    return _rows(subsets, num_classes).to(device), sampler.weights(subsets).to(device)


@lru_cache(maxsize=16)
def _untabled(sampler: RandomSubsets, num_classes: int, device: torch.device) -> _Untabled:
    return _Untabled(sampler, num_classes, device)


# Of ``bhc train``, for all spaces that draw classes.
SUBSETS = Option(
    "subsets",
    "Class subsets to train on: 'pairs' (consecutive), sizes as '2,3' or '1-5', or 'all'.",
    parse=_parse_sizes,
    default="2,3",
)
