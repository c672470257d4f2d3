"""Along some axes: sums and extremes, variances, lengths of vectors, softmaxes, running sums, orders; and norms."""

from math import inf, prod

import numpy as np
import torch

from bhc.layers.aten import SizeOf
from bhc.layers.onnx_rules.node_call import BEYOND, NodeCall, Rule, rule
from bhc.layers.protocols import wide


def axes_of(call: NodeCall) -> list[int]:
    """The axes that ``dim`` names; without any, all of them."""
    rank = len(call.shape("self"))
    axes = call.plain("dim")
    if axes is None or axes == []:
        return list(range(rank))
    return [axis % max(rank, 1) for axis in (axes if isinstance(axes, list) else [axes])]


def reduced(call: NodeCall, kind: str, x: str, *, keep: bool | None = None) -> str:
    """A node along these axes, which stay as sizes of one if ``keep``, or where the call says so."""
    keepdims = bool(call.plain("keepdim")) if keep is None else keep
    return call.node(kind, x, axes_of(call), keepdims=int(keepdims))


def reduction(kind: str) -> Rule:
    return lambda call: call.finished(reduced(call, kind, call.operand("self")))


for operators, node in {
    ("mean", "mean.dim"): "ReduceMean",
    ("sum", "sum.dim_IntList"): "ReduceSum",
    ("prod", "prod.dim_int"): "ReduceProd",
    ("amax", "max"): "ReduceMax",
    ("amin", "min"): "ReduceMin",
    ("logsumexp",): "ReduceLogSumExp",
}.items():
    rule(*operators)(reduction(node))


