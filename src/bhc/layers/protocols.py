"""What the other rooms pass in for a layer to answer with, and the pieces of C that several kinds write."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bhc.layers.arguments import Shape, conv_padding, pair


class Captured(Protocol):
    """A call of one of torch's operators in a captured program, its arguments by the operator's own names."""

    target: str
    arriving: tuple[Shape, ...]  # of the values that it reads
    leaving: Shape

    def plain(self, name: str) -> Any:
        """An argument that is plain data, or its default."""

    def constant(self, name: str) -> Tensor | None:
        """An argument that is a tensor of the network's own."""

    def is_value(self, name: str) -> bool:
        """Whether an argument is a value that was computed."""


class HeadSearch(Protocol):
    """Collects what is said of heads, and of groups of convolutions."""

    def live_within(self, heads: Tensor, units: Tensor) -> None:
        """Each of the ``heads``, (H,), goes with all of its ``units``, (H, n); all that stay keep equally many."""

    def grouped(self, groups: Tensor, inputs: Tensor, outputs: Tensor) -> None:
        """A convolution of ``groups``, (G,), reads (G, n) and gives (G, m): those of its groups that stay read equally
        many each, and give equally many."""

    def one_after_the_other(self, rows: Tensor) -> None:
        """Units, (rows, n), lie in a value one row after the other along one axis."""

    def alike(self, units: Tensor, columns: Tensor | None = None) -> None:
        """Of units of heads, (H, n): all heads keep the same places, since numbers are there once for all of them.

        ``columns``, (n,), are units of such numbers; each lives while any head keeps its place.
        """

    def apart(self, units: Tensor) -> None:
        """A part of a value, such as what lies before a slice, of which as much must stay for every head."""


class UnitSearch(Protocol):
    """Finds which channels live and die together. Units are whole numbers, one for each number of a value."""

    @property
    def heads(self) -> HeadSearch:
        """What is said of heads."""

    def new(self, count: int) -> Tensor:  # (count,)
        """Units that a layer writes, or zeros that nobody writes."""

    def words(self, count: int) -> Tensor:  # (count,)
        """Units that this step's rows stand for."""

    def join(self, left: Tensor, right: Tensor) -> None:
        """These live and die together, number by number."""

    def tie(self, units: Tensor) -> None:
        """Of these all parts are needed, not only their sum."""

    def keep(self, units: Tensor) -> None:
        """These are never cut."""

    def along(self, units: Tensor, axis: int) -> Tensor:  # (size of the axis,)
        """One unit for each place of an axis; what varies along others goes together, or is never cut."""

    def constants(self, shape: Shape) -> Tensor:
        """For numbers of a network's own: they stay, unless they meet a unit that goes."""

    def varies(self, units: Tensor, axis: int) -> bool:
        """Whether what can be cut is not the same all along an axis."""

    def whole(self, shape: Shape) -> Tensor:
        """For values of which nothing can be cut."""

    def has_ends(self, reads: Tensor, writes: Tensor, *, fed_back: bool = True) -> None:
        """Units of what this step's weights read and write, where they are not those that arrive and leave; whether
        it reads what it has written."""


class Operators(Protocol):
    """The ways to apply weights that are believed and not known, for several contexts at once."""

    def linear(self) -> Any:
        """A product with the channels."""

    def convolution(self, module: Any) -> Any:
        """Windows that slide."""

    def transposed_convolution(self, module: Any) -> Any:
        """Kernels that are put down beside each other."""

    def lookup(self, module: Any) -> Any:
        """Rows that are picked."""

    def recurrence(self, module: Any) -> Any:
        """A product with a state, at every step of a sequence."""


class FileWriter(Protocol):
    """A packed file that is being written."""

    def weighted(self, name: str, module: nn.Module) -> list[Any]:
        """Add the numbers of a weighted layer; how weights and biases are stored."""

    def floats(self, name: str, module: nn.Module) -> None:
        """Add all parameters of a step as floats."""

    def selection(self, index: Tensor, count: int, *, of_last: bool = False) -> None:
        """Add which of ``count`` values are meant, for the next layer with numbers or the last."""


