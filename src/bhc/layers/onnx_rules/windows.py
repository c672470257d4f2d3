"""Windows that slide over places: convolutions, pools; and places that are made more or fewer."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from bhc.layers.onnx_rules.movement import padded
from bhc.layers.onnx_rules.node_call import NodeCall, Rule, rule

PLACES = 2  # the first of their axes


def every(call: NodeCall, name: str, count: int, default: int = 0) -> list[int]:
    """An argument that stands for every direction, or gives one for each."""
    given = call.plain(name)
    listed = given if isinstance(given, list) else [given]
    listed = [default] if listed in ([], [None]) else listed
    return listed * count if len(listed) == 1 else listed


def directions(call: NodeCall, which: str) -> int:
    """In how many directions there are places; NoForm where a value has no batch or no channels."""
    count = len(call.shape(which)) - PLACES
    if f"{count}d" not in call.module.op and call.module.op != "convolution":
        raise call.no_form(f"reads a value of {count + PLACES} axes")
    return count


@rule("conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def convolution(call: NodeCall) -> str:
    return _convolved(call, "Conv", _conv_padding(call))


@rule("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def transposed_convolution(call: NodeCall) -> str:
    return _transposed(call)


@rule("convolution")
def either_convolution(call: NodeCall) -> str:
    return _transposed(call) if call.plain("transposed") else convolution(call)


def _transposed(call: NodeCall) -> str:
    count = directions(call, "input")
    more = every(call, "output_padding", count)
    return _convolved(call, "ConvTranspose", every(call, "padding", count) * 2, output_padding=more)


def _convolved(call: NodeCall, kind: str, pads: Sequence[int], **attributes: Any) -> str:
    count = directions(call, "input")
    biases = [] if call.argument("bias") is None else [call.operand("bias")]
    attributes |= {"strides": every(call, "stride", count, 1), "dilations": every(call, "dilation", count, 1)}
    values = call.operand("input"), call.operand("weight"), *biases
    return call.node(kind, *values, pads=pads, group=call.plain("groups"), **attributes)


def _conv_padding(call: NodeCall) -> list[int]:
    """Before each direction, then after each."""
    count = directions(call, "input")
    if call.plain("padding") == "same":
        kernel = call.shape("weight")[PLACES:]
        spans = [step * (size - 1) for step, size in zip(every(call, "dilation", count, 1), kernel, strict=True)]
        return [span // 2 for span in spans] + [span - span // 2 for span in spans]
    return [0] * 2 * count if call.plain("padding") == "valid" else every(call, "padding", count) * 2


# Pools.


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
