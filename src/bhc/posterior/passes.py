"""The two forward passes of a layer: noisy for learning (paper, algorithms 1 and 2), masked for use."""

from torch import Tensor

from bhc.posterior.beliefs import LayerMean, LayerPosterior, WeightMean
from bhc.posterior.masks import LayerMask
from bhc.posterior.noise import Noise
from bhc.posterior.operators import Operator, apply_mean
from bhc.posterior.part import LayerPart
from bhc.posterior.products import Sampled
from bhc.posterior.units import drawn, only, times, times_plus

# Inside the root: its gradient at a variance of zero would be infinite.
VARIANCE_FLOOR = 1e-8


def noisy_pass(
    operator: Operator,
    h: Tensor,  # (K * B, I, ...)
    posterior: LayerPosterior,
    mask: LayerMask | None = None,
    *,
    noise: Noise,
) -> Tensor:  # (K * B, O, ...)
    """A sample of the layer's output, scales drawn once an example, weights by local reparameterisation.

    Algorithms 1 and 2 return ``M S + sqrt(V S^2) E``. This computes ``(M + sqrt(V) E) S``, which has the same
    distribution, one multiplication fewer, and a finite gradient where a sampled S crosses zero.
    The bias sits under the output scale: a unit that is switched off gives zero. So does one that a ``mask`` has not.
    """
    if mask is not None:
        h = operator.only(h, mask.keep_in)
    weights, in_scale, waiting = posterior.weights, posterior.in_scale, None
    if in_scale is not None:
        if _may_wait(in_scale.mean, h):
            waiting = drawn(in_scale, h, noise=noise)
        else:
            h = operator.times_noisy(h, in_scale, noise=noise)
    product, variance = operator.mean_and_variance(h, weights.mean, weights.variance)
    normal = noise.normal(product.shape, like=product)
    after = None if posterior.out_scale is None else drawn(posterior.out_scale, product, noise=noise)
    output = Sampled.apply(product, variance, normal, VARIANCE_FLOOR, waiting, posterior.mean.bias, after)
    return output if mask is None else only(output, mask.keep_out)


def masked_pass(
    operator: Operator,
    h: Tensor,  # (K * B, I, ...)
    mean: LayerMean,
    mask: LayerMask,
) -> Tensor:  # (K * B, O, ...)
    """The deterministic layer of Eq. 4: masks times means, the bias under the output's mask and scale.

    ``(W h z + b) s`` as ``(W h) z s + b s`` where z is one number for all inputs.

    On a CPU only the part is computed that any of the contexts keeps. Elsewhere a shape that follows from a mask would
    have to be waited for in every step, and could not be captured.
    """
    if operator.has_parts and mask.keep_in.device.type == "cpu":
        part = LayerPart.of(mask)
        if part is not None:
            narrow = _whole_pass(operator, part.read(h), part.mean(mean), part.mask(mask))
            return part.written(narrow, mask.keep_out.shape[1])
    return _whole_pass(operator, h, mean, mask)


def _whole_pass(operator: Operator, h: Tensor, mean: LayerMean, mask: LayerMask) -> Tensor:
    outputs = mask.keep_out if mean.out_scale is None else mask.keep_out * mean.out_scale
    shift = None if mean.bias is None else mean.bias * outputs
    if mean.in_scale is None:
        h = operator.times(h, mask.keep_in)
    elif _may_wait(mean.in_scale, h):
        h, outputs = operator.times(h, mask.keep_in), outputs * mean.in_scale
    else:
        h = operator.times(h, mask.keep_in * mean.in_scale)
    weight = mean.weight if mask.keep_weight is None else WeightMean(mean.weight.dense() * mask.keep_weight)
    product = apply_mean(operator, h, weight)
    return times(product, outputs) if shift is None else times_plus(product, outputs, shift)


def _may_wait(scale: Tensor, h: Tensor) -> bool:
    """Whether an input scale can come after the product: one covers all inputs, and they need no gradient."""
    return scale.shape[1] == 1 and not h.requires_grad
