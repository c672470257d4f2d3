"""Along some axes: sums and extremes, variances, lengths of vectors, softmaxes, running sums, orders; windows that
slide over places; and places that are made more or fewer."""

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np
import torch

from bhc.layers.aten import SizeOf
from bhc.layers.onnx_rules import BEYOND, NodeCall, Rule, rule
from bhc.layers.onnx_rules.movement import padded
from bhc.layers.onnx_rules.weighted_calls import PLACES, directions, every
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


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(call: NodeCall) -> str:
    count, window = directions(call, "self"), _window(call)
    given = {**window, "dilations": every(call, "dilation", count, 1)}
    if call.module.pick != 1:
        return call.node("MaxPool", call.operand("self"), **given)
    area = prod(call.fixed_size("self", PLACES + axis) for axis in range(count))
    _, places = call.nodes("MaxPool", 2, call.value("self"), **given)
    return call.node("Mod", places, area)  # ONNX counts through all channels of all examples


@rule("max_unpool2d")
def max_unpool(call: NodeCall) -> str:
    """Each number at its place among zeros, counted through a channel."""
    if len(call.shape("self")) != 4:
        raise call.no_form("it reads a value without a batch")
    channels, size = call.fixed_size("self", 1), call.plain("output_size")
    numbers, places = (call.node("Reshape", call.value(name), [0, channels, -1]) for name in ("self", "indices"))
    batch = call.size("self", 0)
    zeros = call.node("Expand", 0.0, [batch, channels, prod(size)])
    put = call.node("ScatterElements", zeros, places, numbers, axis=2)
    return call.node("Reshape", put, [0, channels, *size])


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(call: NodeCall) -> str:
    """The padding is counted if it is asked for; what a window reads beyond it, where it rounds up, never is."""
    window, x = _window(call), call.operand("self")
    pads, count = window["pads"], directions(call, "self")
    own = every(call, "padding", count)
    if call.plain("count_include_pad") and any(own):
        flat = [0] * PLACES
        x = padded(call, x, [*flat, *own, *flat, *own])
        window["pads"] = [0] * count + [after - pad for after, pad in zip(pads[count:], own, strict=True)]
    divisor = call.plain("divisor_override")
    if divisor is None:
        return call.node("AveragePool", x, **window, count_include_pad=0)
    made = call.node("AveragePool", x, **window, count_include_pad=1)
    return call.node("Mul", made, prod(window["kernel_shape"]) / divisor)


