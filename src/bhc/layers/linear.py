"""Linear layers, a product with the last axis; embeddings, rows picked by whole numbers; and such weights again."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.errors import BhcError
from bhc.layers.arguments import LARGEST_SIZE, Argument, Kept, Shape, Size, bounded, must_fit, unknown
from bhc.layers.kind import Example, LayerKind, Weighted, bare_copy, fixed, spread
from bhc.layers.protocols import (
    ELEMENTS,
    Captured,
    CWriter,
    FileReader,
    FileWriter,
    OnnxWriter,
    Operators,
    UnitSearch,
)


class Linear(Weighted):
    """``nn.Linear``: (N, ..., I) -> (N, ..., O)."""

    name, module, number = "linear", nn.Linear, 0
    arguments: ClassVar[Mapping[str, Argument]] = {"in_features": Size(), "out_features": Size()}
    in_axis = out_axis = -1
    has_curvature = True
    calls = ("aten.linear.default",)

    def captured(self, call: Captured) -> nn.Module | None:
        weight, bias = call.constant("weight"), call.constant("bias")
        if weight is None or not call.is_value("input") or call.is_value("bias"):
            return None
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        return with_numbers(linear, weight, bias)

    def output_shape(self, module: nn.Linear, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(len(shape) > 1 and shape[-1] == module.in_features, module, shape)
        return (*shape[:-1], module.out_features)

    def operator(self, module: nn.Linear, operators: Operators) -> Any:
        return operators.linear()

    def smaller(self, module: nn.Linear, weight: Tensor, bias: Tensor | None, kept_inputs: Tensor) -> nn.Module:
        linear = bare_copy(module)
        linear.out_features, linear.in_features = weight.shape
        return with_numbers(linear, weight, bias)

    def check(self, described: Mapping[str, Any]) -> None:
        bounded(described["in_features"], described["out_features"])

    def write(self, module: nn.Linear, name: str, arriving: Shape, file: FileWriter) -> list[Any]:
        return [self.tag, name, module.out_features, *file.weighted(name, module)]

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        match entry:
            case [_, str(name), int(outputs), weight, bias]:
                arguments = {"in_features": file.shape[-1], "out_features": outputs}
                file.weighted(self.name, name, arguments, weight, bias)
            case _:
                raise unknown(entry)

    def to_onnx(self, module: nn.Linear, name: str, writer: OnnxWriter) -> None:
        biases = [] if module.bias is None else [writer.constant(f"{name}.bias", module.bias.numpy())]
        weight = writer.weight(name, module)
        if len(writer.arriving[name]) == 1:
            writer.node("Gemm", name, weight, *biases, transB=1)
            return
        writer.side_node("Transpose", f"{name}.turned", weight, perm=[1, 0])
        writer.node("MatMul", name if module.bias is None else f"{name}.product", f"{name}.turned")
        if biases:
            writer.node("Add", name, *biases)

    def c_obstacle(self, module: nn.Linear, arriving: Shape) -> str | None:
        return None if len(arriving) == 1 else "is a linear layer at many places"

    def to_c(self, module: nn.Linear, name: str, arriving: Shape, leaving: Shape, writer: CWriter) -> None:
        inputs, outputs = module.in_features, module.out_features
        weight, factor = writer.weights(name, module.weight.numpy())
        bias, target = writer.bias(name, module), writer.target(outputs)
        value = f"{writer.source}[i]" if writer.reads is None else f"{writer.source}[{writer.reads}[i]]"
        writer.lines(
            f"{name}: {inputs} inputs, {outputs} outputs",
            [
                "int o, i;",
                f"for (o = 0; o < {outputs}; o++) {{",
                "    float sum = 0.0f;",
                f"    for (i = 0; i < {inputs}; i++) sum += {weight(f'o * {inputs} + i')} * {value};",
                f"    {target}[o] = sum{factor}{bias};",
                "}",
            ],
        )
        writer.source, writer.reads = target, None

    def examples(self) -> Sequence[Example]:
        return [(nn.Linear(5, 3), ((2, 5),)), (nn.Linear(5, 3, bias=False), ((2, 4, 5),))]


def with_numbers(module: Any, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """A layer that has these weights, and this bias where there is one."""
    module._parameters["weight"] = fixed(weight.contiguous())
    if bias is not None:
        module._parameters["bias"] = fixed(bias.contiguous())
    return module


class Embed(nn.Module):
    """``nn.Embedding`` with channels first: (N, T) whole numbers under ``count`` -> (N, C, T).

    A layer with weights (C, rows): words are its inputs, of which each token has one, and columns are its units. Words
    without a row give zeros: padding, and those that a context has not.
    """

    index: Tensor  # (count,) the row of each word; ``rows`` for those that have none
    bias: None

    def __init__(self, count: int, rows: int, channels: int) -> None:
        super().__init__()
        if not 0 < rows <= count:
            raise ValueError(f"{rows} rows for {count} words")
        self.count, self.rows, self.channels = count, rows, channels
        self.weight = nn.Parameter(torch.zeros(channels, rows), requires_grad=False)
        self.register_parameter("bias", None)
        self.register_buffer("index", torch.arange(count).clamp(max=rows))

    @classmethod
    def of(cls, weight: Tensor, padding: int | None = None) -> "Embed":  # (words, C)
        """Of a table; a padding word whose row is zero needs none."""
        words = torch.arange(len(weight))
        if padding is not None and not weight[padding].any():
            words = words[words != padding]
        embed = cls(len(weight), len(words), weight.shape[1])
        embed.weight.data = weight[words].mT.contiguous()
        embed.has_rows_(words)
        return embed

    @property
    def words(self) -> Tensor:  # (rows,)
        """The word of each row."""
        return (self.index < self.rows).nonzero().flatten()

    def has_rows_(self, words: Tensor) -> None:
        """These words, ascending, have the rows; all others have none."""
        self.rows = len(words)
        self.index = torch.full_like(self.index, self.rows)
        self.index[words] = torch.arange(self.rows, device=self.index.device)

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(self.rows_of(x), F.pad(self.weight, (0, 1)).mT).mT

    def rows_of(self, x: Tensor) -> Tensor:
        """The row of each word, ``rows`` for those that have none. In brackets a number under zero would do too."""
        return F.embedding(x.long(), self.index[:, None])[..., 0]

    def extra_repr(self) -> str:
        return f"{self.rows} of {self.count} words, {self.channels}"


def check_words(x: Tensor, count: int) -> None:
    """Raise where a number stands for none of so many words."""
    wrong = x[(x < 0) | (x >= count)]
    if len(wrong):
        raise BhcError(
            f"the number {wrong[0]:g} stands for no word; there are {count:,}",
            hint=f"words are 0 to {count - 1:,}; where a run has a vocabulary: model.vocabulary.encode(texts)",
        )


class Embedding(Weighted):
    """A layer that reads words."""

    name, module, number, sums = "embedding", Embed, 38, False
    arguments: ClassVar[Mapping[str, Argument]] = {"count": Size(), "rows": Size(), "channels": Size()}
    in_axis = out_axis = 1

    def output_shape(self, module: Embed, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(len(shape) == 2, module, shape)
        return (shape[0], module.channels, shape[1])

    def follow(self, module: Embed, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        """Whole numbers carry no units; the words that they stand for do, as inputs that are always there."""
        search.keep(search.words(module.rows))
        return spread(search.new(module.channels), leaving, self.out_axis)

    def operator(self, module: Embed, operators: Operators) -> Any:
        return operators.lookup(module)

    def smaller(self, module: Embed, weight: Tensor, bias: Tensor | None, kept_inputs: Tensor) -> nn.Module:
        embed = bare_copy(module)
        embed.channels = len(weight)
        embed.has_rows_(embed.words[kept_inputs.to(embed.index.device)])
        embed.index = embed.index.cpu()
        return with_numbers(embed, weight, None)

    def words(self, module: Embed) -> tuple[int, Tensor]:
        return module.count, module.words

    def num_flops(self, module: Embed, arriving: Sequence[Shape], leaving: Shape) -> int:
        return 0  # rows are picked

    def describe(self, module: Embed) -> dict[str, Any]:
        return LayerKind.describe(self, module)  # without a bias, which it cannot have

    def build(self, described: Mapping[str, Any]) -> nn.Module:
        return LayerKind.build(self, {name: value for name, value in described.items() if name != "bias"})

    def check(self, described: Mapping[str, Any]) -> None:
        bounded(described["count"])
        bounded(described["rows"], described["channels"])

    def write(self, module: Embed, name: str, arriving: Shape, file: FileWriter) -> list[Any]:
        file.selection(module.words, module.count)
        weight, _ = file.weighted(name, module)
        return [self.tag, name, module.count, module.rows, module.channels, weight]

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        """Which words have rows is read, as a list of values is, when all sizes were found sound."""
        match entry:
            case [_, str(name), int(count), int(rows), int(channels), weight] if 0 < rows <= count <= LARGEST_SIZE:
                file.rows(name, count, rows)
                arguments = {"count": count, "rows": rows, "channels": channels}
                file.weighted(self.name, name, arguments, weight, False)
            case _:
                raise unknown(entry)

    def to_onnx(self, module: Embed, name: str, writer: OnnxWriter) -> None:
        """A column of zeros beside the weights, for words without a row.

        Numbers of no word are out of range and make a runtime stop; those under zero would count from the end.
        """
        weight, words = writer.weight(name, module), writer.value
        writer.side_node("Pad", f"{name}.table", weight, writer.constant(f"{name}.pads", np.array([0, 0, 0, 1])))
        writer.side_node("Cast", f"{name}.numbers", words, to=ELEMENTS[torch.int64])
        zero, beyond = (
            writer.constant(f"{name}.{key}", np.array(number))
            for key, number in (("zero", 0), ("beyond", module.count))
        )
        writer.side_node("Less", f"{name}.negative", f"{name}.numbers", zero)
        writer.side_node("Where", f"{name}.words", f"{name}.negative", beyond, f"{name}.numbers")
        rows = writer.constant(f"{name}.index", module.index.numpy())
        writer.side_node("Gather", f"{name}.rows", rows, f"{name}.words")
        writer.side_node("Gather", f"{name}.columns", f"{name}.table", f"{name}.rows", axis=1)
        writer.value = f"{name}.columns"
        writer.node("Transpose", name, perm=[1, 0, 2])

    def c_obstacle(self, module: Embed, arriving: Shape) -> str | None:
        return "reads words, and there is nothing in C that makes numbers of them"

    def examples(self) -> Sequence[Example]:
        return [(Embed.of(torch.arange(12.0).reshape(4, 3), padding=0), ((2, 5),))]


class Tied(nn.Module):
    """``y = W^T x`` with the weights (O, I) of another layer: (N, ..., O) -> (N, ..., I)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer: Any = layer

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.layer.weight


