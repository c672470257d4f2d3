"""Where the standard normal numbers of the noisy passes come from."""

from collections.abc import Sequence
from math import prod
from typing import Protocol

import torch
from torch import Generator, Tensor


class Noise(Protocol):
    """A source of standard normal tensors."""

    rng: Generator | None  # behind it, where its state has to be kept with a run

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """A tensor of ``shape`` with the dtype and device of ``like``; do not write into it."""


class FreshNoise:
    """Every number drawn anew."""

    def __init__(self, rng: Generator | None = None) -> None:
        self.rng = rng

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        same = like.shape == torch.Size(shape)  # then laid out in memory alike
        noise = torch.empty_like(like) if same else torch.empty(shape, dtype=like.dtype, device=like.device)
        return noise.normal_(generator=self.rng)


class PooledNoise:
    """Windows, at random places, of a pool that is redrawn every ``lifetime`` steps.

    On a CPU drawing normals costs as much as the matrix products they go with; a window costs nothing. A
    number is used some tens of times before the pool is redrawn, beside other numbers each time. The pool
    follows from the seed and the step alone, so a resumed run sees the same noise.
    """

    SIZE = 1 << 23
    rng: Generator | None = None  # each pool follows from the seed and the step

    def __init__(self, seed: int, *, size: int = SIZE, lifetime: int = 250) -> None:
        self.seed = seed
        self.size = size
        self.lifetime = lifetime
        self._rng = Generator()
        self._pool = torch.empty(0)
        self._age = -1
        self._position = 0

    def advance(self, step: int) -> None:
        """Move to a training step: its windows start at a place of its own."""
        if step // self.lifetime != self._age:
            self._age = step // self.lifetime
            self._rng.manual_seed(_mix(self.seed, self._age))
            self._pool = torch.empty(self.size).normal_(generator=self._rng)
        self._rng.manual_seed(_mix(self.seed, step) + 1)
        self._position = int(torch.randint(self.size, (), generator=self._rng))

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        if self._age < 0:
            self.advance(0)
        count = prod(shape)
        if 2 * count > self.size:
            return FreshNoise(self._rng).normal(shape, like)
        if self._position + count > self.size:
            self._position = int(torch.randint(self.size - count, (), generator=self._rng))
        window = self._pool[self._position : self._position + count]
        self._position += count
        return window.view(*shape).to(like)


def _mix(seed: int, index: int) -> int:
    """Different generator seeds for different (seed, index), never the one the caller may use itself."""
    return (seed * 1_000_003 + index * 2 + 0x9E3779B9) % (1 << 62)
