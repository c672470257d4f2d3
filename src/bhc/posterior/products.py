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


class SharedWeights(Function):
    """Means and variances of weights that all contexts share, as the products see them, and ``kl_weights`` of them.

    ``1/2 sum ((var + mean^2) / p^2 - 1 - log(var / p^2))``, (1,); with a low-rank part of the mean, L (K, O, R) and
    R (columns, R), the squared mean is that of ``B + L R^T``, (K,). Together, because gradients of the products and
    of the divergence meet here: with c that of the divergence,
    ``d/d mean = d mean + c mean / p^2`` and ``d/d log var = var (d var + c / 2 p^2) - c / 2`` in a walk or two over
    the weights where autograd would take nine.
    """

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        logvar: Tensor,
        prior_std: float,
        left: Tensor | None = None,
        right: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.precision = prior_std**-2
        variance, flat = logvar.exp(), mean.flatten()
        squares = (torch.dot(flat, flat) + variance.sum()).mul_(ctx.precision).sub_(logvar.sum())
        divergence = squares.add_(mean.numel() * (2 * log(prior_std) - 1)).mul_(0.5)[None]
        product = gram = None
        if left is not None and right is not None:
            # |B + L R^T|^2 - |B|^2 = <2 B R + L R^T R, L>, in full precision wherever this is first asked for
            with torch.autocast(mean.device.type, enabled=False):
                product, gram = mean.view(left.shape[1], -1) @ right, right.mT @ right
                added = (left * (2 * product + left @ gram)).sum((1, 2))
            divergence = divergence + added.mul_(0.5 * ctx.precision)
        ctx.save_for_backward(mean, variance, left, right, product, gram)
        return mean.view_as(mean), variance, divergence

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_mean: Tensor | None, of_variance: Tensor | None, gradient: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        mean, variance, left, right, product, gram = ctx.saved_tensors
        if gradient is None:
            return of_mean, None if of_variance is None else of_variance * variance, None, None, None
        scaled = ctx.precision * gradient
        total = scaled.sum()
        of_mean = mean * total if of_mean is None else torch.addcmul(of_mean, mean, total)
        slope = 0.5 * total if of_variance is None else of_variance + 0.5 * total
        of_logvar = torch.addcmul(-0.5 * gradient.sum(), slope, variance)
        if left is None:
            return of_mean, of_logvar, None, None, None
        weighted = left * scaled[:, None, None]
        of_left = (product + left @ gram).mul_(scaled[:, None, None])
        whole = weighted.sum(0)  # (O, R)
        flat = of_mean.reshape(len(whole), -1).addmm_(whole, right.mT)  # a copy where channels come last
        own = weighted.flatten(0, 1).mT @ left.flatten(0, 1)  # (R, R)
        of_right = (mean.view(len(whole), -1).mT @ whole).addmm_(right, own)
        return flat.view_as(mean), of_logvar, None, of_left, of_right


class MeanAndVariance(Function):
    """``h W^T`` and ``h^2 V^T`` for weights shared by the whole batch: the two products of a noisy layer.

    With a low-rank part, L (K, O, R) and R (I, R), the first is ``h (W + L R^T)^T``, each context's examples by its
    own L; its thin product rides along as a few more rows of W.
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, variance: Tensor, left: Tensor | None = None, right: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        squared = h * h
        if left is None or right is None:
            ctx.save_for_backward(h, squared, weight, variance)
            return h @ weight.mT, squared @ variance.mT
        rows = torch.cat([weight, right.mT])
        products = (h @ rows.mT).unflatten(0, (len(left), -1))
        product, thin = products.split([len(weight), len(rows) - len(weight)], dim=2)
        ctx.save_for_backward(h, squared, rows, variance, left, thin)
        return torch.baddbmm(product, thin, left.mT).flatten(0, 1), squared @ variance.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_mean: Tensor, of_variance: Tensor) -> tuple[Tensor | None, ...]:
        h, squared, rows, variance, *low_rank = ctx.saved_tensors
        of_left = of_right = None
        if low_rank:
            left, thin = low_rank
            apart = of_mean.unflatten(0, (len(left), -1))
            of_left = apart.mT @ thin
            of_mean = torch.cat([apart, apart @ left], dim=2).flatten(0, 1)
        of_h = None
        if ctx.needs_input_grad[0]:
            of_h = (of_mean @ rows).addcmul_(h, of_variance @ variance, value=2)
        of_weight = of_mean.mT @ h
        if low_rank:
            of_weight, of_right = of_weight[: len(variance)], of_weight[len(variance) :].mT
        return of_h, of_weight, of_variance.mT @ squared, of_left, of_right


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
        of_scale = gradient * h
        if of_scale.numel() > noise.numel():  # a single scale sums over units too
            of_scale = of_scale.sum((3,) if noise.shape[2] == h.shape[2] else (2, 3), dtype=std.dtype)
        of_scale = of_scale.reshape(noise.shape).to(std.dtype)
        of_mean = of_scale.sum(1)
        of_logvar = (of_scale * noise).sum(1).mul_(0.5 * std)
        of_h = gradient * scale[..., None] if ctx.needs_input_grad[0] else None
        return of_h, of_mean, of_logvar, None


class SampledScales(Function):
    """``mu + sigma E``, one E for each example: mean and log-variance (K, n), E and the result (K, B, n)."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, logvar: Tensor, noise: Tensor) -> Tensor:
        std = (0.5 * logvar).exp_()
        ctx.save_for_backward(std, noise)
        return torch.addcmul(mean[:, None], std[:, None], noise)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        std, noise = ctx.saved_tensors
        return gradient.sum(1), (gradient * noise).sum(1).mul_(0.5 * std), None


