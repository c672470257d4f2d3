"""Convolutions in one, two and three directions, in groups or not; and transposed ones, in one group."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.layers.arguments import (
    LARGEST_LAYER,
    Argument,
    Shape,
    Size,
    bounded,
    conv_padding,
    must_fit,
    sizes,
    spans,
    unknown,
    windows,
)
from bhc.layers.kind import Example, Weighted, bare_copy, fixed, spread
from bhc.layers.linear import with_numbers
from bhc.layers.protocols import (
    Captured,
    CWriter,
    FileReader,
    FileWriter,
    OnnxWriter,
    Operators,
    UnitSearch,
    c_convolution,
)

GENERAL = 19  # in packed files: other than of two directions in one group


class Convolution(Weighted):
    """What the three have in common: (N, C, places) -> (N, O, places)."""

    directions: ClassVar[int]
    in_axis = out_axis = 1
    has_curvature = True
    arguments: ClassVar[Mapping[str, Argument]] = {
        "in_channels": Size(),
        "out_channels": Size(),
        "kernel_size": Size(),
        "stride": Size(),
        "padding": Argument(),  # a word, or sizes
        "dilation": Size(),
        "groups": Size(),
    }

    def captured(self, call: Captured) -> nn.Module | None:
        weight, bias = call.constant("weight"), call.constant("bias")
        if weight is None or not call.is_value("input") or call.is_value("bias"):
            return None
        if len(call.arriving[0]) != self.directions + 2:
            return None
        geometry = {name: call.plain(name) for name in ("stride", "padding", "dilation")}
        given = {
            name: value if isinstance(value, str) else every(value, self.directions) for name, value in geometry.items()
        }
        groups = call.plain("groups")
        kernel, channels = tuple(weight.shape[2:]), weight.shape[1] * groups
        convolution = self.module(
            channels, len(weight), kernel, groups=groups, bias=bias is not None, device="meta", **given
        )
        return with_numbers(convolution, weight, bias)

    def output_shape(self, module: Any, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(len(shape) == self.directions + 2 and shape[1] == module.in_channels, module, shape)
        span = spans(module.kernel_size, module.dilation, self.directions)
        return (shape[0], module.out_channels, *windows(shape, span, module.stride, conv_padding(module)))

    def follow(self, module: Any, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        axis = along_places(search, arriving[0])
        if axis is not None:
            return self._over_units(module, search, leaving, arriving[0], axis)
        inputs, outputs = search.along(arriving[0], self.in_axis), search.new(module.out_channels)
        if module.groups > 1:
            sides = [units.unflatten(0, (module.groups, -1)) for units in (inputs, outputs)]
            if len(inputs) > module.groups:
                search.heads.grouped(search.new(module.groups), *sides)
            else:  # depthwise: a channel and what is made of it live and die together
                search.tie(outputs)
                search.join(sides[0].expand(sides[1].shape), sides[1])
        return spread(outputs, leaving, self.out_axis)

    def _over_units(self, module: Any, search: UnitSearch, leaving: Shape, units: Tensor, axis: int) -> Tensor:
        """What are channels elsewhere may be its places, as in ECA: what is not there counts as zero, and every place
        has all of its neighbours. So what it gives goes with what it meets, whatever it was made of."""
        search.has_ends(search.whole((module.in_channels,)), search.whole((module.out_channels,)), fed_back=False)
        if not slides_along(module, axis):
            return spread(search.along(units, axis), leaving, axis)
        given = search.constants((leaving[1], leaving[axis]))
        search.heads.alike(given)
        return given.reshape(1, leaving[1], *[size if at == axis else 1 for at, size in enumerate(leaving)][2:]).expand(
            leaving
        )

    def counts_kept(self, module: Any, axes: Sequence[tuple[int, ...]], dimensions: Sequence[int]) -> bool:
        return any(axis > 1 and slides_along(module, axis) for axis in axes[0])

    def operator(self, module: Any, operators: Operators) -> Any:
        return operators.convolution(module)

    def smaller(self, module: Any, weight: Tensor, bias: Tensor | None, kept_inputs: Tensor) -> nn.Module:
        convolution = bare_copy(module)
        convolution.groups = 1 if module.groups == 1 else len(kept_inputs) // weight.shape[1]  # those that stay
        convolution.in_channels = weight.shape[1] * convolution.groups
        convolution.out_channels = len(weight)
        return with_numbers(convolution, weight, bias)

    def width(self, module: Any) -> int:
        """The layer's number in an architecture: its filters."""
        return module.weight.shape[0]

    def build(self, described: Mapping[str, Any]) -> nn.Module:
        return super().build({"groups": 1} | dict(described))  # older descriptions know no others

    def check(self, described: Mapping[str, Any]) -> None:
        bounded(described["groups"])
        inputs = bounded(described["in_channels"]) // described["groups"]
        kernel = described["kernel_size"]
        if len(kernel) != self.directions:
            raise ValueError(f"a {self.name} step with a kernel of size {kernel}")
        bounded(max(inputs, 1), described["out_channels"], *kernel)

    def write(self, module: Any, name: str, arriving: Shape, file: FileWriter) -> list[Any]:
        parts = (module.kernel_size, module.stride, module.padding, module.dilation)
        geometry = [list(part) if isinstance(part, tuple) else part for part in parts]
        if self.directions != 2 or module.groups > 1:
            return [GENERAL, name, module.out_channels, *geometry, module.groups, *file.weighted(name, module)]
        return [self.tag, name, module.out_channels, *geometry, *file.weighted(name, module)]

    def to_onnx(self, module: Any, name: str, writer: OnnxWriter) -> None:
        biases = [] if module.bias is None else [writer.constant(f"{name}.bias", module.bias.numpy())]
        writer.node(
            "Conv",
            name,
            writer.weight(name, module),
            *biases,
            kernel_shape=module.kernel_size,
            strides=module.stride,
            dilations=module.dilation,
            group=module.groups,
            pads=conv_padding(module),
        )

    def examples(self) -> Sequence[Example]:
        shape, kernel = (2, 4, 6, 5, 4)[: self.directions + 2], (3, 2, 1)[: self.directions]
        plain = self.module(4, 3, kernel, stride=2, padding=1, dilation=1)
        return [(plain, (shape,)), (self.module(4, 6, 3, padding="same", groups=2, bias=False), (shape,))]


