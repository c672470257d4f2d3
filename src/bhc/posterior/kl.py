"""Divergences of the posterior from the normal-Jeffreys and horseshoe priors."""

from math import log

import torch
from torch import Tensor
from torch.nn import functional as F

# Constants of the sigmoid-softplus fit to the scale divergence (paper, section 4.3).
K1, K2, K3 = 0.63576, 1.87320, 1.48695

# Beyond this a rate is settled: clamping ends its gradient before the exponentials overflow.
LOG_DROPOUT_LIMIT = 10.0

# A log-normal mean beyond this exponent is no longer told apart: its gradient ends before it overflows.
LARGEST_EXPONENT = 20.0

LOG_2 = log(2)


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


def kl_scales(log_dropout: Tensor) -> Tensor:  # (K, n) -> (K,)
    """KL(q(z) || p(z)) for the improper prior 1 / |z|, up to its constant.

    ``-(k1 sigmoid(k2 + k3 log alpha) - 1/2 softplus(-log alpha) - k1)`` summed over the scales.
    """
    x = log_dropout.clamp(-LOG_DROPOUT_LIMIT, LOG_DROPOUT_LIMIT)
    return (K1 + 0.5 * F.softplus(-x) - K1 * torch.sigmoid(K2 + K3 * x)).sum(-1)


def kl_gamma(log_mean: Tensor, log_logvar: Tensor) -> Tensor:  # (K, n) -> (K,)
    """KL(LogNormal(m, v) || Gamma(1/2, 1)) summed over n variables.

    ``exp(m + v / 2) - (m + log v + 1 + log 2) / 2``
    """
    mean = (log_mean + 0.5 * log_logvar.exp()).clamp(max=LARGEST_EXPONENT).exp()
    return (mean - 0.5 * (log_mean + log_logvar + 1 + LOG_2)).sum(-1)


def kl_inverse_gamma(log_mean: Tensor, log_logvar: Tensor) -> Tensor:  # (K, n) -> (K,)
    """KL(LogNormal(m, v) || InverseGamma(1/2, 1)): that of the inverse variable from a gamma variable."""
    return kl_gamma(-log_mean, log_logvar)
