"""How a hypernetwork starts, and how wide the prior of its weights is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, sqrt

import torch
from torch import Generator, Tensor

from bhc.graph import Layer

HEADROOM = 3.0  # of a log-variance at the start under the prior's


@dataclass(frozen=True)
class Initial:
    """Starting values: the pretrained weights in the offsets, and maps that add a little noise to them.

    The paper's: maps from Kaiming's uniform distribution with gain 0.5, log-variances from N(-9, 1e-4), scale
    means from N(1, 1e-8) (variances). ``Initial.exact()`` has zero maps and scale means of exactly one: the
    first network is the pretrained one, bit for bit.
    """

    map_gain: float = 0.5
    logvar: float = -9.0
    logvar_std: float = 1e-2
    scale_std: float = 1e-4

    def under(self, prior_std: float) -> "Initial":
        """The same, with noise that starts well under what a prior of this width allows."""
        return replace(self, logvar=min(self.logvar, 2 * log(prior_std) - HEADROOM))

    @classmethod
    def exact(cls) -> "Initial":
        return cls(map_gain=0.0, scale_std=0.0)

    def map(self, rows: int, width: int, *, rng: Generator | None) -> Tensor:  # (rows, E)
        """A linear map from the embedding."""
        return kaiming_uniform(rows, width, gain=self.map_gain, rng=rng)

    def log_variance(self, *shape: int, rng: Generator | None) -> Tensor:
        return torch.randn(*shape, generator=rng).mul_(self.logvar_std).add_(self.logvar)


def kaiming_uniform(rows: int, width: int, *, gain: float, rng: Generator | None) -> Tensor:
    """``U(-b, b)`` with ``b = gain sqrt(3 / width)``."""
    bound = gain * sqrt(3 / width) if width else 0.0
    return torch.empty(rows, width).uniform_(-bound, bound, generator=rng) if bound else torch.zeros(rows, width)


FEW_LAYERS = 4  # networks of so many or fewer are trained as published
SMALLEST = 1e-4  # a layer of zeros has a prior too


def usual_prior_stds(layers: Sequence[Layer]) -> tuple[float, ...]:
    """One a layer: 1, as in the paper, in networks of few layers; in deeper ones the size of the pretrained weights.

    Normal-Jeffreys scales know no unit, so the width of the weights' prior says nothing about the best posterior, and
    everything about the way there: with weights far smaller than their prior the noise outgrows them before any scale
    has moved, and every layer behind sees noise alone.
    """
    if len(layers) <= FEW_LAYERS:
        return (1.0,) * len(layers)
    # Three digits: a sum over millions of weights has its last ones from the number of threads.
    return tuple(float(f"{max(layer.weight_size, SMALLEST):.3g}") for layer in layers)
