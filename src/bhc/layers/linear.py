"""Linear layers: a product with the last axis."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from bhc.layers.arguments import Argument, Shape, Size, does_not_take, expect, unknown
from bhc.layers.kind import Example, Weighted, bare_copy, fixed, positive_sizes
from bhc.layers.protocols import Captured, CWriter, FileReader, FileWriter, OnnxWriter, Operators


class Linear(Weighted):
    """``nn.Linear``: (N, ..., I) -> (N, ..., O)."""

    name, module, number = "linear", nn.Linear, 0
    arguments: ClassVar[Mapping[str, Argument]] = {"in_features": Size(), "out_features": Size()}
    in_axis = out_axis = -1
    calls = ("aten.linear.default",)

    def captured(self, call: Captured) -> nn.Module | None:
        weight, bias = call.constant("weight"), call.constant("bias")
        if weight is None or not call.is_value("input") or call.is_value("bias"):
            return None
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        return with_numbers(linear, weight, bias)

    def output_shape(self, module: nn.Linear, *arriving: Shape) -> Shape:
        (shape,) = arriving
        expect(len(shape) > 1 and shape[-1] == module.in_features, does_not_take(module, shape))
        return (*shape[:-1], module.out_features)

    def operator(self, module: nn.Linear, operators: Operators) -> Any:
        return operators.linear()

    def smaller(self, module: nn.Linear, weight: Tensor, bias: Tensor | None, kept_inputs: Tensor) -> nn.Module:
        linear = bare_copy(module)
        linear.out_features, linear.in_features = weight.shape
        return with_numbers(linear, weight, bias)

    def check(self, described: Mapping[str, Any]) -> None:
        positive_sizes(described, "in_features", "out_features")

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
