"""What shape a step of a chain turns a shape into: arithmetic alone, so that nothing need be run or allocated."""

from collections.abc import Iterator
from math import prod
from typing import Any

from torch import Tensor, nn

from bhc.graph.select import Select

Shape = tuple[int, ...]  # of one example: (C, H, W) or (features,)
Pair = tuple[int, int]

# Kernels, strides and paddings of real layers are far smaller; a damaged file's need not be.
LARGEST_ARGUMENT = 1 << 12


def chain_shapes(chain: nn.Sequential, input_shape: Shape) -> Iterator[tuple[str, nn.Module, Shape, Shape]]:
    """Name, module, shape in and shape out of every step; ValueError where two steps do not fit together."""
    shape = input_shape
    for name, module in chain.named_children():
        arriving, shape = shape, output_shape(module, shape)
        yield name, module, arriving, shape


def output_shape(module: nn.Module, shape: Shape) -> Shape:
    """The shape that ``module`` makes of one example of ``shape``."""
    match module:
        case nn.Linear():
            _expect(shape == (module.in_features,), f"{_kind(module)} does not take {shape}")
            return (module.out_features,)
        case nn.Conv2d():
            _expect(len(shape) == 3 and shape[0] == module.in_channels, f"{_kind(module)} does not take {shape}")
            return (module.out_channels, *_window(module, shape, padding=conv_padding(module)))
        case nn.MaxPool2d() | nn.AvgPool2d():
            _expect(len(shape) == 3, f"{_kind(module)} does not take {shape}")
            vertical, horizontal = pair(module.padding)
            height, width = pair(module.kernel_size)  # not of its span: dilation does not count
            _expect(2 * vertical <= height and 2 * horizontal <= width, f"{_kind(module)} pads over half its window")
            return (shape[0], *_window(module, shape, padding=(vertical, horizontal, vertical, horizontal)))
        case nn.Flatten():
            return (prod(shape),)
        case Select():
            _expect(len(shape) == 1 and _within(module.index, shape[0]), f"{_kind(module)} does not take {shape}")
            return (len(module.index),)
    return shape


def conv_padding(module: nn.Conv2d) -> tuple[int, int, int, int]:
    """Zeros added at the top, left, bottom and right, whatever way the layer spells them."""
    if isinstance(module.padding, str):
        _expect(module.padding in ("valid", "same"), f"padding {module.padding!r}")
        if module.padding == "valid":
            return (0, 0, 0, 0)
        _expect(pair(module.stride) == (1, 1), "padding 'same' needs a stride of 1")
        height, width = _spans(module)
        top, left = (height - 1) // 2, (width - 1) // 2
        return (top, left, height - 1 - top, width - 1 - left)
    vertical, horizontal = pair(module.padding)
    return (vertical, horizontal, vertical, horizontal)


def pair(value: Any) -> Pair:
    """An argument that stands for both directions, or gives one for each."""
    numbers = (value, value) if isinstance(value, int) else tuple(value)
    _expect(
        len(numbers) == 2 and all(type(n) is int and 0 <= n <= LARGEST_ARGUMENT for n in numbers),
        f"{value!r} is not a size",
    )
    return numbers


def _spans(module: Any) -> Pair:
    """Rows and columns from the first to the last that a window touches."""
    dilation, kernel = pair(getattr(module, "dilation", 1)), pair(module.kernel_size)
    _expect(min(*kernel, *dilation) >= 1, f"{_kind(module)} has a size of zero")
    return dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1


def _window(module: Any, shape: Shape, *, padding: tuple[int, int, int, int]) -> Pair:
    """How often a sliding window fits, down and across."""
    spans, stride = _spans(module), pair(module.stride)
    sizes = []
    for axis in (0, 1):
        _expect(stride[axis] >= 1, f"{_kind(module)} has a size of zero")
        room = shape[1 + axis] + padding[axis] + padding[axis + 2] - spans[axis]
        _expect(room >= 0, f"{_kind(module)} does not fit into {shape}")
        sizes.append(room // stride[axis] + 1)
    return sizes[0], sizes[1]


def _within(index: Tensor, count: int) -> bool:
    return bool(len(index)) and int(index.min()) >= 0 and int(index.max()) < count


def _expect(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _kind(module: nn.Module) -> str:
    return type(module).__name__
