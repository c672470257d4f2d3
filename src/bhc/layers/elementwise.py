"""Number by number: activations; and values that meet: sums, products, values side by side, learned numbers that are
added.

Most activations map zero to zero; what the others make of a unit that is switched off is not read.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bhc.layers.arguments import Argument, Choice, Kept, Real, Shape, Size, bounded, must_fit
from bhc.layers.kind import Elementwise, Example, NoForm, Uncut, meeting, picked, spread
from bhc.layers.protocols import (
    ELEMENTS,
    Captured,
    CWriter,
    FileReader,
    OnnxValue,
    OnnxWriter,
    UnitSearch,
    each_number,
    number,
    wide,
)


class Activation(Elementwise):
    """One ONNX node and one C expression, unless a kind says otherwise."""

    onnx: ClassVar[str | None] = None
    onnx_attributes: ClassVar[Mapping[str, str]] = {}  # the node's names for the module's
    c: ClassVar[str | None] = None  # of ``v``, the value
    c_needs_math: ClassVar[bool] = False

    def to_onnx(self, module: Any, name: str, writer: OnnxWriter) -> None:
        if self.onnx is None:
            super().to_onnx(module, name, writer)
            return
        values = {key: getattr(module, source) for key, source in self.onnx_attributes.items()}
        # A whole number would become an integer attribute, which these nodes do not take.
        writer.node(self.onnx, name, **{key: v if isinstance(v, str) else float(v) for key, v in values.items()})

    def c_expression(self, module: Any) -> str | None:
        """What becomes of ``v``."""
        return self.c

    def c_obstacle(self, module: Any, arriving: Shape) -> str | None:
        return None if self.c_expression(module) is not None else f"is a {type(module).__name__}"

    def to_c(self, module: Any, name: str, arriving: Shape, leaving: Shape, writer: CWriter) -> None:
        each_number(writer, name, arriving, str(self.c_expression(module)), math=self.c_needs_math)

    def examples(self) -> Sequence[Example]:
        return [(self.module(), ((2, 3, 4),))]


class ReLU(Activation):
    name, module, number, rises = "relu", nn.ReLU, 2, True
    calls = ("aten.relu.default",)
    onnx, c = "Relu", "v > 0.0f ? v : 0.0f"


class ReLU6(Activation):
    name, module, number, rises = "relu6", nn.ReLU6, 3, True
    calls = ("aten.hardtanh.default", "aten.relu6.default")
    c = "v > 6.0f ? 6.0f : (v > 0.0f ? v : 0.0f)"

    def captured(self, call: Captured) -> nn.Module | None:
        if call.target == "aten.hardtanh.default" and (call.plain("min_val"), call.plain("max_val")) != (0, 6):
            return None
        return nn.ReLU6()

    def to_onnx(self, module: nn.ReLU6, name: str, writer: OnnxWriter) -> None:
        writer.node("Clip", name, writer.number(f"{name}.low", 0.0), writer.number(f"{name}.high", 6.0))


class LeakyReLU(Activation):
    name, module, number = "leaky-relu", nn.LeakyReLU, 4
    calls = ("aten.leaky_relu.default",)
    arguments: ClassVar[Mapping[str, Argument]] = {"negative_slope": Real()}
    onnx, onnx_attributes = "LeakyRelu", {"alpha": "negative_slope"}

    def c_expression(self, module: nn.LeakyReLU) -> str:
        return f"v > 0.0f ? v : v * {number(module, 'negative_slope')}"


class ELU(Activation):
    name, module, number, rises = "elu", nn.ELU, 5, True
    calls = ("aten.elu.default",)
    arguments: ClassVar[Mapping[str, Argument]] = {"alpha": Real()}
    onnx, onnx_attributes, c_needs_math = "Elu", {"alpha": "alpha"}, True

    def captured(self, call: Captured) -> nn.Module | None:
        return super().captured(call) if call.plain("scale") == call.plain("input_scale") == 1 else None

    def c_expression(self, module: nn.ELU) -> str:
        return f"v > 0.0f ? v : {number(module, 'alpha')} * expm1f(v)"


class SELU(Activation):
    name, module, number, rises = "selu", nn.SELU, 6, True
    calls = ("aten.selu.default",)
    onnx, c_needs_math = "Selu", True
    c = "1.05070099f * (v > 0.0f ? v : 1.67326324f * expm1f(v))"


class GELU(Activation):
    name, module, number = "gelu", nn.GELU, 7
    calls = ("aten.gelu.default",)
    arguments: ClassVar[Mapping[str, Argument]] = {"approximate": Choice(("none", "tanh"))}
    onnx, onnx_attributes, c_needs_math = "Gelu", {"approximate": "approximate"}, True

    def c_expression(self, module: nn.GELU) -> str:
        if module.approximate == "tanh":
            return "0.5f * v * (1.0f + tanhf(0.797884561f * (v + 0.044715f * v * v * v)))"
        return "0.5f * v * (1.0f + erff(v * 0.707106781f))"

    def examples(self) -> Sequence[Example]:
        return [(nn.GELU(), ((2, 3, 4),)), (nn.GELU("tanh"), ((2, 3),))]


class SiLU(Activation):
    name, module, number = "silu", nn.SiLU, 8
    calls = ("aten.silu.default",)
    c, c_needs_math = "v / (1.0f + expf(-v))", True

    def to_onnx(self, module: nn.SiLU, name: str, writer: OnnxWriter) -> None:
        writer.side_node("Sigmoid", f"{name}.sigmoid", writer.value)
        writer.node("Mul", name, f"{name}.sigmoid")


class Tanh(Activation):
    name, module, number, rises = "tanh", nn.Tanh, 9, True
    calls = ("aten.tanh.default",)
    onnx, c, c_needs_math = "Tanh", "tanhf(v)", True


class Sigmoid(Activation):
    name, module, number, onnx = "sigmoid", nn.Sigmoid, 29, "Sigmoid"
    calls = ("aten.sigmoid.default",)


class Hardswish(Activation):
    name, module, number, onnx = "hard-swish", nn.Hardswish, 30, "HardSwish"
    calls = ("aten.hardswish.default",)


class Hardsigmoid(Activation):
    name, module, number = "hard-sigmoid", nn.Hardsigmoid, 31
    calls = ("aten.hardsigmoid.default",)

    def to_onnx(self, module: nn.Hardsigmoid, name: str, writer: OnnxWriter) -> None:
        writer.node("HardSigmoid", name, alpha=1 / 6, beta=0.5)


class Softplus(Activation):
    name, module, number = "softplus", nn.Softplus, 32
    calls = ("aten.softplus.default",)
    arguments: ClassVar[Mapping[str, Argument]] = {"beta": Real(), "threshold": Real()}

    def to_onnx(self, module: nn.Softplus, name: str, writer: OnnxWriter) -> None:
        arriving = writer.value
        writer.node("Mul", f"{name}.steeper", writer.number(f"{name}.beta", float(module.beta)))
        writer.side_node("Softplus", f"{name}.soft", f"{name}.steeper")
        writer.side_node("Div", f"{name}.curve", f"{name}.soft", f"{name}.beta")
        # Beyond the threshold torch gives the value itself.
        writer.node("Greater", f"{name}.straight", writer.number(f"{name}.threshold", float(module.threshold)))
        writer.node("Where", name, arriving, f"{name}.curve")


ACTIVATIONS = (ReLU, ReLU6, LeakyReLU, ELU, SELU, GELU, SiLU, Tanh, Sigmoid, Hardswish, Hardsigmoid, Softplus)


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


JOINS = (AddKind, MultiplyKind, ConcatKind, ShiftKind)
