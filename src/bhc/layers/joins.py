"""Values that meet: sums, products, values side by side, learned numbers that are added."""

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bhc.layers.arguments import Argument, Kept, Shape, Size, bounded, must_fit
from bhc.layers.kind import Elementwise, Example, NoForm, Uncut, meeting, picked, spread
from bhc.layers.protocols import ELEMENTS, Captured, FileReader, OnnxValue, OnnxWriter, UnitSearch, wide


class Add(nn.Module):
    """Two values of one shape, added: where a residual stream and a branch meet."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right


class Multiply(nn.Module):
    """Two values multiplied; one may have a single place where the other has many."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left * right


class Concat(nn.Module):
    """Values side by side along the channels."""

    def forward(self, *values: Tensor) -> Tensor:
        return torch.cat(values, 1)


class Shift(nn.Module):
    """A learned number for each channel and place, added: where a token stands."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.bias = nn.Parameter(torch.zeros(self.shape), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias

    @property
    def size(self) -> int:
        return prod(self.shape)

    def extra_repr(self) -> str:
        return f"shape={self.shape}"


class Joint(Uncut):
    """A step without numbers of its own that reads several values."""

    joins = True
    count: ClassVar[int | None] = 2  # of values; None: any from two on
    onnx: ClassVar[str]
    onnx_attributes: ClassVar[Mapping[str, int]] = {}

    def takes(self, count: int) -> bool:
        return count == self.count or (self.count is None and count > 1)

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        file.add(self.name, self.module())

    def to_onnx(self, module: Any, name: str, writer: OnnxWriter) -> None:
        """Values of several dtypes, or of one that runtimes do not compute with, are cast before they meet."""
        dtype = reduce(torch.promote_types, [value.dtype for value in writer.reads])
        met = wide(dtype)
        writer.value, *others = [_cast(f"{name}.{at}", each, met, writer) for at, each in enumerate(writer.reads)]
        if met == dtype:
            writer.node(self.onnx, name, *others, **self.onnx_attributes)
        else:
            writer.node(self.onnx, f"{name}.{len(others) + 1}", *others, **self.onnx_attributes)
            writer.node("Cast", name, to=ELEMENTS[dtype])


def _cast(name: str, value: OnnxValue, dtype: torch.dtype, writer: OnnxWriter) -> str:
    if value.dtype == dtype:
        return value.name
    if dtype not in ELEMENTS:
        raise NoForm(f"step {name!r} computes with {dtype}")
    writer.side_node("Cast", name, value.name, to=ELEMENTS[dtype])
    return name


class AddKind(Joint):
    """``Add``: what is added lives and dies together."""

    name, module, number, onnx = "add", Add, 16, "Add"
    any_dtype = True
    calls = ("aten.add.Tensor",)

    def captured(self, call: Captured) -> nn.Module | None:
        both = call.is_value("self") and call.is_value("other") and call.plain("alpha") == 1
        return Add() if both and call.arriving[0] == call.arriving[1] else None

    def output_shape(self, module: Add, *arriving: Shape) -> Shape:
        must_fit(len(arriving) == 2 and len(set(arriving)) == 1, module, *arriving)
        return arriving[0]

    def follow(self, module: Add, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        search.join(*arriving)
        return arriving[0]

    def examples(self) -> Sequence[Example]:
        return [(Add(), ((2, 3, 4), (2, 3, 4)))]


class MultiplyKind(Joint):
    """``Multiply``: a factor that is left out would be zero, so all writers of a unit are needed."""

    name, module, number, onnx = "multiply", Multiply, 17, "Mul"
    any_dtype = True
    calls = ("aten.mul.Tensor",)

    def captured(self, call: Captured) -> nn.Module | None:
        if not (call.is_value("self") and call.is_value("other")):
            return None
        try:
            self.output_shape(Multiply(), *call.arriving)
        except ValueError:
            return None
        return Multiply()

    def output_shape(self, module: Multiply, *arriving: Shape) -> Shape:
        must_fit(len(arriving) == 2 and len({len(each) for each in arriving}) == 1, module, *arriving)
        left, right = arriving
        places = list(zip(left[2:], right[2:], strict=True))
        broadcast = all(one == other or min(one, other) == 1 for one, other in places)
        must_fit(left[:2] == right[:2] and broadcast, module, *arriving)
        return (*left[:2], *[max(pair) for pair in places])

    def follow(self, module: Multiply, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        first, *others = meeting(arriving, leaving, search) or [search.whole(leaving)]
        for other in others:
            search.tie(first)
            search.join(first, other)
        return first

    def examples(self) -> Sequence[Example]:
        return [(Multiply(), ((2, 3, 4, 5), (2, 3, 1, 1))), (Multiply(), ((2, 3), (2, 3)))]


class ConcatKind(Joint):
    """``Concat``: each value keeps its units."""

    name, module, number, onnx, onnx_attributes, count = "concat", Concat, 18, "Concat", {"axis": 1}, None
    any_dtype = True
    calls = ("aten.cat.default",)

    def captured(self, call: Captured) -> nn.Module | None:
        channels = call.plain("dim") % len(call.leaving) == 1
        return Concat() if channels and call.constant("tensors") is None and len(call.arriving) > 1 else None

    def output_shape(self, module: Concat, *arriving: Shape) -> Shape:
        rest = {(shape[0], *shape[2:]) for shape in arriving}
        must_fit(len(rest) == 1, module, *arriving)
        first = arriving[0]
        return (first[0], sum(shape[1] for shape in arriving), *first[2:])

    def follow(self, module: Concat, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        if any(search.varies(units, axis) for units in arriving for axis in range(2, units.dim())):
            return torch.cat(arriving, 1)  # tokens side by side, whose channels go on
        return spread(torch.cat([search.along(units, 1) for units in arriving]), leaving, 1)

    def examples(self) -> Sequence[Example]:
        return [(Concat(), ((2, 3, 4), (2, 1, 4), (2, 3, 4)))]


class ShiftKind(Elementwise):
    """``Shift``: its numbers go with their channels."""

    name, module, number = "shift", Shift, 36
    arguments: ClassVar[Mapping[str, Argument]] = {"shape": Size()}
    weights = ("bias",)  # a learned tensor that is used directly, and no layer's bias

    def output_shape(self, module: Shift, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(shape[1:] == module.shape, module, shape)
        return shape

    def narrowed(self, module: Shift, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        bias = picked(module.bias, torch.from_numpy(leaving.index), leaving.axis - 1)
        shift = Shift(tuple(bias.shape))
        shift.bias = bias
        return shift

    def check(self, described: Mapping[str, Any]) -> None:
        bounded(*described["shape"])

    def untold(self) -> tuple[str, ...]:
        return ()

    def told(self, shape: Shape) -> dict[str, Any]:
        return {"shape": shape[1:]}

    def to_onnx(self, module: Shift, name: str, writer: OnnxWriter) -> None:
        writer.node("Add", name, writer.constant(f"{name}.bias", module.bias.numpy()))

    def examples(self) -> Sequence[Example]:
        shift = Shift((3, 4))
        shift.bias.data = torch.arange(12.0).reshape(3, 4)
        return [(shift, ((2, 3, 4),))]


KINDS = (AddKind, MultiplyKind, ConcatKind, ShiftKind)
