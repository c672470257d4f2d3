"""What is believed about one layer in K contexts: its scales and their moments, the values a generator hands to a noisy
layer; and where the standard normal numbers come from that are drawn from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log, prod
from typing import Protocol

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bhc.posterior.products import SampledScales, ScaledByNoise, SharedWeights

# Keeps the logarithm of a squared scale finite when the scale crosses zero.
TINY = 1e-8
NOISIEST = 2.0  # log dropout rate of scales that are drawn at single places, at most


def log_dropout(scale_mean: Tensor, scale_logvar: Tensor) -> Tensor:
    """``log alpha = log sigma_z^2 - log mu_z^2``: the rate of a unit's multiplicative noise."""
    return scale_logvar - torch.log(scale_mean * scale_mean + TINY)


def relaxed_mask(log_dropout: Tensor, noise: Tensor) -> Tensor:
    """``(1 + sqrt(alpha) E) / sqrt(1 + alpha)``: a drawn scale over its root mean square, whatever its mean's sign.

    1 where the scale is known, noise where nothing is known of it. A log-normal scale counts as a normal one with the
    same rate. By way of logarithms, for their gradients are finite at every rate.
    """
    known, unknown = (0.5 * F.logsigmoid(-log_dropout)).exp(), (0.5 * F.logsigmoid(log_dropout)).exp()
    return torch.addcmul(known, unknown, noise)


def masked_mean(
    weight_mean: Tensor,  # (K, O, I, ...)
    in_scale_mean: Tensor,  # (K, I) or (K, 1)
    out_scale_mean: Tensor,  # (K, O)
    keep_in: Tensor,  # (K, I) or (K, 1)
    keep_out: Tensor,  # (K, O)
) -> Tensor:
    """``diag(m_z mu_z) M_w diag(m_s mu_s)``: the weights of the deterministic network (paper, Eq. 4)."""
    rows = _over_outputs(keep_out * out_scale_mean, like=weight_mean)
    columns = _over_inputs(keep_in * in_scale_mean, like=weight_mean)
    return rows * weight_mean * columns


def marginal_variance(
    weight_mean: Tensor,  # (K, O, I, ...)
    weight_logvar: Tensor,
    in_scale_mean: Tensor,  # (K, I) or (K, 1)
    in_scale_logvar: Tensor,
    out_scale_mean: Tensor,  # (K, O)
    out_scale_logvar: Tensor,
) -> Tensor:
    """``V(w_ij)`` with both scales integrated out; it sets how many bits a weight deserves.

    ``(s_z^2 + m_z^2)(s_ij^2 + m_ij^2)(s_s^2 + m_s^2) - m_z^2 m_ij^2 m_s^2``
    """
    z2 = _over_inputs(in_scale_mean.square(), like=weight_mean)
    s2 = _over_outputs(out_scale_mean.square(), like=weight_mean)
    w2 = weight_mean.square()
    second_moment = (
        (_over_inputs(in_scale_logvar.exp(), like=weight_mean) + z2)
        * (weight_logvar.exp() + w2)
        * (_over_outputs(out_scale_logvar.exp(), like=weight_mean) + s2)
    )
    return second_moment - z2 * w2 * s2


def clip_variance(weight_logvar: Tensor, largest_std: float) -> Tensor:
    """Hold the standard deviation of a layer's weights under ``largest_std`` (paper: 0.2 in the first layer)."""
    return weight_logvar.clamp(max=2 * log(largest_std))


def _over_inputs(per_input: Tensor, *, like: Tensor) -> Tensor:
    return per_input.reshape(per_input.shape[0], 1, -1, *[1] * (like.dim() - 3))


def _over_outputs(per_output: Tensor, *, like: Tensor) -> Tensor:
    return per_output.reshape(per_output.shape[0], -1, 1, *[1] * (like.dim() - 3))


def kl_weights(
    squared_norm: Tensor,  # (K,) sum of the squared means
    weight_logvar: Tensor,  # (K, ...)
    prior_std: float = 1.0,
) -> Tensor:  # (K,)
    """KL(q(W | z, s) || p(W | z, s)): both scales cancel, leaving a normal prior of standard deviation p.

    ``sum_ij 1/2 ((sigma_ij^2 + mu_ij^2) / p^2 - 1 - log(sigma_ij^2 / p^2))``; the means enter through their squared
    norm alone, so that a low-rank mean need not be multiplied out.
    """
    relative = weight_logvar - 2 * log(prior_std)
    variance_part = (relative.exp() - 1 - relative).flatten(1).sum(1)
    return 0.5 * (squared_norm / prior_std**2 + variance_part)


class Scales(Protocol):
    """Scales of n units in K contexts."""

    @property
    def mean(self) -> Tensor:  # (K, n)
        """What the deterministic network multiplies by."""

    @property
    def log_dropout(self) -> Tensor:  # (K, n)
        """``log (V(z) / E(z)^2)``: how little is known of each scale; its unit goes when this is over the threshold."""

    def sample(self, noise: Tensor) -> Tensor:
        """Scales drawn once an example, (K, B, n); ``noise`` (K, B, n) is standard normal."""

    def scale_units(self, h: Tensor, noise: Tensor) -> Tensor:
        """``h`` (K, B, n, places) times scales drawn once an example; ``noise`` (K, B, n) is standard normal.

        A single scale may go with any number of units.
        """

    def sample_at(self, places: Tensor, noise: Tensor) -> Tensor:  # (K, m)
        """A scale for each of m places in every context, each drawn by itself; none is noisier than ``NOISIEST``."""