def along_places(search: UnitSearch, units: Tensor) -> int | None:
    """The one axis of places along which units lie, where they do not lie along the channels."""
    places = [axis for axis in range(2, units.dim()) if search.varies(units, axis)]
    return places[0] if len(places) == 1 and not search.varies(units, 1) else None


def slides_along(module: Any, axis: int) -> bool:
    """Whether it mixes places of an axis, or leaves some out."""
    own = (part[axis - 2] for part in (module.kernel_size, module.stride))
    padding = conv_padding(module)
    return any(size != 1 for size in own) or any(padding[axis - 2 :: module.weight.dim() - 2])


class Convolution1d(Convolution):
    name, module, directions = "conv-1d", nn.Conv1d, 1
    calls = ("aten.conv1d.default", "aten.conv1d.padding")
    number = None  # stands in files as a general one

    @property
    def tag(self) -> int:
        return GENERAL


class Convolution2d(Convolution):
    """``nn.Conv2d``: the one that has C code."""

    name, module, number, directions = "conv-2d", nn.Conv2d, 1, 2
    calls = ("aten.conv2d.default", "aten.conv2d.padding")

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        match entry:
            case [_, str(name), int(outputs), kernel, stride, padding, dilation, weight, bias]:
                read_convolution(file, name, outputs, (kernel, stride, padding, dilation), 1, weight, bias)
            case _:
                raise unknown(entry)

    def c_obstacle(self, module: nn.Conv2d, arriving: Shape) -> str | None:
        return None if module.groups == 1 else "is a grouped convolution"

    def to_c(self, module: nn.Conv2d, name: str, arriving: Shape, leaving: Shape, writer: CWriter) -> None:
        c_convolution(writer, name, module, arriving, leaving, window=(1, 1))


