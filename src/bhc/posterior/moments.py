"""Moments of the posterior, and its divergences from the normal-Jeffreys and horseshoe priors."""

from math import log

import torch
from torch import Tensor
from torch.nn import functional as F

# Keeps the logarithm of a squared scale finite when the scale crosses zero.
TINY = 1e-8


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
