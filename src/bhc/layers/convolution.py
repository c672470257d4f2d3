"""Convolutions in one, two and three directions, in groups or not."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from torch import Tensor, nn

from bhc.layers.arguments import Argument, Shape, Size, bounded, expect, must_fit, pair, sizes, spans, unknown, windows
from bhc.layers.kind import Example, Weighted, bare_copy, spread
from bhc.layers.linear import with_numbers
from bhc.layers.protocols import Captured, CWriter, FileReader, FileWriter, OnnxWriter, Operators, UnitSearch

LOWEST = "-3.402823466e+38f"
GENERAL = 19  # in packed files: other than of two directions in one group


class Convolution(Weighted):
    """What the three have in common: (N, C, places) -> (N, O, places)."""

    directions: ClassVar[int]
    in_axis = out_axis = 1
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


def conv_padding(module: Any) -> tuple[int, ...]:
    """Zeros added before each direction, then after each, whatever way the layer spells them."""
    directions = module.weight.dim() - 2
    if isinstance(module.padding, str):
        expect(module.padding in ("valid", "same"), f"padding {module.padding!r}")
        if module.padding == "valid":
            return (0,) * 2 * directions
        expect(set(sizes(module.stride, directions)) == {1}, "padding 'same' needs a stride of 1")
        span = spans(module.kernel_size, module.dilation, directions)
        before = tuple((size - 1) // 2 for size in span)
        return (*before, *[size - 1 - pad for size, pad in zip(span, before, strict=True)])
    return sizes(module.padding, directions) * 2


def c_convolution(
    writer: CWriter, name: str, module: nn.Conv2d, arriving: Shape, leaving: Shape, *, window: tuple[int, int]
) -> None:
    """Loops over filters and places; with a window, the largest of each as it is computed: the map is never stored."""
    (channels, height, width), (filters, rows, columns) = arriving, leaving
    kernel, stride, dilation = pair(module.kernel_size), pair(module.stride), pair(module.dilation)
    padding = conv_padding(module)
    weight, factor = writer.weights(name, module.weight.numpy())
    bias, target = writer.bias(name, module), writer.target(prod(leaving))
    pooled = window != (1, 1)
    places = [f"(y * {window[0]} + p)", f"(x * {window[1]} + q)"] if pooled else ["y", "x"]
    index = f"((o * {channels} + c) * {kernel[0]} + u) * {kernel[1]} + v"
    of_one_place = [
        "    float sum = 0.0f;",
        f"    for (c = 0; c < {channels}; c++)",
        *c_window(
            f"sum += {weight(index)} * {writer.source}[(c * {height} + row) * {width} + column];",
            (height, width),
            places=places,
            kernel=kernel,
            stride=stride,
            dilation=dilation,
            padding=padding,
        ),
    ]
    of_a_window = [
        f"    float best = {LOWEST};",
        f"    for (p = 0; p < {window[0]}; p++)",
        f"    for (q = 0; q < {window[1]}; q++) {{",
        *[f"    {line}" for line in of_one_place],
        "        if (sum > best) best = sum;",
        "    }",
    ]
    writer.lines(
        f"{name}: {channels} channels, {filters} filters of {kernel[0]} x {kernel[1]}"
        + (f", the largest of {window[0]} x {window[1]}" if pooled else ""),
        [
            "int o, y, x, c, u, v" + (", p, q;" if pooled else ";"),
            f"for (o = 0; o < {filters}; o++)",
            f"for (y = 0; y < {rows}; y++)",
            f"for (x = 0; x < {columns}; x++) {{",
            *(of_a_window if pooled else of_one_place),
            f"    {target}[(o * {rows} + y) * {columns} + x] = {'best' if pooled else 'sum'}{factor}{bias};",
            "}",
        ],
    )
    writer.source = target


def c_window(
    statement: str,
    size: tuple[int, int],
    *,
    places: Sequence[str],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: Sequence[int],
) -> list[str]:
    """In C: a statement for each ``row`` and ``column`` of a window; what padding has put there adds nothing."""
    row, column = (
        f"{places[axis]} * {stride[axis]} + {offset} * {dilation[axis]}"
        + (f" - {padding[axis]}" if padding[axis] else "")
        for axis, offset in enumerate("uv")
    )
    outside = f"        if (row < 0 || row >= {size[0]} || column < 0 || column >= {size[1]}) continue;"
    return [
        f"    for (u = 0; u < {kernel[0]}; u++)",
        f"    for (v = 0; v < {kernel[1]}; v++) {{",
        f"        const int row = {row}, column = {column};",
        *([outside] if any(padding) else []),
        f"        {statement}",
        "    }",
    ]