class TiedKind(LayerKind):
    """A further call of a layer: what that reads lives and dies with what this gives, and the other way round.

    Its numbers are the layer's, and so are its counts, its beliefs and its place in files.
    """

    name, module, number = "tied", Tied, 43
    axis = -1  # of what it reads, and of what it gives

    def output_shape(self, module: Tied, *arriving: Shape) -> Shape:
        (shape,) = arriving
        outputs, inputs = module.layer.weight.shape
        must_fit(len(shape) > 1 and shape[-1] == outputs, module, shape)
        return (*shape[:-1], inputs)

    def follow(self, module: Tied, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        search.has_ends(search.along(arriving[0], self.axis), written := search.new(leaving[-1]), fed_back=False)
        return spread(written, leaving, self.axis)

    def num_flops(self, module: Tied, arriving: Sequence[Shape], leaving: Shape) -> int:
        return 2 * module.layer.weight.numel() * int(np.prod(leaving[:-1]))

    def narrowed(self, module: Tied, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        raise BhcError("a layer is cut together with its transpose")

    def to_onnx(self, module: Tied, name: str, writer: OnnxWriter) -> None:
        writer.node("MatMul", name, writer.weight(name, module.layer))

    def examples(self) -> Sequence[Example]:
        return []  # it is nothing without the layer
