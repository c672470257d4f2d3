"""Hand-written gradients on the hot path, each with a plain twin it is tested against.

On small networks a training step is bound by the number of operations and of walks over the weights, not by
the products; each of these replaces a handful of recorded operations by one.
"""

from math import log
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from bhc.posterior.kl import K1, K2, K3, LOG_DROPOUT_LIMIT, kl_scales
from bhc.posterior.moments import TINY, log_dropout


class GaussianDivergence(Function):
    """``1/2 sum ((var + mean^2) / p^2 - 1 - log(var / p^2))`` over one set of weights, a scalar.

    Autograd would walk over the weights nine times on the way back; two walks are enough:
    ``d/d mean = mean / p^2`` and ``d/d log var = (var / p^2 - 1) / 2``. The variance is given because the forward
    pass has it; no gradient goes through it.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, logvar: Tensor, variance: Tensor, prior_std: float) -> Tensor:
        ctx.save_for_backward(mean, variance)
        ctx.precision = prior_std**-2
        flat = mean.flatten()
        squares = ctx.precision * (torch.dot(flat, flat) + variance.sum())
        return 0.5 * (squares - logvar.sum() + mean.numel() * (2 * log(prior_std) - 1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        mean, variance = ctx.saved_tensors
        scaled = ctx.precision * gradient
        return mean * scaled, (variance - 1 / ctx.precision).mul_(0.5 * scaled), None, None


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


class MeanAndVariance(Function):
    """``h W^T`` and ``h^2 V^T`` for weights shared by the whole batch: the two products of a noisy layer.

    W may have more rows than V: rows without a variance are plain products.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        squared = h * h
        ctx.save_for_backward(h, squared, weight, variance)
        return h @ weight.mT, squared @ variance.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_mean: Tensor, of_variance: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        h, squared, weight, variance = ctx.saved_tensors
        of_h = None
        if ctx.needs_input_grad[0]:
            of_h = (of_mean @ weight).addcmul_(h, of_variance @ variance, value=2)
        return of_h, of_mean.mT @ h, of_variance.mT @ squared


class ConvolvedMoments(Function):
    """``h * W`` and ``h^2 * V`` for kernels shared by the whole batch; ``h^2`` is made again on the way back.

    Activations are most of what training a convolutional network keeps; recorded, this would keep them twice.
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, variance: Tensor, geometry: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(h, weight, variance)
        ctx.geometry = geometry
        return _convolve(h, weight, geometry), _convolve(h * h, variance, geometry)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_mean: Tensor, of_variance: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        h, weight, variance = ctx.saved_tensors
        needs_h, needs_weight, needs_variance, _ = ctx.needs_input_grad
        of_h, of_weight = _convolve_back(of_mean, h, weight, ctx.geometry, (needs_h, needs_weight))
        of_square, of_spread = _convolve_back(of_variance, h * h, variance, ctx.geometry, (needs_h, needs_variance))
        if of_h is not None and of_square is not None:
            of_h = of_h.addcmul_(h, of_square, value=2)
        return of_h, of_weight, of_spread, None


def _convolve(h: Tensor, weight: Tensor, geometry: dict[str, Any]) -> Tensor:
    flat = (0,) * (h.dim() - 2)
    return torch.convolution(h, weight, None, transposed=False, output_padding=flat, **geometry)


def _convolve_back(
    gradient: Tensor, h: Tensor, weight: Tensor, geometry: dict[str, Any], needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Of the input and of the kernel, where they are needed."""
    of_h, of_weight, _ = torch.ops.aten.convolution_backward(
        gradient,
        h,
        weight,
        None,
        transposed=False,
        output_padding=(0,) * (h.dim() - 2),
        output_mask=(*needs, False),
        **geometry,
    )
    return of_h, of_weight


class ScaledByNoise(Function):
    """``h (mu + sigma E)``, one E for each example: h (K, B, n, a), mean and log-variance (K, n), E (K, B, n).

    Or (K, 1) and (K, B, 1): one number for all n.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, mean: Tensor, logvar: Tensor, noise: Tensor) -> Tensor:
        std = (0.5 * logvar).exp_()
        scale = torch.addcmul(mean[:, None], std[:, None], noise).to(h.dtype)  # h may be of lower precision
        ctx.save_for_backward(h, scale, std, noise)
        return h * scale[..., None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        h, scale, std, noise = ctx.saved_tensors
        # A single scale sums over units too.
        over = (3,) if noise.shape[2] == h.shape[2] else (2, 3)
        of_scale = (gradient * h).sum(over, dtype=std.dtype).reshape(noise.shape)
        of_mean = of_scale.sum(1)
        of_logvar = of_scale.mul_(noise).sum(1).mul_(std).mul_(0.5)
        of_h = gradient * scale[..., None] if ctx.needs_input_grad[0] else None
        return of_h, of_mean, of_logvar, None


class Sampled(Function):
    """``mean + sqrt(variance + floor) E``: local reparameterisation."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, noise: Tensor, floor: float) -> Tensor:
        std = (variance + floor).sqrt_()
        ctx.save_for_backward(std, noise)
        return torch.addcmul(mean, std, noise)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        std, noise = ctx.saved_tensors
        return gradient, (gradient * noise).div_(std).mul_(0.5), None, None
