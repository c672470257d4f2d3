"""The two forward passes of a layer: noisy for learning (paper, algorithms 1 and 2), masked for use."""

from torch import Tensor

from bhc.posterior.beliefs import LayerMean, LayerPosterior, WeightMean
from bhc.posterior.masks import LayerMask
from bhc.posterior.noise import Noise
from bhc.posterior.operators import Operator, apply_mean
from bhc.posterior.products import Sampled
from bhc.posterior.scales import Scales

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
        h = _only(h, mask.keep_in)
    weights, in_scale, waiting = posterior.weights, posterior.in_scale, None
    if in_scale is not None:
        if _may_wait(in_scale, h):
            waiting = _drawn(in_scale, h, noise=noise)
        else:
            h = _times_noisy(h, in_scale, noise=noise)
    product, variance = operator.mean_and_variance(h, weights.mean, weights.variance)
    normal = noise.normal(product.shape, like=product)
    after = None if posterior.out_scale is None else _drawn(posterior.out_scale, product, noise=noise)
    output = Sampled.apply(product, variance, normal, VARIANCE_FLOOR, waiting, posterior.mean.bias, after)
    return output if mask is None else _only(output, mask.keep_out)


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
    output = apply_mean(operator, _times(h, inputs), weight)
    if mean.bias is not None:
        output = _plus(output, mean.bias)
    return _times(output, outputs)


def _may_wait(scales: Scales, h: Tensor) -> bool:
    """Whether an input scale can come after the product: one covers all inputs, and they need no gradient."""
    return scales.mean.shape[1] == 1 and not h.requires_grad


def _drawn(scales: Scales, h: Tensor, *, noise: Noise) -> Tensor:  # (K, B, n)
    """Scales (K, n) drawn anew for each example of ``h`` (K * B, ...)."""
    mean = scales.mean
    return scales.draw(noise.normal((len(mean), len(h) // len(mean), mean.shape[1]), like=mean))


def _times_noisy(h: Tensor, scales: Scales, *, noise: Noise) -> Tensor:
    """``h z``, scales (K, n) drawn anew for each example and spread over what they cover."""
    mean = scales.mean
    apart = _by_unit(h, mean)
    shape = (*apart.shape[:2], mean.shape[1])
    return scales.times(apart, noise.normal(shape, like=mean)).reshape(h.shape)


def _only(h: Tensor, keep: Tensor) -> Tensor:
    """Each activation (K * B, n, ...) of a unit that its context keeps, (K, n); zero, whatever it was, for others."""
    return _by_unit(h, keep).masked_fill(~keep[:, None, :, None], 0.0).reshape(h.shape)


def _times(h: Tensor, values: Tensor) -> Tensor:
    """Each activation (K * B, n, ...) times its unit's number in its context, (K or 1, n)."""
    return (_by_unit(h, values) * values.to(h.dtype)[:, None, :, None]).reshape(h.shape)


def _plus(h: Tensor, values: Tensor) -> Tensor:
    """Each activation (K * B, n, ...) plus its unit's number in its context, (K or 1, n)."""
    return (_by_unit(h, values) + values.to(h.dtype)[:, None, :, None]).reshape(h.shape)


def _by_unit(h: Tensor, values: Tensor) -> Tensor:
    """A view (K, B, n, places): what one of the ``values`` (K, n) belongs to lies along B and the places.

    One number for a whole map stays so, (K, B, channels, places): with channels last in memory no other is a view.
    """
    contexts, count = values.shape
    units = h.shape[1] if count == 1 else count
    return h.reshape(contexts, h.shape[0] // contexts, units, -1)
