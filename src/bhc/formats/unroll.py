"""A convolution and the 2 x 2 maximum after it as one convolution with a stride of 2.

Runtimes copy the input once for every place a filter is applied at; with few filters that copy takes most of the
time. Here each filter appears four times, shifted over the pooling window in a kernel larger by one: a quarter of
the places, some 1.4 times the multiplications, less than half the time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bhc.graph import pair

POOL = 2
MOST_FILTERS = 16  # with more, the multiplications weigh more than the copies

# They never swap the order of two values, so the largest value stays the largest.
RISING = (nn.ReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.Tanh)


def can_unroll(steps: Sequence[nn.Module]) -> bool:
    """Whether the next three steps are a convolution, an activation and a pooling of that kind."""
    match steps:
        case [nn.Conv2d() as convolution, activation, nn.MaxPool2d() as pool, *_]:
            return (
                convolution.out_channels <= MOST_FILTERS
                and pair(convolution.stride) == pair(convolution.dilation) == (1, 1)
                and type(activation) in RISING
                and pair(pool.kernel_size) == pair(pool.stride) == (POOL, POOL)
                and pair(pool.padding) == (0, 0)
                and pair(pool.dilation) == (1, 1)
            )
    return False


def unroll(convolution: nn.Conv2d) -> tuple[Tensor, Tensor | None]:
    """Kernels (4 O, I, height + 1, width + 1), all filters at one place of the window before the next, and biases."""
    weight = convolution.weight
    filters, channels, height, width = weight.shape
    grown = torch.zeros(POOL, POOL, filters, channels, height + POOL - 1, width + POOL - 1)
    for down in range(POOL):
        for across in range(POOL):
            grown[down, across, :, :, down : down + height, across : across + width] = weight
    bias = None if convolution.bias is None else convolution.bias.repeat(POOL * POOL)
    return grown.flatten(0, 2), bias