@dataclass(frozen=True)
class NormalScales:
    """``z ~ N(mu, sigma^2)`` under the normal-Jeffreys prior."""

    mean: Tensor
    logvar: Tensor

    @cached_property
    def log_dropout(self) -> Tensor:
        return log_dropout(self.mean, self.logvar)

    def sample(self, noise: Tensor) -> Tensor:
        return SampledScales.apply(self.mean, self.logvar, noise)

    def scale_units(self, h: Tensor, noise: Tensor) -> Tensor:
        return ScaledByNoise.apply(h, self.mean, self.logvar, noise)

    def sample_at(self, places: Tensor, noise: Tensor) -> Tensor:
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

    def sample(self, noise: Tensor) -> Tensor:
        return torch.addcmul(self.centre[:, None], self.variance.sqrt()[:, None], noise).exp()

    def scale_units(self, h: Tensor, noise: Tensor) -> Tensor:
        return h * self.sample(noise).to(h.dtype)[..., None]

    def sample_at(self, places: Tensor, noise: Tensor) -> Tensor:
        spread = self.variance.clamp(max=NOISIEST).sqrt()
        return torch.addcmul(self.centre.gather(1, places), spread.gather(1, places), noise).exp()

    def _sum(self, parts: Tensor) -> Tensor:
        units = (parts.shape[1] - 2) // 2
        first, second, shared = parts.split([units, units, 2], dim=1)
        return first + second + shared.sum(1, keepdim=True)


@dataclass(frozen=True)
class WeightMean:
    """The mean of a layer's weights, ``base + left right^T``; the second term is there with low rank alone."""

    base: Tensor  # (K or 1, O, I, *kernel); 1 when all contexts share it
    left: Tensor | None = None  # (K, O, R)
    right: Tensor | None = None  # (I * kernel area, R), shared

    def dense(self) -> Tensor:  # (K or 1, O, I, *kernel)
        """The mean multiplied out: simple, and as large as K networks."""
        if self.left is None or self.right is None:
            return self.base
        return self.base + (self.left @ self.right.mT).reshape(-1, *self.base.shape[1:])

    def squared_norm(self) -> Tensor:  # (K or 1,)
        """``sum of squares`` of each context's mean, without multiplying it out.

        ``|B + L R^T|^2 = |B|^2 + 2 <B R, L> + <L^T L, R^T R>``
        """
        norm = (self.base * self.base).flatten(1).sum(1)
        return norm if self.left is None else norm + self.low_rank_norm()

    def low_rank_norm(self) -> Tensor:  # (K,)
        """What the low-rank part adds to the squared norm."""
        assert self.left is not None
        assert self.right is not None
        product = self.base.flatten(2) @ self.right
        cross = (product * self.left).sum((1, 2))
        own = ((self.left.mT @ self.left) * (self.right.mT @ self.right)).sum((1, 2))
        return 2 * cross + own


@dataclass(frozen=True)
class LayerMean:
    """All means of one layer: enough for the deterministic network."""

    weight: WeightMean
    bias: Tensor | None  # (K or 1, O), under the output scale
    in_scale: Tensor | None  # (K, I), or (K, 1) for a convolution; None where the family has none
    out_scale: Tensor | None  # (K, O)

    @property
    def transposed(self) -> "LayerMean":
        """Of a linear layer with ``W^T``: each scale is at the other end, and there is no bias."""
        return LayerMean(WeightMean(self.weight.dense().mT), None, self.out_scale, self.in_scale)


@dataclass(frozen=True)
class Weights:
    """The weights of one layer under their scales."""

    mean: WeightMean
    variance: Tensor  # (K or 1, O, I, *kernel)
    divergence: Tensor  # (K or 1,) from their prior


@dataclass(frozen=True)
class LayerDropout:
    """Log dropout rates of one layer: ``log alpha`` of its inputs, ``log beta`` of its outputs.

    ``weights`` are the rates of single weights, for the family that has those and no scales.
    """

    in_log_dropout: Tensor | None  # (K, I) or (K, 1)
    out_log_dropout: Tensor | None  # (K, O)
    weights: Tensor | None = None  # (K or 1, O, I, *kernel)


@dataclass(frozen=True)
class LayerPosterior:
    """Means, log-variances of the weights, and scales of one layer."""

    mean: LayerMean
    weight_logvar: Tensor  # (K or 1, O, I, *kernel)
    in_scale: Scales | None
    out_scale: Scales | None
    prior_std: float = 1.0  # of a weight before its scales

    @property
    def transposed(self) -> "LayerPosterior":
        """The same beliefs about a layer with ``W^T``."""
        return LayerPosterior(
            self.mean.transposed, self.weight_logvar.mT, self.out_scale, self.in_scale, self.prior_std
        )

    @property
    def dropout(self) -> LayerDropout:
        """The rates of its scales."""
        rates = (None if scales is None else scales.log_dropout for scales in (self.in_scale, self.out_scale))
        return LayerDropout(*rates)

    @property
    def weight_variance(self) -> Tensor:
        """``sigma_ij^2``."""
        return self.weights.variance

    @cached_property
    def weights(self) -> Weights:
        """What the products and the divergence need of the weights, worked out once for both."""
        mean, logvar = self.mean.weight, self.weight_logvar
        if mean.base.shape[0] > 1 or logvar.shape[0] > 1:
            return Weights(mean, logvar.exp(), kl_weights(mean.squared_norm(), logvar, self.prior_std))
        base, variance, divergence = SharedWeights.apply(mean.base, logvar, self.prior_std, mean.left, mean.right)
        return Weights(WeightMean(base, mean.left, mean.right), variance, divergence)


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
