"""Transposed convolutions in one, two and three directions, in one group."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.layers.arguments import LARGEST_LAYER, Argument, Shape, Size, bounded, must_fit, sizes, spans, unknown
from bhc.layers.convolution import every
from bhc.layers.kind import Example, Weighted, bare_copy, fixed
from bhc.layers.linear import with_numbers
from bhc.layers.protocols import Captured, FileReader, FileWriter, OnnxWriter, Operators

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
