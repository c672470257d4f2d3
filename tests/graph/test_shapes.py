from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from bhc.graph import output_shape as of_two
from bhc.layers import (
    Add,
    Affine,
    Concat,
    GlobalMean,
    Multiply,
    PadChannels,
    Select,
    Subsample,
    conv_padding,
)


def output_shape(module: nn.Module, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Of one example."""
    return of_two(module, *((2, *shape) for shape in shapes))[1:]


def runs(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The true shape, or None where torch refuses."""
    try:
        return tuple(module(torch.zeros(1, *shape)).shape[1:])
    except RuntimeError:
        return None


def says(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return output_shape(module, shape)
    except ValueError:
        return None


MODULES = [
    (nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d),
    (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d),
    (nn.Conv3d, nn.MaxPool3d, nn.AvgPool3d),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("shape", [(2, 9), (2, 5, 7), (2, 1, 1), (2, 4, 9), (2, 5, 6, 7)])
def test_windows(shape: tuple[int, ...]) -> None:
    convolution, largest, average = MODULES[len(shape) - 2]
    kernels, strides, paddings, dilations = [(1, 2, 3, 4), (1, 2), (0, 1), (1, 2)]
    if len(shape) == 3:
        kernels, strides = (*kernels, (3, 2), (2, 5)), (*strides, (1, 3))
        paddings, dilations = (*paddings, (2, 0)), (*dilations, (1, 3))
    for kernel, dilation in product(kernels, dilations):
        modules = [convolution(2, 3, kernel, padding=padding, dilation=dilation) for padding in ("same", "valid")]
        for stride, padding in product(strides, paddings):
            options = {"stride": stride, "padding": padding}
            modules += [
                convolution(2, 4, kernel, **options, dilation=dilation, groups=2),
                largest(kernel, **options, dilation=dilation),
                average(kernel, **options),
            ]
        for module in modules:
            assert says(module, shape) == runs(module, shape), module


ABSURD = [
    (name, value)
    for name in ("kernel_size", "stride", "padding", "dilation")
    for value in (-1, 5000, 1 << 40, (0, 1), (1, 2, 3), (1,), (1.0, 1.0), (True, 1), "big")
    if (name, value) != ("padding", (0, 1))  # the only size that may be zero
]


@pytest.mark.parametrize(("name", "value"), ABSURD)
def test_absurd_arguments_are_refused(name: str, value: Any) -> None:
    for module in (nn.Conv2d(2, 3, 1), nn.Conv2d(2, 3, 1, padding="same"), nn.MaxPool2d(2)):
        setattr(module, name, value)
        with pytest.raises(ValueError):
            output_shape(module, (2, 9000, 9000))


def test_padding_by_name_needs_a_stride_of_one() -> None:
    module = nn.Conv2d(1, 1, 3, padding="same")
    module.stride = (2, 2)
    with pytest.raises(ValueError, match="stride"):
        conv_padding(module)


@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        (nn.Linear(5, 3), [(4,)]),
        (nn.Linear(5, 3), [(5, 2)]),
        (nn.Conv2d(2, 3, 1), [(3, 4, 4)]),
        (nn.Conv2d(2, 3, 1), [(32,)]),
        (nn.Conv1d(2, 3, 1), [(2, 4, 4)]),
        (nn.MaxPool2d(2), [(4, 4)]),
        (nn.AvgPool2d(2), [(16,)]),
        *((Select(torch.tensor(index, dtype=torch.long)), [(5,)]) for index in ([0, 5], [-1, 2], [])),
        (Select(torch.tensor([2])), [(2, 2)]),
        (Add(), [(3, 4, 4)]),
        (Add(), [(3, 4, 4), (3, 1, 1)]),
        (Add(), [(3,), (3,), (3,)]),
        (Multiply(), [(3, 4, 4), (1, 4, 4)]),
        (Multiply(), [(3, 4, 4), (3, 2, 4)]),
        (Multiply(), [(3, 4, 4), (3,)]),
        (Concat(), [(3, 4, 4), (3, 4, 5)]),
        (Affine(3), [(4, 2, 2)]),
        (GlobalMean(True), [(3,)]),
        (Subsample(2), [(3,)]),
        (Subsample(0), [(3, 4)]),
        (PadChannels(-1, 0), [(3, 4)]),
        (PadChannels(0, 1 << 20), [(3, 4)]),
        (nn.ReLU(), [(3,), (3,)]),
    ],
    ids=str,
)
def test_values_that_do_not_fit_a_step_or_each_other_are_refused(
    module: nn.Module, shapes: list[tuple[int, ...]]
) -> None:
    with pytest.raises(ValueError):
        output_shape(module, *shapes)