class Convolution3d(Convolution):
    """``nn.Conv3d``; in files it stands for all that are not of two directions in one group."""

    name, module, number, directions = "conv-3d", nn.Conv3d, GENERAL, 3
    calls = ("aten.conv3d.default", "aten.conv3d.padding")

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        match entry:
            case [_, str(name), int(outputs), list(kernel), stride, padding, dilation, int(groups), weight, bias]:
                if groups < 1 or (groups == 1 and len(kernel) == 2):
                    raise ValueError(f"a convolution of {groups} groups")
                read_convolution(file, name, outputs, (kernel, stride, padding, dilation), groups, weight, bias)
            case _:
                raise unknown(entry)


def every(value: Any, directions: int) -> tuple[int, ...]:
    """An argument of a call that stands for every direction, alone or in a list, or gives one for each."""
    return sizes(value[0] if isinstance(value, list | tuple) and len(value) == 1 else value, directions)


def read_convolution(
    file: FileReader, name: str, outputs: int, geometry: Sequence[Any], groups: int, weight: Any, bias: Any
) -> None:
    """The convolution whose directions its kernel has."""
    _, channels, *places = file.shape
    kernel = geometry[0]
    if not isinstance(kernel, list) or len(kernel) != len(places):
        raise ValueError(f"a kernel of {str(kernel)[:60]} for values of shape {file.shape[1:]}")
    named = zip(("kernel_size", "stride", "padding", "dilation"), geometry, strict=True)
    arguments: dict[str, Any] = {"in_channels": channels, "out_channels": outputs, "groups": groups}
    arguments |= {key: tuple(value) if isinstance(value, list) else value for key, value in named}
    file.weighted(f"conv-{len(places)}d", name, arguments, weight, bias)


TRANSPOSED: tuple[Callable[..., Tensor], ...] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
GEOMETRY = ("stride", "padding", "output_padding", "dilation")


