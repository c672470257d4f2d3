"""Rows of weights picked by whole numbers, for K contexts at once: a product with columns of one 1 each, unwritten."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bhc.layers import Embed
from bhc.posterior.beliefs import WeightMean
from bhc.posterior.noise import Noise
from bhc.posterior.scales import Scales


@dataclass(frozen=True)
class Picked:
    """Columns with one number each: where it stands, and what it is. Zero where a word has no row."""

    places: Tensor  # (K * B, T)
    factor: Tensor  # (K * B, T)

    def times(self, values: Tensor) -> "Picked":
        """With every number times that of its place in its context, (K or 1, rows)."""
        at = self._apart(len(values))
        return replace(self, factor=self.factor * values.gather(1, at).to(self.factor.dtype).reshape(self.factor.shape))

    def times_noisy(self, scales: Scales, *, noise: Noise) -> "Picked":
        """The same with scales that are drawn; for each token anew, also where a word comes twice."""
        at = self._apart(len(scales.mean))
        drawn = scales.drawn_at(at, noise.normal(at.shape, like=scales.mean))
        return replace(self, factor=self.factor * drawn.reshape(self.factor.shape))

    def _apart(self, contexts: int) -> Tensor:  # (K, B * T)
        return self.places.reshape(contexts, -1)


class Lookup:
    """The operator of an embedding: ``W[:, word] z[word]`` at each token."""

    has_parts = False

    def __init__(self, module: Embed) -> None:
        self.module = module

    def only(self, h: "Tensor | Picked", keep: Tensor) -> Picked:
        return self._picked(h).times(keep)

    def times(self, h: "Tensor | Picked", values: Tensor) -> Picked:
        return self._picked(h).times(values)

    def times_noisy(self, h: "Tensor | Picked", scales: Scales, *, noise: Noise) -> Picked:
        return self._picked(h).times_noisy(scales, noise=noise)

    def apply(self, h: "Tensor | Picked", weight: Tensor) -> Tensor:  # (K * B, O, T)
        picked = self._picked(h)
        return self._rows(picked, weight) * picked.factor[:, None]

    def mean_and_variance(self, h: "Tensor | Picked", weight: WeightMean, variance: Tensor) -> tuple[Tensor, Tensor]:
        picked = self._picked(h)
        mean = self.apply(picked, weight.base)
        if weight.left is not None and weight.right is not None:
            mean = self.add_low_rank(mean, picked, weight.left, weight.right)
        return mean, self._rows(picked, variance) * picked.factor.square()[:, None]

    def add_low_rank(self, product: Tensor, h: "Tensor | Picked", left: Tensor, right: Tensor) -> Tensor:
        picked = self._picked(h)
        contexts, tokens = len(left), picked.places.shape[1]
        thin = F.embedding(picked.places, right) * picked.factor[..., None]  # (K * B, T, R)
        wide = torch.bmm(thin.reshape(contexts, -1, thin.shape[2]), left.mT)
        return product + wide.reshape(-1, tokens, left.shape[1]).mT

    def _rows(self, picked: Picked, weight: Tensor) -> Tensor:  # (K * B, O, T)
        contexts, outputs, rows = weight.shape
        if contexts == 1:
            return F.embedding(picked.places, weight[0].mT).mT
        own = torch.arange(contexts, device=weight.device)[:, None] * rows + picked.places.reshape(contexts, -1)
        return F.embedding(own.reshape(picked.places.shape), weight.mT.reshape(-1, outputs)).mT

    def _picked(self, h: "Tensor | Picked") -> Picked:
        if isinstance(h, Picked):
            return h
        places = self.module.rows_of(h)
        there = places < self.module.rows
        return Picked(places.clamp(max=self.module.rows - 1), there.to(self.module.weight.dtype))
