"""What is believed about one layer in K contexts: the values a generator hands to a noisy layer."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from bhc.posterior.moments import kl_weights
from bhc.posterior.products import SharedWeights
from bhc.posterior.scales import Scales


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
