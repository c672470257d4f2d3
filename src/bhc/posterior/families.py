"""Sparsity families: which scales a layer has, what is believed of them, and how far that is from the normal-Jeffreys
or the horseshoe prior."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Generator, Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bhc.errors import BhcError
from bhc.graph import Layer
from bhc.posterior.beliefs import TINY, LayerPosterior, LogNormalScales, NormalScales, Scales, log_dropout

# Constants of the sigmoid-softplus fit to the scale divergence (paper, section 4.3).
K1, K2, K3 = 0.63576, 1.87320, 1.48695

# Beyond this a rate is settled: clamping ends its gradient before the exponentials overflow.
LOG_DROPOUT_LIMIT = 10.0

# A log-normal mean beyond this exponent is no longer told apart: its gradient ends before it overflows.
LARGEST_EXPONENT = 20.0

LOG_2 = log(2)


def kl_scales(log_dropout: Tensor) -> Tensor:  # (K, n) -> (K,)
    """KL(q(z) || p(z)) for the improper prior 1 / |z|, up to its constant.

    ``-(k1 sigmoid(k2 + k3 log alpha) - 1/2 softplus(-log alpha) - k1)`` summed over the scales.
    """
    x = log_dropout.clamp(-LOG_DROPOUT_LIMIT, LOG_DROPOUT_LIMIT)
    return (K1 + 0.5 * F.softplus(-x) - K1 * torch.sigmoid(K2 + K3 * x)).sum(-1)


class ScaleDivergence(Function):
    """``kl_scales(log_dropout(mean, logvar))``, (K, n) -> (K,).

    With ``x = log alpha`` and ``s = sigmoid(k2 + k3 x)`` the slope is ``-1/2 sigmoid(-x) - k1 k3 s (1 - s)``, and
    ``dx / d logvar = 1``, ``dx / d mean = -2 mean / (mean^2 + tiny)``.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, logvar: Tensor) -> Tensor:
        rate = log_dropout(mean, logvar)
        ctx.save_for_backward(mean, rate)
        return kl_scales(rate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        mean, rate = ctx.saved_tensors
        s = torch.sigmoid(K2 + K3 * rate)
        slope = torch.sigmoid(-rate).mul_(-0.5).addcmul_(s, 1 - s, value=-K1 * K3)
        slope.mul_(rate.abs() <= LOG_DROPOUT_LIMIT).mul_(gradient[:, None])
        return slope * mean / (mean * mean).add_(TINY).mul_(-0.5), slope


def kl_gamma(log_mean: Tensor, log_logvar: Tensor) -> Tensor:  # (K, n) -> (K,)
    """KL(LogNormal(m, v) || Gamma(1/2, 1)) summed over n variables.

    ``exp(m + v / 2) - (m + log v + 1 + log 2) / 2``
    """
    mean = (log_mean + 0.5 * log_logvar.exp()).clamp(max=LARGEST_EXPONENT).exp()
    return (mean - 0.5 * (log_mean + log_logvar + 1 + LOG_2)).sum(-1)


def kl_inverse_gamma(log_mean: Tensor, log_logvar: Tensor) -> Tensor:  # (K, n) -> (K,)
    """KL(LogNormal(m, v) || InverseGamma(1/2, 1)): that of the inverse variable from a gamma variable."""
    return kl_gamma(-log_mean, log_logvar)


class Family(ABC):
    """A way of grouping weights under common scales, and the prior of those scales."""

    means_need_variances = False  # whether the mean of a scale depends on the variances behind it
    cuts_weights = False  # whether single weights go too
    thresholds = (-2.0, 1.0)  # where a threshold is usually of use

    @abstractmethod
    def num_scales(self, layer: Layer) -> tuple[int, int]:
        """How many input and output scales the layer has; zero for none."""

    @abstractmethod
    def num_numbers(self, scales: int) -> int:
        """How many means (and as many log-variances) stand behind so many scales of one group."""

    @abstractmethod
    def initial_means(self, scales: int, std: float, *, rng: Generator | None) -> Tensor:
        """Those means at the start: scales of one, but for a little noise."""

    @abstractmethod
    def scales(self, means: Tensor, logvars: Tensor) -> Scales:
        """The belief that these numbers, (K, ``num_numbers``), stand for."""

    def log_dropouts(self, means: Tensor, logvars: Tensor, sizes: Sequence[int]) -> list[Tensor | None]:
        """Log dropout rates of groups that stand side by side, each behind so many numbers; None for one without."""
        parts = zip(means.split_with_sizes(sizes, dim=1), logvars.split_with_sizes(sizes, dim=1), strict=True)
        return [self.scales(*part).log_dropout if part[0].shape[1] else None for part in parts]

    @abstractmethod
    def kl(self, posteriors: Sequence[LayerPosterior]) -> Tensor:  # (K or 1,)
        """The divergence of a network in K contexts from the prior."""


class NormalJeffreys(Family):
    """Scales under ``p(z) = 1 / |z|``, each a normal variable."""

    def num_numbers(self, scales: int) -> int:
        return scales

    def initial_means(self, scales: int, std: float, *, rng: Generator | None) -> Tensor:
        return 1.0 + std * torch.randn(scales, generator=rng)

    def scales(self, means: Tensor, logvars: Tensor) -> NormalScales:
        return NormalScales(means, logvars)

    def log_dropouts(self, means: Tensor, logvars: Tensor, sizes: Sequence[int]) -> list[Tensor | None]:
        rates = log_dropout(means, logvars).split_with_sizes(sizes, dim=1)  # a number is a scale
        return [rate if size else None for rate, size in zip(rates, sizes, strict=True)]

    def kl(self, posteriors: Sequence[LayerPosterior]) -> Tensor:
        weights = sum(layer.weights.divergence for layer in posteriors)
        groups = [scale for scale in _scales_of(posteriors) if isinstance(scale, NormalScales)]
        # All scales of the network side by side: their divergence is one sum.
        means, logvars = (torch.cat(parts, dim=1) for parts in zip(*((s.mean, s.logvar) for s in groups), strict=True))
        return weights + ScaleDivergence.apply(means, logvars)


@dataclass(frozen=True)
class GroupNormalJeffreys(NormalJeffreys):
    """BC-GNJ: one scale for each input of a linear layer, one for each filter of a convolution."""

    def num_scales(self, layer: Layer) -> tuple[int, int]:
        return (0, layer.num_outputs) if layer.has_kernel else (layer.num_inputs, 0)


@dataclass(frozen=True)
class InputOutputNormalJeffreys(NormalJeffreys):
    """BC-IO-GNJ, the paper's family: each unit is held by the layer that writes it and the one that reads it.

    Linear: a scale for each input and each output. Convolution: one for the whole input, one for each filter.
    """

    def num_scales(self, layer: Layer) -> tuple[int, int]:
        return (1 if layer.has_kernel else layer.num_inputs, layer.num_outputs)


@dataclass(frozen=True)
class GroupHorseshoe(Family):
    """BC-GHS: the groups of BC-GNJ under half-Cauchy scales, local ones times a global one a layer.

    A half-Cauchy variable is the root of a gamma times an inverse gamma variable; each of the four factors of a
    squared scale has a log-normal posterior: ``a_i ~ Gamma(1/2, 1)``, ``s_a ~ Gamma(1/2, tau^2)``,
    ``b_i, s_b ~ InvGamma(1/2, 1)``. A small ``tau`` says that most groups are next to nothing: each that is not
    must pay for a large ``b_i``.
    """

    global_scale: float = 0.1  # tau

    means_need_variances = True

    def num_scales(self, layer: Layer) -> tuple[int, int]:
        return GroupNormalJeffreys().num_scales(layer)

    def num_numbers(self, scales: int) -> int:
        return 2 * scales + 2 if scales else 0

    def initial_means(self, scales: int, std: float, *, rng: Generator | None) -> Tensor:
        means = std * torch.randn(self.num_numbers(scales), generator=rng)
        # The global scale starts where its prior has it, and the heavy-tailed b_i make up for that.
        means[scales : 2 * scales] -= self._log_global
        means[2 * scales : 2 * scales + 1] += self._log_global
        return means

    def scales(self, means: Tensor, logvars: Tensor) -> LogNormalScales:
        return LogNormalScales(means, logvars)

    def kl(self, posteriors: Sequence[LayerPosterior]) -> Tensor:
        groups = [scale for scale in _scales_of(posteriors) if isinstance(scale, LogNormalScales)]
        parts = [layer.weights.divergence for layer in posteriors] + [self._kl_of_scales(scale) for scale in groups]
        return torch.stack(torch.broadcast_tensors(*parts)).sum(0)

    def _kl_of_scales(self, scale: LogNormalScales) -> Tensor:  # (K,)
        sizes = [*[(scale.part_means.shape[1] - 2) // 2] * 2, 1, 1]
        local_a, local_b, global_a, global_b = zip(
            scale.part_means.split(sizes, dim=1), scale.part_logvars.split(sizes, dim=1), strict=True
        )
        gammas = kl_gamma(*local_a) + kl_gamma(global_a[0] - self._log_global, global_a[1])
        return gammas + kl_inverse_gamma(*local_b) + kl_inverse_gamma(*global_b)

    @property
    def _log_global(self) -> float:
        """``log tau^2``: s_a over this is Gamma(1/2, 1)."""
        return 2 * log(self.global_scale)


@dataclass(frozen=True)
class SparseVariationalDropout(NormalJeffreys):
    """SparseVD: no groups; each weight is a scale of its own under the log-uniform prior, and goes by itself."""

    cuts_weights = True
    thresholds = (0.0, 4.0)  # the published one is 3

    def num_scales(self, layer: Layer) -> tuple[int, int]:
        return (0, 0)

    def kl(self, posteriors: Sequence[LayerPosterior]) -> Tensor:
        return torch.stack(
            [kl_scales(log_dropout(layer.mean.weight.dense(), layer.weight_logvar).flatten(1)) for layer in posteriors]
        ).sum(0)


FAMILIES: dict[str, Family] = {
    "gnj": GroupNormalJeffreys(),
    "io-gnj": InputOutputNormalJeffreys(),
    "ghs": GroupHorseshoe(),
    "sparse-vd": SparseVariationalDropout(),
}


def check_family(name: str) -> None:
    """Raise if there is no family of that name."""
    if name not in FAMILIES:
        raise BhcError(f"unknown family {name!r}", hint=f"choose one of: {', '.join(FAMILIES)}")


def _scales_of(posteriors: Sequence[LayerPosterior]) -> list[Scales]:
    scales = [scale for layer in posteriors for scale in (layer.in_scale, layer.out_scale)]
    return [scale for scale in scales if scale is not None]
