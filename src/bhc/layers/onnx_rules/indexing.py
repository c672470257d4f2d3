"""Numbers that are picked by whole numbers, or written where these say."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bhc.layers.aten import SizeOf
from bhc.layers.onnx_rules.node_call import NodeCall, rule


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
