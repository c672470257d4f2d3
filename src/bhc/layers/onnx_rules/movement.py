"""Numbers that are moved, repeated, put beside others, made from nothing, or picked and written by whole numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bhc.layers.aten import Read, SizeOf
from bhc.layers.onnx_rules import BEYOND, NodeCall, Rule, rule

BEFORE = -BEYOND  # every place, counted from the end


@rule("reshape")
def reshape(call: NodeCall) -> str:
    """A size that stays where it is, is 0 in ONNX; one that follows from the others is -1."""
    wanted, source = call.argument("shape"), call.argument("self")
    rank = len(call.shape("self")) if isinstance(source, Read) else 0
    same = [SizeOf(((source.place, axis),)) for axis in range(rank)]
    sizes = [0 if size in same[axis : axis + 1] else size for axis, size in enumerate(wanted)]
    open_axes = [axis for axis, size in enumerate(sizes) if isinstance(size, SizeOf)]
    if open_axes and -1 not in sizes:
        sizes[open_axes[-1]] = -1
    return call.node("Reshape", call.value("self"), sizes)


@rule("permute")
def permute(call: NodeCall) -> str:
    rank = len(call.shape("self"))
    return call.node("Transpose", call.value("self"), perm=[axis % rank for axis in call.plain("dims")])


@rule("swapaxes")
def swapaxes(call: NodeCall) -> str:
    order, rank = list(range(len(call.shape("self")))), len(call.shape("self"))
    first, second = (call.plain(name) % rank for name in ("axis0", "axis1"))
    order[first], order[second] = second, first
    return call.node("Transpose", call.value("self"), perm=order)


@rule("expand")
def expand(call: NodeCall) -> str:
    """A size of -1 stays what it is, as 1 does in ONNX."""
    sizes = [1 if size == -1 else size for size in call.argument("size")]
    return call.node("Expand", call.value("self"), sizes)


@rule("expand_as", "reshape_as", "copy")
def as_another(call: NodeCall) -> str:
    """The shape of another value, or that of the one that is overwritten."""
    numbers, shaped = ("src", "self") if call.module.op == "copy" else ("self", "other")
    kind = "Reshape" if call.module.op == "reshape_as" else "Expand"
    return call.node(kind, call.value(numbers, call.result.dtype), call.node("Shape", call.value(shaped)))


@rule("slice.Tensor")
def slices(call: NodeCall) -> str:
    start, end, step = (call.argument(name) for name in ("start", "end", "step"))
    given = [[0 if start is None else start], [BEYOND if end is None else end], [call.axis("self")], [step]]
    return call.node("Slice", call.value("self"), *given)


@rule("select.int")
def select(call: NodeCall) -> str:
    index = call.argument("index")
    place = call.value(index) if isinstance(index, SizeOf) else np.array(index)
    return call.node("Gather", call.value("self"), place, axis=call.axis("self"))


@rule("cat")
def cat(call: NodeCall) -> str:
    parts = [part for part in call.argument("tensors") if call.shape(part) != (0,)]
    values = [call.value(part, call.result.dtype) for part in parts]
    return call.node("Concat", *values, axis=call.plain("dim") % call.result.dim())


@rule("stack")
def stack(call: NodeCall) -> str:
    axis = call.plain("dim") % call.result.dim()
    values = [call.value(part, call.result.dtype) for part in call.argument("tensors")]
    return call.node("Concat", *[call.node("Unsqueeze", value, [axis]) for value in values], axis=axis)


MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}  # of torch, of ONNX


@rule("pad", "constant_pad_nd")
def pad(call: NodeCall) -> str:
    mode, value = call.plain("mode") or "constant", call.argument("value")
    if mode != "constant":
        return call.node("Pad", call.value("self"), _ends(call), mode=MODES[mode])
    return padded(call, call.value("self"), _ends(call), call.value(0 if value is None else value, call.result.dtype))


def padded(call: NodeCall, x: str, ends: Sequence[int | SizeOf], fill: str | None = None) -> str:
    """One number before and after.

    The axes are named, all of them: otherwise onnxruntime lets a pool that follows pad, which then has the least number
    in the place of the fill, or is refused as smaller than its padding.
    """
    return call.node("Pad", x, ends, fill, [*range(len(ends) // 2)])


def _ends(call: NodeCall) -> list[int | SizeOf]:
    """torch tells both ends of the last axis first; ONNX all beginnings, then all ends."""
    given = call.argument("pad")
    rest = [0] * (len(call.shape("self")) - len(given) // 2)
    return [*rest, *given[-2::-2], *rest, *given[-1::-2]]


@rule("flip")
def flip(call: NodeCall) -> str:
    axes = call.plain("dims")
    backwards = [-1] * len(axes)
    return call.node("Slice", call.value("self"), backwards, [BEFORE] * len(axes), axes, backwards)


@rule("roll")
def roll(call: NodeCall) -> str:
    """The last numbers before the first."""
    made, shifts, axes = call.value("self"), call.plain("shifts"), call.plain("dims")
    if not axes:
        raise call.no_form("it rolls all axes as one")
    for shift, axis in zip(shifts, axes, strict=True):
        place = -shift % call.fixed_size("self", axis)
        if place:
            last, first = (call.node("Slice", made, [a], [b], [axis]) for a, b in ((place, BEYOND), (0, place)))
            made = call.node("Concat", last, first, axis=axis)
    return made


@rule("repeat", "tile")
def repeat(call: NodeCall) -> str:
    counts = list(call.argument("repeats" if call.module.op == "repeat" else "dims"))
    rank = len(call.shape("self"))
    x, missing = call.value("self"), max(len(counts) - rank, 0)
    if missing:
        x = call.node("Unsqueeze", x, list(range(missing)))
    return call.node("Tile", x, [1] * (rank - len(counts)) + counts)


@rule("pixel_shuffle")
def pixel_shuffle(call: NodeCall) -> str:
    if len(call.shape("self")) != 4:
        raise call.no_form("values have other axes than images")
    return call.node("DepthToSpace", call.value("self"), blocksize=call.plain("upscale_factor"), mode="CRD")


@rule("pixel_unshuffle")
def pixel_unshuffle(call: NodeCall) -> str:
    """ONNX has the places of a block before the channels, torch after them."""
    if len(call.shape("self")) != 4:
        raise call.no_form("values have other axes than images")
    channels, factor = call.fixed_size("self", 1), call.plain("downscale_factor")
    apart = call.node("SpaceToDepth", call.value("self"), blocksize=factor)
    order = np.arange(channels * factor**2).reshape(factor**2, channels).T.flatten()
    return call.node("Gather", apart, order, axis=1)


TRIANGULAR = (torch.float32, torch.int64, torch.bool)  # of which runtimes take triangles


@rule("tril", "triu")
def triangle(call: NodeCall) -> str:
    dtype = call.result.dtype if call.result.dtype in TRIANGULAR else torch.int64
    upper, diagonal = int(call.module.op == "triu"), np.array(call.plain("diagonal"))
    return call.cast(call.node("Trilu", call.value("self", dtype), diagonal, upper=upper), dtype, call.result.dtype)


@rule("meshgrid.indexing")
def meshgrid(call: NodeCall) -> str:
    """Line by line: the sizes of all, one of them along each axis."""
    lines = call.argument("tensors")
    order = list(range(len(lines)))
    if call.plain("indexing") == "xy":
        order[:2] = order[1::-1]
    asked = call.module.pick or 0
    along = [-1 if source == asked else 1 for source in order]
    line = call.node("Reshape", call.value(lines[asked]), along)
    return call.node("Expand", line, [call.size(lines[source], 0) for source in order])


@rule("slice_scatter")
def slice_scatter(call: NodeCall) -> str:
    if call.plain("step") != 1:
        raise call.no_form("it writes with a step")
    start, end = call.argument("start"), call.argument("end")
    source = call.value("src", call.result.dtype)
    return _between(call, 0 if start is None else start, source, BEYOND if end is None else end)


@rule("select_scatter")
def select_scatter(call: NodeCall) -> str:
    place = call.plain("index")
    source = call.node("Unsqueeze", call.value("src", call.result.dtype), [call.axis("self")])
    return _between(call, place, source, BEYOND if place == -1 else place + 1)


def _between(call: NodeCall, start: int | SizeOf, source: str, end: int | SizeOf) -> str:
    """What lies before the start, what is written, what lies from the end on."""
    axis, x = call.axis("self"), call.value("self")
    before, after = (call.node("Slice", x, [a], [b], [axis]) for a, b in ((0, start), (end, BEYOND)))
    return call.node("Concat", before, source, after, axis=axis)


# Numbers that are made: their sizes may be known only when the model runs.


def filled(call: NodeCall, number: Any, shape: Any) -> str:
    """One number everywhere."""
    return call.node("Expand", call.value(number, call.result.dtype), shape)


def constant(number: int) -> Rule:
    return lambda call: filled(call, number, call.argument("size"))


def constant_like(number: int) -> Rule:
    return lambda call: filled(call, number, call.node("Shape", call.value("self")))


rule("zeros", "new_zeros")(constant(0))
rule("ones", "new_ones")(constant(1))
rule("zeros_like", "zero")(constant_like(0))
rule("ones_like")(constant_like(1))


@rule("full", "new_full")
def full(call: NodeCall) -> str:
    return filled(call, call.argument("fill_value"), call.argument("size"))


@rule("full_like", "fill.Scalar", "fill.Tensor")
def full_like(call: NodeCall) -> str:
    name = "fill_value" if call.module.op == "full_like" else "value"
    return filled(call, call.argument(name), call.node("Shape", call.value("self")))


@rule("linspace", "eye", "eye.m")
def fixed(call: NodeCall) -> str:
    """What torch makes of plain arguments."""
    if any(isinstance(argument, SizeOf) for argument in call.module.arguments):
        raise call.no_form("its size is not fixed")
    return call.writer.shared(call.module().numpy())


@rule("arange", "arange.start", "arange.start_step")
def arange(call: NodeCall) -> str:
    """Steps that are no whole numbers would be counted in another precision when a model runs."""
    start, end, step = (call.argument(name) for name in ("start", "end", "step"))
    parts = (0 if start is None else start, end, 1 if step is None else step)
    if not any(isinstance(part, SizeOf) for part in parts) or any(isinstance(part, float) for part in parts):
        return fixed(call)
    return call.finished(call.node("Range", *[call.operand(part) for part in parts]))


@rule("embedding")
def embedding(call: NodeCall) -> str:
    return call.node("Gather", call.value("weight"), call.value("indices"), axis=0)


@rule("index_select")
def index_select(call: NodeCall) -> str:
    return call.node("Gather", call.value("self"), call.value("index"), axis=call.axis("self"))


@rule("gather")
def gather(call: NodeCall) -> str:
    return call.node("GatherElements", call.value("self"), call.value("index"), axis=call.axis("self"))


@rule("take_along_dim")
def take_along_dim(call: NodeCall) -> str:
    """Sizes of one are spread along the axes that are not picked from."""
    if call.plain("dim") is None:
        raise call.no_form("it picks from all axes as one")
    axis, rank = call.axis("self"), len(call.shape("self"))
    both = [call.value("self"), call.value("indices")]
    for place, (which, other) in enumerate((("self", "indices"), ("indices", "self"))):
        sizes = [1 if at == axis else call.size(other, at) for at in range(rank)]
        both[place] = call.node("Expand", call.value(which), sizes)
    return call.node("GatherElements", *both, axis=axis)


@rule("scatter.src", "scatter.value", "scatter_add")
def scatter(call: NodeCall) -> str:
    index, axis = call.value("index"), call.axis("self")
    if call.argument("src") is None:
        source = call.node("Expand", call.value("value", call.result.dtype), call.node("Shape", index))
    elif _as_large(call, "src", "index"):
        source = call.value("src")
    else:
        raise call.no_form("it writes some of the numbers that it is given")
    reduction = "add" if call.module.op == "scatter_add" else "none"
    return call.node("ScatterElements", call.value("self"), index, source, axis=axis, reduction=reduction)


def _as_large(call: NodeCall, *names: str) -> bool:
    """Whether values have the same sizes for every batch."""
    shapes = {call.shape(name) for name in names}
    fixed = {tuple(isinstance(call.size(name, at), int) for at in range(len(call.shape(name)))) for name in names}
    return len(shapes) == len(fixed) == 1


@rule("one_hot")
def one_hot(call: NodeCall) -> str:
    count = call.plain("num_classes")
    if count < 0:
        raise call.no_form("how many classes there are depends on the numbers")
    column = call.node("Unsqueeze", call.value("self", torch.int64), [-1])
    return call.cast(call.node("Equal", column, np.arange(count)), torch.bool, torch.int64)


@rule("repeat_interleave.self_int")
def repeat_interleave(call: NodeCall) -> str:
    """Place ``i`` of the result is place ``i // repeats``."""
    x, axis, repeats = call.value("self"), call.plain("dim"), call.plain("repeats")
    if axis is None:
        raise call.no_form("it repeats along all axes as one")
    axis %= len(call.shape("self"))
    size = call.size("self", axis)
    if not isinstance(size, SizeOf):
        return call.node("Gather", x, np.arange(size).repeat(repeats), axis=axis)
    places = call.node("Div", _range(call, SizeOf(size.axes, repeats)), [repeats])
    return call.node("Gather", x, places, axis=axis)


