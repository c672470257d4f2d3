"""The part of a layer that a batch of contexts has any use for."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bhc.posterior.beliefs import LayerMean, WeightMean
from bhc.posterior.masks import LayerMask

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
