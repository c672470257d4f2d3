"""Which features training leaves out: samplers of masks over the inputs."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import index
from typing import Any

import torch
from torch import Generator, Tensor

from bhc.contexts.space import Sampler, sampler_of
from bhc.errors import BhcError, renamed

Shape = tuple[int, ...]


class MaskSampler(Sampler):
    """Draws masks over features, true where a feature is there."""

    @abstractmethod
    def draw(self, count: int, shape: Shape, *, rng: Generator) -> Tensor:  # (K, *shape) bool
        """Masks of ``count`` contexts, on the generator's device; one may be empty, ``draw_masks`` sees to that."""


@dataclass(frozen=True)
class ScatteredFeatures(MaskSampler):
    """Each feature for itself; the part that is there is drawn for each context between the two bounds."""

    parts: tuple[float, float] = (0.1, 1.0)
    kind = "scattered"

    def __post_init__(self) -> None:
        low, high = self.parts
        if not 0 <= low <= high <= 1 or high == 0:
            raise BhcError(f"the part of the features that is there lies between 0 and 1, given {self.parts}")

    @renamed(generator="rng")
    def draw(self, count: int, shape: Shape, *, rng: Generator) -> Tensor:
        low, high = self.parts
        part = low + (high - low) * _rand((count,), rng)
        return _rand((count, *shape), rng) < part.reshape(-1, *[1] * len(shape))

    def describe(self) -> str:
        return f"{100 * self.parts[0]:g} to {100 * self.parts[1]:g} % of them at random"


@dataclass(frozen=True)
class BlockFeatures(MaskSampler):
    """A stretch along each of the last two dimensions: halves, corners, strips of an image.

    Each is at least ``least`` of its dimension long, and in half of the draws or more it is all of it.
    """

    least: float = 0.25
    kind = "block"

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise BhcError(f"the shortest stretch is a part of a dimension, over 0 and up to 1, given {self.least}")

    @renamed(generator="rng")
    def draw(self, count: int, shape: Shape, *, rng: Generator) -> Tensor:
        mask = torch.ones(count, *shape, dtype=torch.bool, device=rng.device)
        for place in range(max(0, len(shape) - 2), len(shape)):
            length = (self.least + (2 - self.least) * _rand((count, 1), rng)).clamp(max=1)
            start = (1 - length) * _rand((count, 1), rng)
            middles = (torch.arange(shape[place], device=rng.device) + 0.5) / shape[place]
            inside = (middles >= start) & (middles <= start + length)
            mask = mask & inside.reshape(count, *[n if d == place else 1 for d, n in enumerate(shape)])
        return mask

    def describe(self) -> str:
        return "rectangles"


@dataclass(frozen=True)
class StripedFeatures(MaskSampler):
    """Every second, third, ... row or column, up to ``widest`` apart."""

    widest: int = 4
    kind = "striped"

    def __post_init__(self) -> None:
        if self.widest < 2:
            raise BhcError(f"stripes are 2 or more apart, given {self.widest}")

    @renamed(generator="rng")
    def draw(self, count: int, shape: Shape, *, rng: Generator) -> Tensor:
        mask = torch.zeros(count, *shape, dtype=torch.bool, device=rng.device)
        places = list(range(max(0, len(shape) - 2), len(shape)))
        which = (_rand((count,), rng) * len(places)).long()
        apart = 2 + (_rand((count, 1), rng) * (self.widest - 1)).long()
        first = (_rand((count, 1), rng) * apart).long()
        for number, place in enumerate(places):
            striped = torch.arange(shape[place], device=rng.device) % apart == first
            own = striped & (which == number)[:, None]
            mask = mask | own.reshape(count, *[n if d == place else 1 for d, n in enumerate(shape)])
        return mask

    def describe(self) -> str:
        return f"every second to {self.widest}th row or column"


@dataclass(frozen=True)
class ListedFeatures(MaskSampler):
    """The given sets of features and no others, equally likely; each as the places of those that are there."""

    listed: tuple[tuple[int, ...], ...]
    kind = "listed"

    def __post_init__(self) -> None:
        hint = "list the places of the features that are there: ListedFeatures([(0, 1), (2, 5)])"
        try:
            listed = tuple(tuple(sorted({index(place) for place in places})) for places in self.listed)
        except TypeError:
            raise BhcError(f"sets of features are lists of numbers, given {self.listed!r}", hint=hint) from None
        if not listed or not all(listed):
            raise BhcError("a listed set of features is empty", hint=hint)
        object.__setattr__(self, "listed", listed)

    @renamed(generator="rng")
    def draw(self, count: int, shape: Shape, *, rng: Generator) -> Tensor:
        table = _table(self, shape, rng.device)
        return table[(_rand((count,), rng) * len(table)).long()]

    def describe(self) -> str:
        return f"{len(self.listed)} listed sets"


