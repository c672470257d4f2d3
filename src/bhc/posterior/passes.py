"""The two forward passes of a layer: noisy for learning (paper, algorithms 1 and 2), masked for use."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bhc.posterior.beliefs import LayerMean, LayerPosterior, WeightMean
from bhc.posterior.masks import LayerMask
from bhc.posterior.noise import Noise
from bhc.posterior.operators import Operator, apply_mean, drawn, only, times, times_plus
from bhc.posterior.products import Sampled

WORTH = 0.5  # of a layer's weights: a larger part is hardly cheaper than all of it


@dataclass(frozen=True)
class LayerPart:
    """Outputs and inputs that at least one of K contexts keeps, and what there is of a layer at these.

    A few contexts that keep a hundredth of the weights each use not many more together, and what none of them uses
    adds nothing to any output or gradient.
    """

    outputs: Tensor  # ascending
    inputs: Tensor

    @classmethod
    def of(cls, mask: LayerMask) -> "LayerPart | None":
        """What is used under a mask; None where that is about everything, or nothing."""
        part = cls(*(keep.any(0).nonzero().flatten() for keep in (mask.keep_out, mask.keep_in)))
        whole = mask.keep_out.shape[1] * mask.keep_in.shape[1]
        return part if 0 < len(part.outputs) * len(part.inputs) < WORTH * whole else None

    def read(self, h: Tensor) -> Tensor:  # (K * B, I', ...)
        """The inputs that are used."""
        return h.index_select(1, self.inputs)

    def written(self, output: Tensor, width: int) -> Tensor:  # (K * B, O, ...)
        """Outputs of the part among all, zero where nobody keeps one."""
        whole = output.new_zeros(len(output), width, *output.shape[2:])
        return whole.index_copy(1, self.outputs, output)

    def mask(self, mask: LayerMask) -> LayerMask:
        weights = None if mask.keep_weight is None else self._weights(mask.keep_weight)
        keep_in, keep_out = mask.keep_in.index_select(1, self.inputs), mask.keep_out.index_select(1, self.outputs)
        return LayerMask(keep_in, keep_out, mask.rescued, weights)

    def mean(self, mean: LayerMean) -> LayerMean:
        base, left, right = mean.weight.base, mean.weight.left, mean.weight.right
        if left is not None and right is not None:
            by_input = right.unflatten(0, (base.shape[2], -1))  # (I, kernel area, R)
            left, right = left.index_select(1, self.outputs), by_input.index_select(0, self.inputs).flatten(0, 1)
        return LayerMean(
            WeightMean(self._weights(base), left, right),
            _at(mean.bias, self.outputs),
            _at(mean.in_scale, self.inputs),
            _at(mean.out_scale, self.outputs),
        )

    def _weights(self, weights: Tensor) -> Tensor:  # (K or 1, O, I, *kernel) -> (K or 1, O', I', *kernel)
        return weights.index_select(1, self.outputs).index_select(2, self.inputs)


def _at(values: Tensor | None, units: Tensor) -> Tensor | None:
    """The numbers of some units; a convolution has one for all of its input."""
    return values if values is None or values.shape[1] == 1 else torch.index_select(values, 1, units)


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
