"""The moments of a convolution's output by a hand-written gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


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