# Inside the root: its gradient at a variance of zero would be infinite.
VARIANCE_FLOOR = 1e-8


class Sampled(Function):
    """``(z mean + sqrt(z^2 variance + floor) E + bias) s``: a sample of a layer's output from its moments.

    Moments and E are (K * B, O, ...); the drawn scales are z (K, B, 1) and s (K, B, O), the bias (K or 1, O), each
    of which may be missing. A scale that covers all inputs of an example may as well come after the product: where
    the inputs have no gradient of their own, none has to be computed for the scale's sake.
    """

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        variance: Tensor,
        noise: Tensor,
        floor: float,
        z: Tensor | None = None,
        bias: Tensor | None = None,
        s: Tensor | None = None,
    ) -> Tensor:
        std = _std(variance, floor, z)
        sample = _sample(mean, std, noise, z, bias)
        ctx.floor = floor
        # With z the root and the sample are made again on the way back, so that no more is kept than without.
        ctx.save_for_backward(noise, z, bias, s, *((std, sample) if z is None else (mean, variance)))
        return sample if s is None else sample * _spread(s, sample)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        noise, z, bias, s, *kept = ctx.saved_tensors
        std = kept[0] if z is None else _std(kept[1], ctx.floor, z)
        of_s = of_bias = of_z = None
        if s is not None:
            sample = kept[1] if z is None else _sample(kept[0], std, noise, z, bias)
            of_s = _over_places(gradient * sample, s)
            gradient = gradient * _spread(s, gradient)
        if bias is not None:
            apart = gradient.unflatten(0, (len(bias), -1))
            of_bias = apart.sum((1, *range(3, apart.dim())), dtype=bias.dtype)
        # What needs no gradient comes first: a GPU has it ready by then.
        slope = noise / std
        if z is None:
            return gradient, slope.mul_(0.5).mul_(gradient), None, None, None, of_bias, of_s
        mean, variance = kept
        factor = _spread(z, gradient)
        of_variance = slope.mul_(0.5 * factor).mul_(gradient)
        of_z = _over_places((gradient * mean).addcmul_(of_variance, variance, value=2), z)
        return gradient * factor, of_variance.mul_(factor), None, None, of_z, of_bias, of_s


def _std(variance: Tensor, floor: float, z: Tensor | None) -> Tensor:
    """``sqrt(z^2 variance + floor)``."""
    if z is None:
        return (variance + floor).sqrt_()
    return torch.addcmul(variance.new_full((), floor), variance, _spread(z, variance).square()).sqrt_()


def _sample(mean: Tensor, std: Tensor, noise: Tensor, z: Tensor | None, bias: Tensor | None) -> Tensor:
    """``z mean + std E + bias``."""
    if bias is None:
        return torch.addcmul(mean, std, noise) if z is None else (mean * _spread(z, mean)).addcmul_(std, noise)
    apart = mean.unflatten(0, (len(bias), -1))
    per_unit = bias.to(mean.dtype).reshape(len(bias), 1, -1, *[1] * (mean.dim() - 2))
    if z is None:
        shifted = apart + per_unit
    else:
        shifted = torch.addcmul(per_unit, apart, _spread(z, mean).unflatten(0, (len(bias), -1)))
    return shifted.flatten(0, 1).addcmul_(std, noise)


def _spread(scales: Tensor, h: Tensor) -> Tensor:
    """SampledScales scales (K, B, n), or (K, B, 1), to go with (K * B, n, ...)."""
    return scales.to(h.dtype).reshape(len(h), -1, *[1] * (h.dim() - 2))


def _over_places(values: Tensor, scales: Tensor) -> Tensor:
    """(K * B, n, ...) summed over what each of the scales (K, B, n), or (K, B, 1), covers."""
    covered = tuple(range(1 if scales.shape[2] == 1 else 2, values.dim()))
    return (values.sum(covered, dtype=scales.dtype) if covered else values.to(scales.dtype)).reshape(scales.shape)
