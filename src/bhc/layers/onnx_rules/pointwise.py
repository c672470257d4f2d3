"""Number by number: arithmetic, comparisons, choices, activations, casts."""

from collections.abc import Callable
from math import log, pi
from typing import Any

import torch

from bhc.layers.aten import SizeOf
from bhc.layers.onnx_rules import NodeCall, Rule, rule
from bhc.layers.protocols import wide


def unary(kind: str, **attributes: float) -> Rule:
    """One node for one value."""
    return lambda call: call.finished(call.node(kind, call.operand("self"), **attributes))


for operator, node in {
    "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "erf": "Erf", "tanh": "Tanh", "sigmoid": "Sigmoid", "abs": "Abs",
    "neg": "Neg", "sign": "Sign", "relu": "Relu", "selu": "Selu", "hardswish": "HardSwish",
}.items():  # fmt: skip
    rule(operator)(unary(node))
rule("hardsigmoid")(unary("HardSigmoid", alpha=1 / 6, beta=0.5))


def binary(kind: str) -> Rule:
    """One node for two values that meet."""
    return lambda call: call.finished(call.node(kind, call.operand("self"), call.operand("other")))


for operator, node in {
    "mul.Tensor": "Mul", "mul.Scalar": "Mul", "multiply.Tensor": "Mul", "maximum": "Max", "minimum": "Min",
    "max.other": "Max", "min.other": "Min", "bitwise_and.Tensor": "BitwiseAnd", "bitwise_or.Tensor": "BitwiseOr",
    "__and__.Tensor": "BitwiseAnd", "__or__.Tensor": "BitwiseOr",
}.items():  # fmt: skip
    rule(operator)(binary(node))


def comparison(kind: str, *, opposite: bool = False) -> Rule:
    def write(call: NodeCall) -> str:
        dtype = wide(promoted(call))
        met = call.node(kind, call.value("self", dtype), call.value("other", dtype))
        return call.node("Not", met) if opposite else met

    return write


for operator, node in {
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}.items():  # fmt: skip
    rule(f"{operator}.Scalar", f"{operator}.Tensor")(comparison(node))
rule("ne.Scalar", "ne.Tensor")(comparison("Equal", opposite=True))


def promoted(call: NodeCall) -> torch.dtype:
    """The dtype in which two values meet, as torch has it: plain numbers give way to tensors."""
    left, right = (_as_it_meets(call, name) for name in ("self", "other"))
    return torch.result_type(left, right)


def _as_it_meets(call: NodeCall, name: str) -> Any:
    match call.argument(name):
        case bool() | int() | float() as number:
            return number
        case SizeOf():
            return 1
    return call.like(name)


def logical(kind: str, *names: str) -> Rule:
    return lambda call: call.node(kind, *[call.value(name, torch.bool) for name in names])


rule("logical_not")(logical("Not", "self"))
for operator, node in {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}.items():
    rule(operator)(logical(node, "self", "other"))


@rule("bitwise_not")
def bitwise_not(call: NodeCall) -> str:
    if call.result.dtype == torch.bool:
        return call.node("Not", call.value("self"))
    return call.finished(call.node("BitwiseNot", call.operand("self")))


# Sums and quotients.


@rule("add.Tensor", "add.Scalar")
def add(call: NodeCall) -> str:
    return call.finished(call.node("Add", call.operand("self"), _scaled(call, "other")))


@rule("sub.Tensor", "sub.Scalar")
def sub(call: NodeCall) -> str:
    return call.finished(call.node("Sub", call.operand("self"), _scaled(call, "other")))


@rule("rsub.Tensor", "rsub.Scalar")
def rsub(call: NodeCall) -> str:
    return call.finished(call.node("Sub", call.operand("other"), _scaled(call, "self")))


def _scaled(call: NodeCall, name: str) -> str:
    alpha = call.plain("alpha")
    return call.operand(name) if alpha in (None, 1) else call.node("Mul", call.operand(name), alpha)