def _range(call: NodeCall, end: SizeOf) -> str:
    return call.node("Range", np.array(0), call.value(end), np.array(1))


@rule("unfold")
def unfold(call: NodeCall) -> str:
    """Windows along an axis, their places last."""
    axis, rank = call.axis("self", "dimension"), len(call.shape("self"))
    starts = np.arange(0, call.fixed_size("self", axis) - call.plain("size") + 1, call.plain("step"))
    picked = call.node("Gather", call.value("self"), starts[:, None] + np.arange(call.plain("size")), axis=axis)
    order = [*range(rank + 1)]
    order.append(order.pop(axis + 1))
    return call.node("Transpose", picked, perm=order)


@rule("diagonal")
def diagonal(call: NodeCall) -> str:
    """``x[i, i + offset]``, the places of the diagonal last."""
    rank, offset = len(call.shape("self")), call.plain("offset")
    axes = [call.axis("self", name) for name in ("dim1", "dim2")]
    rows, columns = (call.fixed_size("self", axis) for axis in axes)
    first = np.arange(min(rows + min(offset, 0), columns - max(offset, 0))) - min(offset, 0)
    moved = _picked(call, axes, np.stack([first, first + offset], axis=-1))
    return call.node("Transpose", moved, perm=[*range(1, rank - 1), 0])