@dataclass(frozen=True)
class WordsOfTexts(MaskSampler):
    """The words that some texts have together, by how often each word is in one; frequent words are most often there.

    The number of texts is drawn for each context, evenly on a logarithmic scale between the two bounds.
    """

    rates: tuple[float, ...]  # the part of all texts that has each word
    texts: tuple[int, int] = (50, 10_000)
    kind = "words"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(self.rates))
        low, high = self.texts
        if not 1 <= low <= high or not all(0 <= rate <= 1 for rate in self.rates):
            raise BhcError(
                f"words of {low} to {high} texts, by rates up to {max(self.rates, default=0):g}",
                hint="numbers of texts ascend from 1, and rates lie between 0 and 1",
            )

    @classmethod
    def among(cls, texts: Tensor, count: int) -> "WordsOfTexts":  # (N, T)
        """Out of ``count`` words, by how many of these texts have each; of up to twice as many texts."""
        present = torch.zeros(len(texts), count, dtype=torch.bool).scatter(1, texts.long(), True)
        return cls(tuple(present.double().mean(0).tolist()), (min(50, len(texts)), 2 * len(texts)))

    @renamed(generator="rng")
    def draw(self, count: int, shape: Shape, *, rng: Generator) -> Tensor:
        if shape != (len(self.rates),):
            raise BhcError(f"features of shape {shape}, and {len(self.rates):,} words")
        low, high = self.texts
        number = low * (high / low) ** _rand((count, 1), rng)
        absent = _absent(self, rng.device)[None] * number
        return torch.log(_rand((count, *shape), rng)) > absent

    def describe(self) -> str:
        return f"the words of {self.texts[0]:,} to {self.texts[1]:,} texts"


@dataclass(frozen=True)
class MixedFeatures(MaskSampler):
    """One of several samplers for each context, equally likely."""

    samplers: tuple[MaskSampler, ...] = (ScatteredFeatures(), BlockFeatures(), StripedFeatures())
    kind = "mixed"

    def __post_init__(self) -> None:
        if not self.samplers:
            raise BhcError("there is nothing to mix", hint="give at least one sampler")

    @renamed(generator="rng")
    def draw(self, count: int, shape: Shape, *, rng: Generator) -> Tensor:
        masks = torch.stack([sampler.draw(count, shape, rng=rng) for sampler in self.samplers])
        which = (_rand((count,), rng) * len(self.samplers)).long()
        return masks[which, torch.arange(count, device=rng.device)]

    def describe(self) -> str:
        return ", ".join(sampler.describe() for sampler in self.samplers)


def draw_masks(sampler: MaskSampler, count: int, shape: Shape, *, rng: Generator) -> Tensor:  # (K, F) bool
    """Masks with at least one feature each."""
    masks = sampler.draw(count, shape, rng=rng).flatten(1)
    order = _rand((count, masks.shape[1]), rng)
    one = torch.zeros_like(masks).scatter(1, order.argmax(1, keepdim=True), True)
    return masks | (one & ~masks.any(1, keepdim=True))


def usual_sampler(shape: Shape) -> MaskSampler:
    """What fits inputs of a shape: where they lie on a plane also rectangles and stripes."""
    plane: Sequence[int] = shape[-2:]
    return MixedFeatures() if len(plane) == 2 and min(plane) > 1 else ScatteredFeatures()


MASK_SAMPLERS: dict[str, type[MaskSampler]] = {
    sampler.kind: sampler
    for sampler in (ScatteredFeatures, BlockFeatures, StripedFeatures, ListedFeatures, WordsOfTexts, MixedFeatures)
}


def mask_sampler_from_dict(data: dict[str, Any]) -> MaskSampler:
    if "samplers" in data:
        data = data | {"samplers": [mask_sampler_from_dict(own) for own in data["samplers"]]}
    return sampler_of(MASK_SAMPLERS, data, what="feature")


@lru_cache(maxsize=16)
def _table(sampler: ListedFeatures, shape: Shape, device: torch.device) -> Tensor:  # (T, *shape) bool
    """A mask for each listed set, built once for a device, so that nothing waits for a copy."""
    features = prod(shape)
    table = torch.zeros(len(sampler.listed), features, dtype=torch.bool)
    for row, places in zip(table, sampler.listed, strict=True):
        outside = places[0] if places[0] < 0 else places[-1]
        if not 0 <= outside < features:
            raise BhcError(f"there is no feature {outside}", hint=f"features are 0 to {features - 1}")
        row[list(places)] = True
    return table.reshape(-1, *shape).to(device)


@lru_cache(maxsize=4)
def _absent(sampler: WordsOfTexts, device: torch.device) -> Tensor:  # (F,)
    """The logarithm of how likely a word is in none of one text."""
    rates = torch.tensor(sampler.rates, dtype=torch.float64)
    return torch.log1p(-rates.clamp(max=1 - 1e-12)).float().to(device)


def _rand(shape: Shape, rng: Generator) -> Tensor:
    return torch.rand(shape, generator=rng, device=rng.device)
