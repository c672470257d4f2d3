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

WINDOWS = [
    {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    for kernel, stride, padding, dilation in product((1, 3, (3, 2)), (1, 2, (1, 3)), (0, 1, (2, 0)), (1, 2, (1, 3)))
]
SHAPES = [(2, 5, 7), (2, 1, 1), (2, 4, 9)]


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


@pytest.mark.parametrize("shape", SHAPES)
def test_windows(shape: tuple[int, ...]) -> None:
    for arguments in WINDOWS:
        of_averages = {name: value for name, value in arguments.items() if name != "dilation"}
        for module in (nn.Conv2d(2, 3, **arguments), nn.MaxPool2d(**arguments), nn.AvgPool2d(**of_averages)):
            assert says(module, shape) == runs(module, shape), module


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("shape", SHAPES)
def test_convolutions_with_padding_by_name(shape: tuple[int, ...]) -> None:
    for kernel, dilation in product((1, 2, 3, 4, (2, 5)), (1, 2, (1, 3))):
        for padding in ("same", "valid"):
            module = nn.Conv2d(2, 3, kernel, padding=padding, dilation=dilation)
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


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, (2, 5)])
def test_zeros_are_added_where_torch_adds_them(kernel: int | tuple[int, int]) -> None:
    named = nn.Conv2d(1, 1, kernel, padding="same", dilation=2)
    top, left, bottom, right = conv_padding(named)
    plain = nn.Conv2d(1, 1, kernel, dilation=2)
    plain.load_state_dict(named.state_dict())
    x = torch.randn(1, 1, 9, 8)
    padded = nn.functional.pad(x, (left, right, top, bottom))
    assert torch.allclose(named(x), plain(padded), atol=1e-6)


WINDOWS_ELSEWHERE = [
    (nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d, (2, 9)),
    (nn.Conv3d, nn.MaxPool3d, nn.AvgPool3d, (2, 5, 6, 7)),
]


@pytest.mark.parametrize(("convolution", "largest", "average", "shape"), WINDOWS_ELSEWHERE)
def test_windows_of_one_and_three_directions(convolution: Any, largest: Any, average: Any, shape: Any) -> None:
    for kernel, stride, padding, dilation in product((1, 2, 3), (1, 2), (0, 1), (1, 2)):
        modules = (
            convolution(2, 4, kernel, stride=stride, padding=padding, dilation=dilation, groups=2),
            largest(kernel, stride=stride, padding=padding, dilation=dilation),
            average(kernel, stride=stride, padding=padding),
        )
        for module in modules:
            assert says(module, shape) == runs(module, shape), module


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
