"""The two forward passes of a layer: noisy for learning (paper, algorithms 1 and 2), masked for use."""

from torch import Tensor

from bhc.posterior.beliefs import LayerMean, LayerPosterior, WeightMean
from bhc.posterior.masks import LayerMask
from bhc.posterior.noise import Noise
from bhc.posterior.operators import Operator, apply_mean
from bhc.posterior.products import Sampled
from bhc.posterior.units import only, plus, times, times_noisy

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
    mean = posterior.mean
    if mask is not None:
        h = operator.only(h, mask.keep_in)
    if posterior.in_scale is not None:
        h = operator.times_noisy(h, posterior.in_scale, noise=noise)
    product, variance = operator.mean_and_variance(h, mean.weight, posterior.weight_variance)
    output = Sampled.apply(product, variance, noise.normal(product.shape, like=product), VARIANCE_FLOOR)
    if mean.bias is not None:
        output = plus(output, mean.bias)
    if posterior.out_scale is not None:
        output = times_noisy(output, posterior.out_scale, noise=noise)
    return output if mask is None else only(output, mask.keep_out)


def masked_pass(
    operator: Operator,
    h: Tensor,  # (K * B, I, ...)
    mean: LayerMean,
    mask: LayerMask,
) -> Tensor:  # (K * B, O, ...)
    """The deterministic layer of Eq. 4: masks times means, the bias under the output's mask and scale."""
    inputs = mask.keep_in if mean.in_scale is None else mask.keep_in * mean.in_scale
    outputs = mask.keep_out if mean.out_scale is None else mask.keep_out * mean.out_scale
    weight = mean.weight if mask.keep_weight is None else WeightMean(mean.weight.dense() * mask.keep_weight)
    output = apply_mean(operator, operator.times(h, inputs), weight)
    if mean.bias is not None:
        output = plus(output, mean.bias)
    return times(output, outputs)