@rule("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def any_or_all(call: NodeCall) -> str:
    truths = call.cast(call.value("self", torch.bool), torch.bool, torch.int32)
    kind = "ReduceMax" if call.module.op == "any" else "ReduceMin"
    return call.cast(reduced(call, kind, truths), torch.int32, call.result.dtype)


@rule("max.dim", "min.dim")
def extreme(call: NodeCall) -> str:
    """The extreme numbers, or where they are."""
    if call.module.pick == 1:
        return place_of_extreme(call)
    return call.finished(reduced(call, "ReduceMax" if call.module.op == "max" else "ReduceMin", call.operand("self")))


@rule("argmax", "argmin")
def place_of_extreme(call: NodeCall) -> str:
    """The first place of the extreme number along an axis, or among all numbers."""
    x, axis = call.value("self", wide(call.like("self").dtype)), call.plain("dim")
    if axis is None:
        x = call.node("Reshape", x, [-1])
    # Of 64-bit whole numbers runtimes find the largest in an order only.
    largest = int(call.module.op in ("max", "argmax"))
    _, place = call.nodes("TopK", 2, x, [1], axis=0 if axis is None else axis, largest=largest)
    if axis is None:
        return call.node("Reshape", place, [1] * call.result.dim())
    return place if call.plain("keepdim") else call.node("Squeeze", place, [axis])


@rule("topk", "sort", "sort.stable")
def topk(call: NodeCall) -> str:
    """Numbers in order, or where they were."""
    axis, sorting = call.axis("self"), call.module.op == "sort"
    count = call.size("self", axis) if sorting else call.argument("k")
    largest = call.plain("descending") if sorting else call.plain("largest")
    dtype = wide(call.like("self").dtype)
    numbers, places = call.nodes("TopK", 2, call.value("self", dtype), [count], axis=axis, largest=int(largest))
    return places if call.module.pick == 1 else call.cast(numbers, dtype, call.result.dtype)


# Variances, and lengths of vectors.


@rule("var.dim", "var.correction", "std.dim", "std.correction", "var_mean.correction")
def variance(call: NodeCall) -> str:
    """``sum (x - mean)^2 / (n - correction)``, its root, or the mean."""
    x = call.operand("self")
    if call.module.op == "var_mean" and call.module.pick == 1:
        return reduced(call, "ReduceMean", x)
    centred = call.node("Sub", x, reduced(call, "ReduceMean", x, keep=True))
    total = reduced(call, "ReduceSum", call.node("Mul", centred, centred))
    made = call.node("Div", total, _degrees_of_freedom(call))
    return call.node("Sqrt", made) if call.module.op == "std" else made


def _degrees_of_freedom(call: NodeCall) -> str:
    """How many numbers there are along the axes, less the correction."""
    unbiased, correction = call.plain("unbiased"), call.plain("correction")
    less = int(unbiased) if unbiased is not None else 1 if correction is None else correction
    count = call.value(number_along(call), call.dtype)
    return call.node("Max", call.node("Sub", count, less), 0)


def number_along(call: NodeCall) -> int | SizeOf:
    """Of numbers along the axes."""
    sizes = [call.size("self", axis) for axis in axes_of(call)]
    fixed = prod(size for size in sizes if not isinstance(size, SizeOf))
    places = tuple(place for size in sizes if isinstance(size, SizeOf) for place in size.axes)
    return SizeOf(places, fixed) if places else fixed


@rule("linalg_vector_norm", "norm.ScalarOpt_dim")
def vector_norm(call: NodeCall) -> str:
    """``(sum |x|^p)^(1/p)``."""
    order = call.plain("ord" if call.module.op == "linalg_vector_norm" else "p")
    x, order = call.operand("self"), 2 if order is None else order
    if order in (1, 2):
        return reduced(call, f"ReduceL{order:.0f}", x)
    size = call.node("Abs", x)
    if abs(order) == inf:
        return reduced(call, "ReduceMax" if order > 0 else "ReduceMin", size)
    if order == 0:
        return reduced(call, "ReduceSum", call.node("Sign", size))
    return call.node("Pow", reduced(call, "ReduceSum", call.node("Pow", size, order)), 1 / order)


@rule("cosine_similarity")
def cosine_similarity(call: NodeCall) -> str:
    """``x1 x2 / (|x1| |x2|)``, no length below ``eps``."""
    both, axis = [call.operand("x1"), call.operand("x2")], [call.plain("dim")]
    lengths = [call.node("ReduceL2", each, axis, keepdims=0) for each in both]
    first, second = (call.node("Max", length, call.plain("eps")) for length in lengths)
    product = call.node("ReduceSum", call.node("Mul", *both), axis, keepdims=0)
    return call.node("Div", product, call.node("Mul", first, second))


# What stays as large as it is.


@rule("softmax.int", "_softmax")
def softmax(call: NodeCall) -> str:
    return call.node("Softmax", call.operand("self"), axis=call.plain("dim"))


@rule("log_softmax.int", "_log_softmax")
def log_softmax(call: NodeCall) -> str:
    return call.node("LogSoftmax", call.operand("self"), axis=call.plain("dim"))


@rule("cumsum")
def cumsum(call: NodeCall) -> str:
    return call.finished(call.node("CumSum", call.operand("self"), np.array(call.plain("dim"))))


@rule("diff")
def diff(call: NodeCall) -> str:
    """Each number less the one before it, ``n`` times, after what is put before and behind."""
    if call.result.dtype == torch.bool:
        raise call.no_form("it subtracts truths")
    axis = call.axis("self")
    parts = [call.operand(name) for name in ("prepend", "self", "append") if call.argument(name) is not None]
    made = parts[0] if len(parts) == 1 else call.node("Concat", *parts, axis=axis)
    for _ in range(call.plain("n")):
        later, earlier = (call.node("Slice", made, [start], [end], [axis]) for start, end in ((1, BEYOND), (0, -1)))
        made = call.node("Sub", later, earlier)
    return call.finished(made)


def _only_first(call: NodeCall) -> None:
    """Statistics, which some give beside, have no rule."""
    if call.module.pick not in (None, 0):
        raise call.no_form("its statistics are asked for")


def _ones(count: int | list[int]) -> np.ndarray:
    return np.ones(count, dtype=np.float32)


def _given(call: NodeCall, name: str) -> str | None:
    return None if call.argument(name) is None else call.operand(name)


@rule("layer_norm", "native_layer_norm")
def layer_norm(call: NodeCall) -> str:
    _only_first(call)
    sizes = call.plain("normalized_shape")
    gain = _given(call, "weight") or _ones(sizes)
    return call.node(
        "LayerNormalization", call.operand("input"), gain, _given(call, "bias"), axis=-len(sizes), epsilon=_eps(call)
    )


def _eps(call: NodeCall) -> float:
    return float(call.plain("eps"))


@rule("rms_norm")
def rms_norm(call: NodeCall) -> str:
    """``x / sqrt(mean x^2 + eps)``, times a gain."""
    x, eps = call.operand("input"), call.plain("eps")
    eps = torch.finfo(call.dtype).eps if eps is None else eps
    axes = list(range(-len(call.plain("normalized_shape")), 0))
    power = call.node("ReduceMean", call.node("Mul", x, x), axes, keepdims=1)
    made = call.node("Div", x, call.node("Sqrt", call.node("Add", power, eps)))
    gain = _given(call, "weight")
    return made if gain is None else call.node("Mul", made, gain)


@rule("group_norm")
def group_norm(call: NodeCall) -> str:
    """The channels of a group as the places of one channel; a gain and a shift for each that it was made of."""
    return _by_groups(call, call.plain("num_groups"))


@rule("native_group_norm")
def native_group_norm(call: NodeCall) -> str:
    _only_first(call)
    return _by_groups(call, call.plain("group"))


def _by_groups(call: NodeCall, groups: int) -> str:
    x = call.operand("input")
    together = call.node("Reshape", x, [0, groups, -1])
    flat = call.node("InstanceNormalization", together, _ones(groups), 0 * _ones(groups), epsilon=_eps(call))
    return _scaled(call, call.node("Reshape", flat, call.node("Shape", x)))


def _scaled(call: NodeCall, x: str) -> str:
    """With a gain and a shift for each channel."""
    places = [1] * (len(call.shape("input")) - 2)
    for name, kind in (("weight", "Mul"), ("bias", "Add")):
        numbers = _given(call, name)
        if numbers is not None:
            x = call.node(kind, x, call.node("Reshape", numbers, [-1, *places]))
    return x


@rule("instance_norm")
def instance_norm(call: NodeCall) -> str:
    if not call.plain("use_input_stats"):
        return _by_statistics(call)
    return call.node("InstanceNormalization", call.operand("input"), *_by_channel(call), epsilon=_eps(call))


def _by_channel(call: NodeCall) -> tuple[str | np.ndarray, str | np.ndarray]:
    """A gain and a shift for each channel, also where there are none."""
    ones = _ones(call.fixed_size("input", 1))
    return _given(call, "weight") or ones, _given(call, "bias") or 0 * ones


@rule("batch_norm", "_native_batch_norm_legit_no_training")
def batch_norm(call: NodeCall) -> str:
    _only_first(call)
    if call.plain("training") or call.argument("running_mean") is None:
        raise call.no_form("an example's result depends on the others of its batch")
    return _by_statistics(call)


def _by_statistics(call: NodeCall) -> str:
    statistics = [call.operand("running_mean"), call.operand("running_var")]
    values = call.operand("input"), *_by_channel(call), *statistics
    return call.node("BatchNormalization", *values, epsilon=_eps(call))
