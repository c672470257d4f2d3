"""What shape a step turns a shape into: arithmetic alone, so that nothing need be run or allocated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor, nn

from bhc.graph.graph import INPUT, Graph, Step
from bhc.graph.kinds import AVERAGE_POOLS, CONVOLUTIONS, MAX_POOLS
from bhc.graph.steps import Add, Affine, Concat, GlobalMean, Multiply, PadChannels, Place, Select, Subsample
from bhc.graph.tokens import ChannelNorm, Embed, FlattenPlaces, SelfAttention, Shift
from bhc.models.log_mel import LogMel
from bhc.models.normalise import Normalise

Shape = tuple[int, ...]  # of one example: (C, H, W) or (features,)
Pair = tuple[int, int]

# Kernels, strides and paddings of real layers are far smaller; a damaged file's need not be.
LARGEST_ARGUMENT = 1 << 12

_DIRECTIONS = {kind: place for kinds in (CONVOLUTIONS, MAX_POOLS, AVERAGE_POOLS) for place, kind in enumerate(kinds, 1)}


@dataclass(frozen=True)
class Passage:
    """A step with the shapes of what it reads and of what it gives."""

    step: Step
    arriving: tuple[Shape, ...]
    leaving: Shape

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def module(self) -> nn.Module:
        return self.step.module


def passages(graph: Graph, input_shape: Shape) -> Iterator[Passage]:
    """Every step with its shapes; ValueError where two do not fit together."""
    shapes = {INPUT: input_shape}
    for step in graph.steps:
        arriving = tuple(shapes[name] for name in step.reads)
        shapes[step.name] = output_shape(step.module, *arriving)
        yield Passage(step, arriving, shapes[step.name])


def output_shape(module: nn.Module, *arriving: Shape) -> Shape:
    """The shape that ``module`` makes of one example of the shapes that arrive."""
    _expect(len(arriving) == 1 or isinstance(module, Add | Multiply | Concat), f"{_kind(module)} reads one value")
    shape = arriving[0]
    refusal = f"{_kind(module)} does not take {' and '.join(map(str, arriving))}"
    match module:
        case nn.Linear():
            _expect(shape == (module.in_features,), refusal)
            return (module.out_features,)
        case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            _expect(len(shape) == _directions(module) + 1 and shape[0] == module.in_channels, refusal)
            return (module.out_channels, *_window(module, shape, padding=conv_padding(module)))
        case Embed():
            _expect(len(shape) == 1, refusal)
            return (module.channels, shape[0])
        case LogMel():
            _expect(len(shape) == 2 and shape[0] == 1 and module.frames(shape[1]) > 0, refusal)
            return (1, module.bands, module.frames(shape[1]))
        case nn.MaxPool1d() | nn.MaxPool2d() | nn.MaxPool3d() | nn.AvgPool1d() | nn.AvgPool2d() | nn.AvgPool3d():
            _expect(len(shape) == _directions(module) + 1, refusal)
            padding = sizes(module.padding, _directions(module))
            kernel = sizes(module.kernel_size, _directions(module))  # not of its span: dilation does not count
            half = all(2 * pad <= size for pad, size in zip(padding, kernel, strict=True))
            _expect(half, f"{_kind(module)} pads over half its window")
            return (shape[0], *_window(module, shape, padding=(*padding, *padding)))
        case Normalise() if module.mean.dim():
            _expect(len(shape) == 3 and shape[0] == len(module.mean), refusal)
        case nn.Flatten():
            return (prod(shape),)
        case Select():
            _expect(_within(module.index, shape[0]), refusal)
            return (len(module.index), *shape[1:])
        case Place():
            _expect(shape[0] == len(module.index) and _within(module.index, module.width), refusal)
            return (module.width, *shape[1:])
        case GlobalMean():
            _expect(len(shape) > 1, refusal)
            return (shape[0], *[1] * (len(shape) - 1)) if module.keep_places else (shape[0],)
        case Subsample():
            _expect(len(shape) > 1 and 1 <= module.stride <= LARGEST_ARGUMENT, refusal)
            return (shape[0], *[-(-size // module.stride) for size in shape[1:]])
        case PadChannels():
            _expect(all(0 <= count <= LARGEST_ARGUMENT for count in (module.before, module.after)), refusal)
            return (module.before + shape[0] + module.after, *shape[1:])
        case Affine():
            _expect(shape[0] == module.channels, refusal)
        case FlattenPlaces():
            _expect(len(shape) > 1, refusal)
            return (shape[0], prod(shape[1:]))
        case ChannelNorm() | SelfAttention():
            _expect(len(shape) == 2 and shape[0] == module.channels, refusal)
        case Shift():
            _expect(shape == module.shape, refusal)
        case Add():
            _expect(len(arriving) == 2 and len(set(arriving)) == 1, refusal)
        case Multiply():
            _expect(len(arriving) == 2 and len({len(each) for each in arriving}) == 1, refusal)
            _expect(len({each[0] for each in arriving}) == 1, refusal)
            left, right = (each[1:] for each in arriving)
            return (shape[0], *[_broadcast(places, refusal) for places in zip(left, right, strict=True)])
        case Concat():
            _expect(len({each[1:] for each in arriving}) == 1, refusal)
            return (sum(each[0] for each in arriving), *shape[1:])
    return shape


def _broadcast(pair: Sequence[int], refusal: str) -> int:
    _expect(pair[0] == pair[1] or min(pair) == 1, refusal)
    return max(pair)


def conv_padding(module: Any) -> tuple[int, ...]:
    """Zeros added before each direction, then after each, whatever way the layer spells them."""
    directions = _directions(module)
    if isinstance(module.padding, str):
        _expect(module.padding in ("valid", "same"), f"padding {module.padding!r}")
        if module.padding == "valid":
            return (0,) * 2 * directions
        _expect(set(sizes(module.stride, directions)) == {1}, "padding 'same' needs a stride of 1")
        spans = _spans(module)
        before = tuple((span - 1) // 2 for span in spans)
        return (*before, *[span - 1 - pad for span, pad in zip(spans, before, strict=True)])
    return sizes(module.padding, directions) * 2


def pair(value: Any) -> Pair:
    """An argument that stands for both directions, or gives one for each."""
    first, second = sizes(value, 2)
    return first, second


def sizes(value: Any, count: int) -> tuple[int, ...]:
    """An argument that stands for every direction, or gives one for each."""
    numbers = (value,) * count if isinstance(value, int) else tuple(value)
    _expect(
        len(numbers) == count and all(type(n) is int and 0 <= n <= LARGEST_ARGUMENT for n in numbers),
        f"{value!r} is not a size",
    )
    return numbers


def _directions(module: nn.Module) -> int:
    """In how many a window slides."""
    return next(count for kind, count in _DIRECTIONS.items() if isinstance(module, kind))


def _spans(module: Any) -> tuple[int, ...]:
    """Places from the first to the last that a window touches, in each direction."""
    count = _directions(module)
    dilation, kernel = sizes(getattr(module, "dilation", 1), count), sizes(module.kernel_size, count)
    _expect(min(*kernel, *dilation) >= 1, f"{_kind(module)} has a size of zero")
    return tuple(step * (size - 1) + 1 for step, size in zip(dilation, kernel, strict=True))


def _window(module: Any, shape: Shape, *, padding: Sequence[int]) -> tuple[int, ...]:
    """How often a sliding window fits, in each direction."""
    spans, count = _spans(module), len(shape) - 1
    stride = sizes(module.stride, count)
    fits = []
    for axis in range(count):
        _expect(stride[axis] >= 1, f"{_kind(module)} has a size of zero")
        room = shape[1 + axis] + padding[axis] + padding[axis + count] - spans[axis]
        _expect(room >= 0, f"{_kind(module)} does not fit into {shape}")
        fits.append(room // stride[axis] + 1)
    return tuple(fits)


def _within(index: Tensor, count: int) -> bool:
    return bool(len(index)) and int(index.min()) >= 0 and int(index.max()) < count


def _expect(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _kind(module: nn.Module) -> str:
    return type(module).__name__
