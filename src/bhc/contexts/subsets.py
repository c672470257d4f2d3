"""Which class subsets training meets: samplers over an explicit table of subsets."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Any

import torch
from torch import Generator, Tensor

from bhc.errors import BhcError

# A table row is C bytes; beyond this many rows enumerating stops being the simple thing.
LARGEST_TABLE = 200_000

Subset = tuple[int, ...]


class SubsetSampler(ABC):
    """Draws class subsets from a finite list."""

    @abstractmethod
    def subsets(self, num_classes: int) -> tuple[Subset, ...]:
        """Every subset that can be drawn, in a fixed order."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data that describes the sampler."""

    def weights(self, subsets: Sequence[Subset]) -> Tensor:  # (T,)
        """Relative probability of each subset."""
        return torch.ones(len(subsets))

    def draw(self, count: int, num_classes: int, *, generator: Generator) -> Tensor:  # (K, C) bool
        """Membership rows of ``count`` subsets."""
        table, weights = _table(self, num_classes, generator.device)
        return table[torch.multinomial(weights, count, replacement=True, generator=generator)]


@dataclass(frozen=True)
class ConsecutivePairs(SubsetSampler):
    """The paper's contexts: (0, 1), (1, 2), ..., (C - 2, C - 1)."""

    def subsets(self, num_classes: int) -> tuple[Subset, ...]:
        if num_classes < 2:
            raise BhcError(f"there are no pairs of {num_classes} class")
        return tuple((first, first + 1) for first in range(num_classes - 1))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "consecutive-pairs"}


@dataclass(frozen=True)
class RandomSubsets(SubsetSampler):
    """All subsets of the given sizes, each size equally likely, but for those held out."""

    sizes: tuple[int, ...] = (2, 3)
    held_out: tuple[Subset, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))
        if not self.sizes or min(self.sizes) < 1:
            raise BhcError(f"subset sizes must be 1 or more, given {self.sizes}")
        object.__setattr__(self, "held_out", tuple(tuple(sorted(subset)) for subset in self.held_out))

    def subsets(self, num_classes: int) -> tuple[Subset, ...]:
        total = sum(comb(num_classes, size) for size in self.sizes)
        if not 0 < total <= LARGEST_TABLE:
            raise BhcError(
                f"there are {total:,} subsets of sizes {self.sizes} among {num_classes} classes",
                hint=f"choose sizes with 1 to {LARGEST_TABLE:,} subsets",
            )
        left_out = set(self.held_out)
        kept = tuple(subset for subset in all_subsets(num_classes, self.sizes) if subset not in left_out)
        if not kept:
            raise BhcError("every subset is held out, so there is nothing to train on")
        return kept

    def weights(self, subsets: Sequence[Subset]) -> Tensor:
        sizes = torch.tensor([len(subset) for subset in subsets])
        return 1.0 / torch.bincount(sizes)[sizes]

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "random-subsets",
            "sizes": list(self.sizes),
            "held_out": [list(subset) for subset in self.held_out],
        }


def all_subsets(num_classes: int, sizes: Iterable[int]) -> Iterable[Subset]:
    """Every subset of the given sizes in lexical order, smaller sizes first."""
    return (subset for size in sorted(set(sizes)) for subset in combinations(range(num_classes), size))


def sampler_from_dict(data: dict[str, Any]) -> SubsetSampler:
    """The sampler that ``to_dict`` described."""
    if data["kind"] == "consecutive-pairs":
        return ConsecutivePairs()
    if data["kind"] == "random-subsets":
        return RandomSubsets(tuple(data["sizes"]), tuple(tuple(subset) for subset in data["held_out"]))
    raise BhcError(f"unknown kind of subset sampler: {data['kind']!r}")


@lru_cache(maxsize=16)
def _table(sampler: SubsetSampler, num_classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Membership rows (T, C) and their probabilities (T,), built once for a device."""
    subsets = sampler.subsets(num_classes)
    table = torch.zeros(len(subsets), num_classes, dtype=torch.bool)
    for row, subset in zip(table, subsets, strict=True):
        row[list(subset)] = True
    return table.to(device), sampler.weights(subsets).to(device)