@rule("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def div(call: NodeCall) -> str:
    return _quotient(call, call.plain("rounding_mode"))


@rule("floor_divide")
def floor_divide(call: NodeCall) -> str:
    return _quotient(call, "floor")


def _quotient(call: NodeCall, mode: str | None) -> str:
    left, right = call.operand("self"), call.operand("other")
    if not call.dtype.is_floating_point and mode == "floor":  # ONNX's goes towards zero
        left = call.node("Sub", left, call.node("Mod", left, right))
    quotient = call.node("Div", left, right)
    if not call.dtype.is_floating_point or mode is None:
        return call.finished(quotient)
    return call.node("Floor", quotient) if mode == "floor" else _trunc(call, quotient)


@rule("remainder.Scalar", "remainder.Tensor")
def remainder(call: NodeCall) -> str:
    """With the sign of the divisor."""
    left, right = call.operand("self"), call.operand("other")
    if not call.dtype.is_floating_point:
        return call.finished(call.node("Mod", left, right))
    floor = call.node("Floor", call.node("Div", left, right))
    return call.node("Sub", left, call.node("Mul", floor, right))


@rule("fmod.Scalar", "fmod.Tensor")
def fmod(call: NodeCall) -> str:
    return call.finished(call.node("Mod", call.operand("self"), call.operand("other"), fmod=1))


@rule("pow.Tensor_Scalar", "pow.Scalar", "pow.Tensor_Tensor")
def power(call: NodeCall) -> str:
    base, exponent = call.operand("self"), call.argument("exponent")
    if exponent == 2:
        return call.finished(call.node("Mul", base, base))
    if exponent == 0.5:
        return call.node("Sqrt", base)
    return call.finished(call.node("Pow", base, call.operand("exponent")))


@rule("square")
def square(call: NodeCall) -> str:
    return call.finished(call.node("Mul", call.operand("self"), call.operand("self")))


@rule("lerp.Scalar", "lerp.Tensor")
def lerp(call: NodeCall) -> str:
    """``start + weight (end - start)``."""
    start = call.operand("self")
    way = call.node("Sub", call.operand("end"), start)
    return call.node("Add", start, call.node("Mul", call.operand("weight"), way))


@rule("addcmul")
def addcmul(call: NodeCall) -> str:
    return _with_tensors(call, "Mul")


@rule("addcdiv")
def addcdiv(call: NodeCall) -> str:
    return _with_tensors(call, "Div")


def _with_tensors(call: NodeCall, kind: str) -> str:
    met = call.node(kind, call.operand("tensor1"), call.operand("tensor2"))
    met = met if call.plain("value") == 1 else call.node("Mul", met, call.plain("value"))
    return call.finished(call.node("Add", call.operand("self"), met))


# Functions of one number that are more than a node.


def function(name: str) -> Callable[[Callable[[NodeCall, str], str]], Rule]:
    """The rule of an operator that makes something of ``x``, its first argument."""

    def register(write: Callable[[NodeCall, str], str]) -> Rule:
        return rule(name)(lambda call: call.finished(write(call, call.operand("self"))))

    return register


function("exp2")(lambda call, x: call.node("Pow", 2.0, x))
function("expm1")(lambda call, x: call.node("Sub", call.node("Exp", x), 1.0))
function("log1p")(lambda call, x: call.node("Log", call.node("Add", x, 1.0)))
function("log2")(lambda call, x: call.node("Div", call.node("Log", x), log(2)))
function("log10")(lambda call, x: call.node("Div", call.node("Log", x), log(10)))
function("rsqrt")(lambda call, x: call.node("Reciprocal", call.node("Sqrt", x)))
function("frac")(lambda call, x: call.node("Sub", x, _trunc(call, x)))
function("silu")(lambda call, x: call.node("Mul", x, call.node("Sigmoid", x)))
function("mish")(lambda call, x: call.node("Mul", x, call.node("Tanh", call.node("Softplus", x))))
function("log_sigmoid")(lambda call, x: call.node("Neg", call.node("Softplus", call.node("Neg", x))))
function("relu6")(lambda call, x: call.node("Clip", x, 0.0, 6.0))
function("hardtanh")(lambda call, x: call.node("Clip", x, call.plain("min_val"), call.plain("max_val")))
function("gelu")(lambda call, x: call.node("Gelu", x, approximate=call.plain("approximate")))
function("leaky_relu")(lambda call, x: call.node("LeakyRelu", x, alpha=float(call.plain("negative_slope"))))
function("celu")(lambda call, x: call.node("Celu", x, alpha=float(call.plain("alpha"))))
function("hardshrink")(lambda call, x: call.node("Shrink", x, lambd=float(call.plain("lambd")), bias=0.0))


def _trunc(call: NodeCall, x: str) -> str:
    return call.node("Mul", call.node("Sign", x), call.node("Floor", call.node("Abs", x)))


@rule("floor", "ceil", "round", "trunc")
def rounded(call: NodeCall) -> str:
    x = call.value("self")
    if not call.result.is_floating_point():
        return x
    return _trunc(call, x) if call.module.op == "trunc" else call.node(call.module.op.capitalize(), x)


@function("softshrink")
def softshrink(call: NodeCall, x: str) -> str:
    lambd = float(call.plain("lambd"))
    return call.node("Shrink", x, lambd=lambd, bias=lambd)


@function("elu")
def elu(call: NodeCall, x: str) -> str:
    if call.plain("input_scale") != 1:
        raise call.no_form("has a scale for its input")
    made = call.node("Elu", x, alpha=float(call.plain("alpha")))
    return made if call.plain("scale") == 1 else call.node("Mul", made, call.plain("scale"))


@function("softplus")
def softplus(call: NodeCall, x: str) -> str:
    """``log(1 + exp(beta x)) / beta``; beyond the threshold torch gives the value itself."""
    steeper = call.node("Mul", x, call.plain("beta"))
    curve = call.node("Div", call.node("Softplus", steeper), call.plain("beta"))
    return call.node("Where", call.node("Greater", steeper, call.plain("threshold")), x, curve)


@function("threshold")
def threshold(call: NodeCall, x: str) -> str:
    return call.node("Where", call.node("Greater", x, call.plain("threshold")), x, call.plain("value"))


@rule("prelu")
def prelu(call: NodeCall) -> str:
    """A slope for each channel, which is the second axis."""
    rank, channels = len(call.shape("self")), call.shape("weight")[0]
    slope = call.operand("weight")
    if channels > 1 and rank > 2:
        slope = call.node("Reshape", slope, [channels, *[1] * (rank - 2)])
    return call.node("PRelu", call.operand("self"), slope)


@rule("atan2")
def atan2(call: NodeCall) -> str:
    """The angle of (x, y): ``atan(y / x)``, half a turn more or less where x is negative; a right angle for x = 0."""
    y, x = call.operand("self"), call.operand("other")
    above = call.node("GreaterOrEqual", y, 0.0)
    half = call.node("Where", above, pi, -pi)
    right = call.node("Mul", call.node("Sign", y), pi / 2)
    angle = call.node("Atan", call.node("Div", y, x))
    angle = call.node("Where", call.node("Less", x, 0.0), call.node("Add", angle, half), angle)
    return call.node("Where", call.node("Equal", x, 0.0), right, angle)


# Bounds, choices, and numbers that are none.


@rule("clamp", "clamp.Tensor", "clamp_min", "clamp_max", "clamp_min.Tensor", "clamp_max.Tensor")
def clamp(call: NodeCall) -> str:
    made = call.operand("self")
    for name, kind in (("min", "Max"), ("max", "Min")):
        if call.argument(name) is not None:
            made = call.node(kind, made, call.operand(name))
    return call.finished(made)


@rule("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(call: NodeCall) -> str:
    condition = call.value("condition", torch.bool)
    return call.finished(call.node("Where", condition, call.operand("self"), call.operand("other")))


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(call: NodeCall) -> str:
    mask = call.value("mask", torch.bool)
    return call.finished(call.node("Where", mask, call.operand("value"), call.operand("self")))


@rule("isnan", "isinf")
def is_no_number(call: NodeCall) -> str:
    return call.node({"isnan": "IsNaN", "isinf": "IsInf"}[call.module.op], call.value("self", torch.float32))


@rule("nan_to_num")
def nan_to_num(call: NodeCall) -> str:
    x = call.operand("self")
    if not call.dtype.is_floating_point:
        return call.finished(x)
    largest = torch.finfo(call.dtype).max
    high, low = (call.plain(name) for name in ("posinf", "neginf"))
    made = call.node("Where", call.node("IsNaN", x), call.plain("nan") or 0.0, x)
    made = call.node("Where", call.node("IsInf", x, detect_negative=0), largest if high is None else high, made)
    return call.node("Where", call.node("IsInf", x, detect_positive=0), -largest if low is None else low, made)


@rule("_to_copy", "to.dtype", "to.dtype_layout", "to.device", "type_as", "lift_fresh_copy")
def cast(call: NodeCall) -> str:
    return call.value("self", call.result.dtype)


@rule("glu")
def glu(call: NodeCall) -> str:
    """One half of the channels by the sigmoid of the other."""
    axis = call.axis("self")
    half = call.fixed_size("self", axis) // 2
    first, second = (call.node("Slice", call.value("self"), [start], [start + half], [axis]) for start in (0, half))
    return call.node("Mul", first, call.node("Sigmoid", second))