class TransposedConvolution(nn.Module):
    """``nn.ConvTranspose1d``, ``2d`` or ``3d`` in one group, with weights (O, I, *kernel) as those of all other layers.

    Each number that arrives is put down once for every weight of a kernel: at ``stride i + dilation k - padding``.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, ...],
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        output_padding: tuple[int, ...],
        dilation: tuple[int, ...],
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size
        self.stride, self.padding, self.output_padding, self.dilation = stride, padding, output_padding, dilation
        self.weight = fixed(torch.zeros(out_channels, in_channels, *kernel_size))
        self.register_parameter("bias", fixed(torch.zeros(out_channels)) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        geometry: dict[str, Any] = {name: getattr(self, name) for name in GEOMETRY}
        return transpose_convolve(x, self.weight, self.bias, **geometry)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"


def transpose_convolve(x: Tensor, weight: Tensor, bias: Tensor | None, *, groups: int = 1, **geometry: Any) -> Tensor:
    """A transposed convolution with weights (O, I of one group, *kernel)."""
    kernels = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)  # torch has its inputs first
    return TRANSPOSED[weight.dim() - 3](x, kernels, bias, groups=groups, **geometry)


class Transposed(Weighted):
    """``TransposedConvolution``: (N, C, places) -> (N, O, places)."""

    name, module, number = "conv-transposed", TransposedConvolution, 44
    calls = ("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
    in_axis = out_axis = 1
    arguments: ClassVar[Mapping[str, Argument]] = {
        name: Size() for name in ("in_channels", "out_channels", "kernel_size", *GEOMETRY)
    }

    def captured(self, call: Captured) -> nn.Module | None:
        weight, bias = call.constant("weight"), call.constant("bias")
        if weight is None or not call.is_value("input") or call.is_value("bias") or call.plain("groups") != 1:
            return None
        inputs, outputs, *kernel = weight.shape
        if len(call.arriving[0]) != weight.dim():
            return None
        geometry = {name: every(call.plain(name), len(kernel)) for name in GEOMETRY}
        with torch.device("meta"):
            module = TransposedConvolution(inputs, outputs, tuple(kernel), **geometry, bias=bias is not None)
        return with_numbers(module, weight.transpose(0, 1), bias)

    def output_shape(self, module: TransposedConvolution, *arriving: Shape) -> Shape:
        (shape,) = arriving
        count = len(module.kernel_size)
        must_fit(len(shape) == count + 2 and shape[1] == module.in_channels, module, shape)
        stride, padding, more, dilation = (sizes(getattr(module, name), count) for name in GEOMETRY)
        fits = all(end < max(step, apart) for end, step, apart in zip(more, stride, dilation, strict=True))
        must_fit(fits and min(stride) > 0, module, shape)
        span = spans(module.kernel_size, dilation, count)
        places = zip(shape[2:], stride, padding, span, more, strict=True)
        leaving = [(size - 1) * step - 2 * cut + own + end for size, step, cut, own, end in places]
        must_fit(min(leaving) > 0 and prod(leaving) * module.out_channels <= LARGEST_LAYER, module, shape)
        return (shape[0], module.out_channels, *leaving)

    def operator(self, module: TransposedConvolution, operators: Operators) -> Any:
        return operators.transposed_convolution(module)

    def smaller(
        self, module: TransposedConvolution, weight: Tensor, bias: Tensor | None, kept_inputs: Tensor
    ) -> nn.Module:
        convolution = bare_copy(module)
        convolution.out_channels, convolution.in_channels = weight.shape[:2]
        return with_numbers(convolution, weight, bias)

    def num_flops(self, module: TransposedConvolution, arriving: Sequence[Shape], leaving: Shape) -> int:
        """Two operations a weight and place that arrives."""
        examples, _, *places = arriving[0]
        return 2 * module.weight.numel() * examples * prod(places)

    def width(self, module: TransposedConvolution) -> int:
        """The layer's number in an architecture: its filters."""
        return module.out_channels

    def check(self, described: Mapping[str, Any]) -> None:
        kernel = described["kernel_size"]
        if not isinstance(kernel, tuple | list) or len(kernel) not in (1, 2, 3):
            raise ValueError(f"a {self.name} step with a kernel of size {kernel}")
        bounded(described["in_channels"], described["out_channels"], *kernel)
        for name in GEOMETRY:
            sizes(described[name], len(kernel))

    def write(self, module: TransposedConvolution, name: str, arriving: Shape, file: FileWriter) -> list[Any]:
        geometry = [list(getattr(module, key)) for key in ("kernel_size", *GEOMETRY)]
        return [self.tag, name, module.out_channels, *geometry, *file.weighted(name, module)]

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        match entry:
            case [_, str(name), int(outputs), list(), list(), list(), list(), list(), weight, bias]:
                _, channels, *places = file.shape
                geometry = dict(zip(("kernel_size", *GEOMETRY), map(tuple, entry[3:8]), strict=True))
                if len(geometry["kernel_size"]) != len(places):
                    raise ValueError(f"a kernel of {str(entry[3])[:60]} for values of shape {file.shape[1:]}")
                arguments = {"in_channels": channels, "out_channels": outputs, **geometry}
                file.weighted(self.name, name, arguments, weight, bias)
            case _:
                raise unknown(entry)

    def to_onnx(self, module: TransposedConvolution, name: str, writer: OnnxWriter) -> None:
        biases = [] if module.bias is None else [writer.constant(f"{name}.bias", module.bias.numpy())]
        order = [1, 0, *range(2, module.weight.dim())]
        # Runtimes want less output padding than stride, so as much as can be is padding that is not cut off.
        uncut = [min(pair) for pair in zip(module.padding, module.output_padding, strict=True)]
        writer.side_node("Transpose", f"{name}.turned", writer.weight(name, module), perm=order)
        writer.node(
            "ConvTranspose",
            name,
            f"{name}.turned",
            *biases,
            kernel_shape=module.kernel_size,
            strides=module.stride,
            dilations=module.dilation,
            output_padding=[more - own for more, own in zip(module.output_padding, uncut, strict=True)],
            pads=[*module.padding, *(cut - own for cut, own in zip(module.padding, uncut, strict=True))],
        )

    def examples(self) -> Sequence[Example]:
        line = TransposedConvolution(4, 3, (3,), (2,), (1,), (1,), (1,))
        plane = TransposedConvolution(2, 3, (3, 2), (2, 1), (1, 0), (1, 0), (1, 2), bias=False)
        space = TransposedConvolution(2, 1, (2, 1, 2), (2, 2, 2), (0, 0, 0), (0, 1, 0), (1, 1, 1))
        return [(line, ((2, 4, 5),)), (plane, ((2, 2, 4, 3),)), (space, ((2, 2, 2, 3, 2),))]