def _picked(call: NodeCall, axes: Sequence[int], places: Any) -> str:
    """What stands at places, each a number for every axis in question; the axes of the places come first."""
    rest = [axis for axis in range(len(call.shape("self"))) if axis not in axes]
    turned = call.node("Transpose", call.value("self"), perm=[*axes, *rest])
    return call.node("GatherND", turned, places)


@rule("index.Tensor")
def index(call: NodeCall) -> str:
    """``x[:, i, j]``: along the axes that have an index. Those of the indices stand where theirs stood, or first."""
    given = {axis: part for axis, part in enumerate(call.argument("indices")) if part is not None}
    if any(call.like(part).dtype in (torch.bool, torch.uint8) for part in given.values()):
        raise call.no_form("how many numbers it picks depends on the numbers")
    indices = [call.value(part, torch.int64) for part in given.values()]
    axes = list(given)
    if len(axes) == 1:
        return call.node("Gather", call.value("self"), indices[0], axis=axes[0])
    shapes = [call.shape(part) for part in given.values()]
    count = len(np.broadcast_shapes(*shapes))
    picked = _picked(call, axes, _side_by_side(call, indices))
    if axes != list(range(axes[0], axes[-1] + 1)):  # with others between them, they come first
        return picked
    order = list(range(count + len(call.shape("self")) - len(axes)))
    before = order[count : count + axes[0]]
    return call.node("Transpose", picked, perm=[*before, *order[:count], *order[count + axes[0] :]])


def _side_by_side(call: NodeCall, indices: Sequence[str]) -> str:
    """Indices of one shape, as the numbers of each place."""
    total = indices[0]
    for other in indices[1:]:
        total = call.node("Add", total, other)
    shape = call.node("Shape", total)
    columns = [call.node("Unsqueeze", call.node("Expand", each, shape), [-1]) for each in indices]
    return call.node("Concat", *columns, axis=-1)