class FileReader(Protocol):
    """A packed file that is being read: on paper first, numbers when all sizes were found sound."""

    @property
    def shape(self) -> Shape:
        """Of the value that arrives."""

    def add(self, kind: str, module: nn.Module) -> None:
        """A step; its parameters, if it has any, are read as floats."""

    def weighted(self, kind: str, name: str, arguments: Mapping[str, Any], weight: Any, bias: Any) -> nn.Module:
        """A layer with weights, its numbers stored as said."""

    def select(self, kept: int, axis: int) -> None:
        """A step that reads some of what arrives, which is told later."""

    def place(self, width: int, axis: int) -> None:
        """A step that puts what arrives at some of so many places."""

    def rows(self, name: str, count: int, kept: int) -> None:
        """Which of ``count`` words have rows in a layer is told later."""


# ONNX's numbers for dtypes. Of floats of another precision runtimes lack too many operators.
ELEMENTS = {
    torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.int16: 5, torch.int32: 6, torch.int64: 7, torch.bool: 9,
}  # fmt: skip
NARROW = (torch.bool, torch.uint8, torch.int8, torch.int16)  # runtimes move these and do not compute with them


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that stands for another where a runtime computes."""
    return torch.int32 if dtype in NARROW else dtype


@dataclass(frozen=True)
class OnnxValue:
    """A value of a model: its name there, its shape for ``EXAMPLES`` examples, its dtype."""

    name: str
    shape: Shape
    dtype: torch.dtype = torch.float32


class OnnxWriter(Protocol):
    """Collects nodes; ``value`` is the name of what the last node gave, or of what a step reads."""

    value: str
    others: list[str]  # what a joint reads beside it
    reads: tuple[OnnxValue, ...]  # the same with shapes and dtypes
    arriving: dict[str, Shape]  # of the first value that each step reads, without the batch

    def varies(self, place: int, axis: int) -> bool:
        """Whether the size of a value that the step reads depends on the size of what the network is given."""

    def size(self, value: str, axis: int) -> str:
        """A size as the model finds it when it runs: a vector of one whole number."""

    def add(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        """A node with any number of results."""

    def shared(self, values: np.ndarray, owner: object = None) -> str:
        """Numbers under a name of the writer's choice; those of one owner, or the same ones, are written once."""

    def node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> None:
        """A node that reads what came before it in the step."""

    def side_node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> None:
        """A node beside these."""

    def constant(self, name: str, values: np.ndarray) -> str:
        """Numbers under a name."""

    def number(self, name: str, value: float) -> str:
        """One number under a name."""

    def weight(self, name: str, module: Any) -> str:
        """The weights of a layer."""


class CWriter(Protocol):
    """Collects constants and code. Values live in ``input`` first, then in two buffers by turns."""

    source: str
    reads: str | None  # the list of inputs that the next layer reads through
    stack: int
    uses_math: bool

    def target(self, size: int) -> str:
        """The buffer that the next values go to."""

    def writable(self, size: int) -> str:
        """The buffer to change values in."""

    def lines(self, comment: str, lines: Iterable[str]) -> None:
        """A block of code."""

    def integers(self, name: str, values: Sequence[int] | np.ndarray, *, unsigned: bool = False) -> str:
        """An array of whole numbers; its C name."""

    def floats(self, name: str, values: np.ndarray) -> str:
        """An array of floats; its C name."""

    def weights(self, name: str, values: np.ndarray) -> tuple[Callable[[str], str], str]:
        """How to read a weight by its index, and the factor that is still to be applied."""

    def bias(self, name: str, module: Any) -> str:
        """What is added to output ``o``, with the plus sign."""


def literal(value: float) -> str:
    """A float constant that reads back to the same single-precision number."""
    text = f"{np.float32(value):.9g}"
    return f"{text}f" if any(mark in text for mark in ".en") else f"{text}.0f"


def number(module: Any, attribute: str) -> str:
    """A number of a module's as a constant."""
    return literal(float(getattr(module, attribute)))


def each_number(writer: CWriter, name: str, shape: Shape, expression: str, *, math: bool = False) -> None:
    """Change each value on its own; ``v`` in the expression is the value."""
    target = writer.writable(prod(shape))
    loop = [
        "int i;",
        f"for (i = 0; i < {prod(shape)}; i++) {{",
        f"    const float v = {writer.source}[i];",
        f"    {target}[i] = {expression};",
        "}",
    ]
    writer.lines(name, loop)
    writer.source = target
    writer.uses_math = writer.uses_math or math


LOWEST = "-3.402823466e+38f"


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
