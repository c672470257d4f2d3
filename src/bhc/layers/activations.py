"""Activations: applied number by number.

Most map zero to zero; what the others make of a unit that is switched off is not read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from bhc.layers.arguments import Argument, Choice, Real, Shape
from bhc.layers.kind import Elementwise, Example
from bhc.layers.protocols import Captured, CWriter, OnnxWriter, each_number, number


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


KINDS = (ReLU, ReLU6, LeakyReLU, ELU, SELU, GELU, SiLU, Tanh, Sigmoid, Hardswish, Hardsigmoid, Softplus)
