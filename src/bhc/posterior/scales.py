"""What is believed about a group's scales: how they are drawn, what a threshold is compared with."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from bhc.posterior.moments import TINY, log_dropout
from bhc.posterior.products import Drawn, ScaledByNoise

NOISIEST = 2.0  # log dropout rate of scales that are drawn at single places, at most


class Scales(Protocol):
    """Scales of n units in K contexts."""

    @property
    def mean(self) -> Tensor:  # (K, n)
        """What the deterministic network multiplies by."""

    @property
    def log_dropout(self) -> Tensor:  # (K, n)
        """``log (V(z) / E(z)^2)``: how little is known of each scale; its unit goes when this is over the threshold."""

    def draw(self, noise: Tensor) -> Tensor:
        """Scales drawn once an example, (K, B, n); ``noise`` (K, B, n) is standard normal."""

    def times(self, h: Tensor, noise: Tensor) -> Tensor:
        """``h`` (K, B, n, places) times scales drawn once an example; ``noise`` (K, B, n) is standard normal.

        A single scale may go with any number of units.
        """

    def drawn_at(self, places: Tensor, noise: Tensor) -> Tensor:  # (K, m)
        """A scale for each of m places in every context, each drawn by itself; none is noisier than ``NOISIEST``."""


@dataclass(frozen=True)
class NormalScales:
    """``z ~ N(mu, sigma^2)`` under the normal-Jeffreys prior."""

    mean: Tensor
    logvar: Tensor

    @cached_property
    def log_dropout(self) -> Tensor:
        return log_dropout(self.mean, self.logvar)

    def draw(self, noise: Tensor) -> Tensor:
        return Drawn.apply(self.mean, self.logvar, noise)

    def times(self, h: Tensor, noise: Tensor) -> Tensor:
        return ScaledByNoise.apply(h, self.mean, self.logvar, noise)

    def drawn_at(self, places: Tensor, noise: Tensor) -> Tensor:
        # Of a word that is seldom met the divergence alone is heard, step after step, and its variance runs away.
        logvar = torch.minimum(self.logvar, torch.log(self.mean * self.mean + TINY) + NOISIEST)
        spread = (0.5 * logvar).exp()
        return torch.addcmul(self.mean.gather(1, places), spread.gather(1, places), noise)


@dataclass(frozen=True)
class LogNormalScales:
    """``log z ~ N(m, v)``, a sum of independent normal logarithms, each under a prior of its own (horseshoe).

    A local scale is ``sqrt(a_i b_i)``, the global one ``sqrt(s_a s_b)``; ``part_means`` and ``part_logvars`` hold
    the logarithms' [a_1 .. a_n, b_1 .. b_n, s_a, s_b].
    """

    part_means: Tensor  # (K, 2 n + 2)
    part_logvars: Tensor

    @cached_property
    def centre(self) -> Tensor:  # (K, n)
        """``m``: half the sum of four means."""
        return 0.5 * self._sum(self.part_means)

    @cached_property
    def variance(self) -> Tensor:  # (K, n)
        """``v``: a quarter of the sum of four variances."""
        return 0.25 * self._sum(self.part_logvars.exp())

    @cached_property
    def mean(self) -> Tensor:
        return (self.centre + 0.5 * self.variance).exp()

    @cached_property
    def log_dropout(self) -> Tensor:
        """``log (exp(v) - 1)``."""
        return torch.expm1(self.variance).log()

    def draw(self, noise: Tensor) -> Tensor:
        return torch.addcmul(self.centre[:, None], self.variance.sqrt()[:, None], noise).exp()

    def times(self, h: Tensor, noise: Tensor) -> Tensor:
        return h * self.draw(noise).to(h.dtype)[..., None]

    def drawn_at(self, places: Tensor, noise: Tensor) -> Tensor:
        spread = self.variance.clamp(max=NOISIEST).sqrt()
        return torch.addcmul(self.centre.gather(1, places), spread.gather(1, places), noise).exp()

    def _sum(self, parts: Tensor) -> Tensor:
        units = (parts.shape[1] - 2) // 2
        first, second, shared = parts.split([units, units, 2], dim=1)
        return first + second + shared.sum(1, keepdim=True)