def _window(call: NodeCall) -> dict[str, Any]:
    """Attributes; where the number of windows is rounded up, the padding at the end is as much larger."""
    count = directions(call, "self")
    kernel = every(call, "kernel_size", count)
    strides = every(call, "stride", count) if call.plain("stride") else kernel
    pads = every(call, "padding", count)
    after = list(pads)
    if call.plain("ceil_mode"):
        dilations = every(call, "dilation", count, 1)
        given = call.result.shape[PLACES:]
        for axis in range(count):
            size = call.fixed_size("self", PLACES + axis)
            end = (given[axis] - 1) * strides[axis] + dilations[axis] * (kernel[axis] - 1) + 1
            after[axis] = max(end - size - pads[axis], pads[axis])
    return {"kernel_shape": kernel, "strides": strides, "pads": [*pads, *after]}


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(call: NodeCall) -> str:
    """The means of windows of one size, or a product with their shares along each direction."""
    count, x = directions(call, "self"), call.operand("self")
    wanted = every(call, "output_size", count)
    if all(size == 1 for size in wanted):
        return call.node("ReduceMean", x, [*range(PLACES, PLACES + count)], keepdims=1)
    sizes = [call.fixed_size("self", PLACES + axis) for axis in range(count)]
    if all(size % given == 0 for size, given in zip(sizes, wanted, strict=True)):
        kernel = [size // given for size, given in zip(sizes, wanted, strict=True)]
        return call.node("AveragePool", x, kernel_shape=kernel, strides=kernel)
    letters = "abc"[:count]
    shares = [_shares(size, given) for size, given in zip(sizes, wanted, strict=True)]
    terms = ",".join(f"{letter}{letter.upper()}" for letter in letters)
    return call.node("Einsum", x, *shares, equation=f"nz{letters},{terms}->nz{letters.upper()}")


def _bounds(size: int, given: int) -> list[tuple[int, int]]:
    """The windows that torch takes."""
    return [(place * size // given, -(-(place + 1) * size // given)) for place in range(given)]


def _shares(size: int, given: int) -> np.ndarray:  # (size, given)
    shares = np.zeros((size, given), dtype=np.float32)
    for place, (start, end) in enumerate(_bounds(size, given)):
        shares[start:end, place] = 1 / (end - start)
    return shares


@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(call: NodeCall) -> str:
    """Along each direction in turn; places of a window that is shorter than others are read twice."""
    if call.module.pick == 1:
        raise call.no_form("its places are asked for")
    count, made = directions(call, "self"), call.operand("self")
    wanted = every(call, "output_size", count)
    if all(size == 1 for size in wanted):
        return call.node("ReduceMax", made, [*range(PLACES, PLACES + count)], keepdims=1)
    for axis, given in enumerate(wanted, start=PLACES):
        windows = _bounds(call.fixed_size("self", axis), given)
        longest = max(end - start for start, end in windows)
        places = np.array([[min(start + at, end - 1) for at in range(longest)] for start, end in windows])
        made = call.node("ReduceMax", call.node("Gather", made, places, axis=axis), [axis + 1], keepdims=0)
    return made


# Windows as columns, and back.


@rule("im2col")
def im2col(call: NodeCall) -> str:
    """(N, C, H, W) -> (N, C kernel, windows)."""
    if len(call.shape("self")) != 4:
        raise call.no_form("it reads a value without a batch")
    kernel, pads, steps, strides = (every(call, name, 2) for name in ("kernel_size", "padding", "dilation", "stride"))
    channels = call.fixed_size("self", 1)
    made = padded(call, call.value("self"), [0, 0, *pads, 0, 0, *pads]) if any(pads) else call.value("self")
    for axis in (3, 2):
        which = axis - PLACES
        size = call.fixed_size("self", axis) + 2 * pads[which]
        starts = np.arange(0, size - steps[which] * (kernel[which] - 1), strides[which])
        made = call.node("Gather", made, np.arange(kernel[which])[:, None] * steps[which] + starts, axis=axis)
    turned = call.node("Transpose", made, perm=[0, 1, 2, 4, 3, 5])  # of (N, C, kernel, rows, kernel, columns)
    return call.node("Reshape", turned, [0, channels * prod(kernel), -1])


@rule("col2im")
def col2im(call: NodeCall) -> str:
    """Each column where its window was, sums where windows meet: a transposed convolution with ones at one place."""
    kernel, pads, steps, strides = (every(call, name, 2) for name in ("kernel_size", "padding", "dilation", "stride"))
    size, area = call.plain("output_size"), prod(kernel)
    if len(call.shape("self")) != 3:
        raise call.no_form("it reads a value without a batch")
    spans = [step * (width - 1) + 1 for step, width in zip(steps, kernel, strict=True)]
    counts = [(size[at] + 2 * pads[at] - spans[at]) // strides[at] + 1 for at in (0, 1)]
    more = [size[at] + 2 * pads[at] - spans[at] - (counts[at] - 1) * strides[at] for at in (0, 1)]
    channels = call.fixed_size("self", 1) // area
    ones = np.tile(np.eye(area, dtype=np.float32).reshape(area, 1, *kernel), (channels, 1, 1, 1))
    columns = call.node("Reshape", call.operand("self"), [0, channels * area, *counts])
    return call.node(
        "ConvTranspose", columns, ones, strides=strides, dilations=steps, pads=pads * 2, output_padding=more,
        group=channels,
    )  # fmt: skip


# Places made more or fewer.


def resized(mode: str, **attributes: Any) -> Rule:
    def write(call: NodeCall) -> str:
        which = "self" if call.argument("self") is not None else "input"
        axes = [*range(PLACES, len(call.shape(which)))]
        coordinates = "align_corners" if call.plain("align_corners") else "half_pixel"
        given = {"coordinate_transformation_mode": coordinates} | attributes
        if call.plain("scale_factors"):
            scales = _scales(call, which, call.plain("scale_factors"))
            return call.node("Resize", call.operand(which), None, scales, mode=mode, axes=axes, **given)
        sizes = call.argument("output_size")
        return call.node("Resize", call.operand(which), None, None, sizes, mode=mode, axes=axes, **given)

    return write


def _scales(call: NodeCall, which: str, factors: Sequence[float]) -> np.ndarray:
    """Factors, where runtimes find the same sizes with them, in single precision, as torch does in double."""
    scales = np.array(factors, dtype=np.float32)
    for axis, (factor, scale) in enumerate(zip(factors, scales, strict=True), start=PLACES):
        if float(scale) != factor and int(call.fixed_size(which, axis) * scale) != call.result.shape[axis]:
            raise call.no_form(f"a factor of {factor} makes another size in single precision")
    return scales


nearest = resized("nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
rule("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec", "upsample_nearest2d")(nearest)
linear = resized("linear")
rule("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bilinear2d")(linear)
rule("upsample_bicubic2d.vec")(resized("cubic", cubic_coeff_a=-0.75))


@rule("grid_sampler")
def grid_sampler(call: NodeCall) -> str:
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    return call.node(
        "GridSample", call.operand("input"), call.operand("grid"), mode=modes[call.plain("interpolation_mode")],
        padding_mode=paddings[call.plain("padding_mode")], align_corners=int(call.plain("align_corners")),
    )  # fmt: skip
