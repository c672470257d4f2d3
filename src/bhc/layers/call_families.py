"""Calls by what they do with channels: moving numbers, or number by number.

Who moves numbers moves their units, and sizes among its arguments follow a cut. An operator is of the first family here
that covers it.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from bhc.layers.arguments import Kept, Shape
from bhc.layers.aten import AtenCall, Own, Read, SizeOf, operator
from bhc.layers.calls import AtenKind, with_own, with_own_narrowed
from bhc.layers.kind import Example, join_along, meeting, own_copy
from bhc.layers.protocols import UnitSearch
from bhc.layers.reshape import laid_anew


def axes_of(module: AtenCall, argument: str, dimensions: int) -> Sequence[int]:
    """The axes that an argument names; without any it means the numbers as they lie in memory."""
    axes = module.argument(argument)
    if axes is None or axes == []:
        return range(dimensions)
    return [axis % dimensions for axis in (axes if isinstance(axes, list) else [axes])]


class Movement(AtenCall):
    """Numbers that are moved, picked, repeated or put beside others; none of them changes."""

    family: ClassVar[str] = "movement"

    @classmethod
    def covers(cls, target: str) -> bool:
        return target.split(".")[1] in MOVES


class MovementKind(AtenKind):
    """Units are moved as the numbers are; sizes in its arguments are those of what stays."""

    name, module = Movement.family, Movement

    def follow(self, module: Movement, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        move = MOVES[module.op]
        for units in arriving:
            move.prepare(module, search, units, len(leaving))
        given = move.units(module, search, leaving, arriving)
        return laid_anew(search, arriving[0], given) if module.op == "reshape" and arriving else given

    def narrowed(self, module: Movement, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        return MOVES[module.op].narrowed(module, arriving, leaving)

    def examples(self) -> Sequence[Example]:
        turned = Movement("aten.permute.default", [Read(0), [0, 2, 1]])
        heads = Movement("aten.reshape.default", [Read(0), [SizeOf(((0, 0),)), 2, 3, 4]])
        return [(turned, ((2, 3, 4),)), (heads, ((2, 6, 4),))]


def _moved(module: AtenCall, search: UnitSearch, leaving: Shape, arriving: Sequence[Tensor]) -> Tensor:
    """The units, moved by the operator itself."""
    shadowed = module.with_arguments()
    for name, argument in module.owned():
        if argument not in ("index", "indices"):  # these say where, and are moved nowhere
            shape = tuple(getattr(module, name).shape)
            shadowed._parameters.pop(name, None)
            shadowed._buffers[name] = search.constants(shape)
    if module.op in FLOATS_ONLY:
        return shadowed(*[units.double() for units in arriving]).long()
    return shadowed(*arriving)


def _padded(module: AtenCall, search: UnitSearch, leaving: Shape, units: Tensor) -> Tensor:
    """Zeros of its own along the axis of the units; the same units along all others."""
    before = _pads(module, units.dim())
    for axis in range(units.dim()):
        low, high = before[axis]
        if not (low or high):
            continue
        if search.varies(units, axis):
            line = search.along(units, axis)
            inside = line[max(-low, 0) : len(line) - max(-high, 0)]
            line = torch.cat([search.constants((max(low, 0),)), inside, search.constants((max(high, 0),))])
            sizes = [1] * units.dim()
            sizes[axis] = len(line)
            units = line.reshape(sizes)
        else:
            units = units.narrow(axis, 0, 1)
    return units.expand(leaving)


def _pads(module: AtenCall, dimensions: int) -> list[tuple[int, int]]:
    """What is added before and after each axis."""
    flat = list(module.argument("pad"))
    pairs = [(flat[place], flat[place + 1]) for place in range(0, len(flat), 2)]
    return [(0, 0)] * (dimensions - len(pairs)) + pairs[::-1]


class Move:
    """One operator that moves numbers: which axes it mixes, and what its arguments become after a cut."""

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        """Axes along which it cannot be cut."""
        return ()

    def prepare(self, module: AtenCall, search: UnitSearch, units: Tensor, dimensions: int) -> None:
        """What must be so of the units that arrive before they can be moved."""
        join_along(search, units, [axis for axis in self.mixed(module, dimensions) if axis < units.dim()])

    def units(self, module: AtenCall, search: UnitSearch, leaving: Shape, arriving: Sequence[Tensor]) -> Tensor:
        """Those of what it gives: moved by the operator itself."""
        return _moved(module, search, leaving, arriving)

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        return with_own_narrowed(module, leaving) if _moves_its_own(module) else own_copy(module)


def _moves_its_own(module: AtenCall) -> bool:
    """Whether it is numbers of its own that are moved, to where there are as many as a batch has examples."""
    return isinstance(module.argument("self"), Own)


class Resize(Move):
    """Sizes of the result among the arguments."""

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        name = "shape" if module.op == "reshape" else "size"
        sizes = [_resized(size, axis, arriving, leaving) for axis, size in enumerate(module.argument(name))]
        return with_own_narrowed(module.with_arguments(**{name: sizes}), leaving)


def _resized(size: int | SizeOf, axis: int, arriving: Sequence[Kept], leaving: Kept) -> int | SizeOf:
    """A size of the result for what stays; one that depends on others, which may have been cut, in proportion."""
    if size == -1 or (type(size) is int and leaving.size(axis) is None):
        return size
    if not isinstance(size, SizeOf):
        return leaving.size(axis) if size == leaving.places(axis) else size  # type: ignore[return-value]
    factor = leaving.part(axis)
    for place, own in size.axes:
        factor /= arriving[place].part(own)
    factor *= Fraction(size.times, size.over)
    return SizeOf(size.axes, factor.numerator, factor.denominator)


class Zeros(Resize):
    """Zeros of a size, such as the first state of a recurrence: they go with the units that they meet.

    They are the same for all examples, and along the first axis.
    """

    def prepare(self, module: AtenCall, search: UnitSearch, units: Tensor, dimensions: int) -> None:
        """Of what it reads it takes the size of the batch alone."""

    def units(self, module: AtenCall, search: UnitSearch, leaving: Shape, arriving: Sequence[Tensor]) -> Tensor:
        return search.constants((1, *leaving[1:])).expand(leaving)


class Cut(Move):
    """``x[start:end]`` along an axis."""

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        fixed = not any(isinstance(module.argument(name), SizeOf) for name in ("start", "end"))
        return () if fixed and module.argument("step") == 1 else (module.argument("dim") % dimensions,)

    def prepare(self, module: AtenCall, search: UnitSearch, units: Tensor, dimensions: int) -> None:
        """Where it starts in what stays must be the same for all heads."""
        super().prepare(module, search, units, dimensions)
        start, axis = module.argument("start"), module.argument("dim")
        if type(start) is int and start % units.shape[axis]:
            search.heads.apart(units.narrow(axis, 0, start % units.shape[axis]))

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        kept, axis = arriving[0], module.argument("dim")
        if _moves_its_own(module) or kept.size(axis) in (None, kept.places(axis)):
            return super().narrowed(module, arriving, leaving)
        start, end, _ = slice(module.argument("start"), module.argument("end")).indices(kept.places(axis))
        first, last = (kept.before(axis, place) for place in (start, end))
        return own_copy(module.with_arguments(start=first, end=last))


class Pick(Move):
    """``x[index]`` along an axis."""

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        return (module.argument("dim") % (dimensions + 1),)


class Reorder(Move):
    """``x[:, index]`` with numbers that are known: those of what stays are picked, at the places that they then have.

    One index serves all heads, so where units differ along other axes too it is not cut.
    """

    def prepare(self, module: AtenCall, search: UnitSearch, units: Tensor, dimensions: int) -> None:
        axis = module.argument("dim") % dimensions
        varying = [other for other in range(units.dim()) if search.varies(units, other)]
        if varying != [axis] or axis == 0 or not isinstance(module.argument("index"), Own):
            join_along(search, units, [axis])

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        if leaving.axis != module.argument("dim") % leaving.dimensions or not isinstance(module.argument("self"), Read):
            return super().narrowed(module, arriving, leaving)
        name = module.argument("index").name
        index = getattr(module, name)
        places = torch.from_numpy(np.cumsum(arriving[0].mask) - 1).to(index)
        return with_own(module, {name: places[index[torch.from_numpy(leaving.mask)]]})


class Mix(Move):
    """Mixes the places of the axes that an argument names."""

    def __init__(self, argument: str) -> None:
        self.name = argument

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        return axes_of(module, self.name, dimensions)


class PickEach(Move):
    """``x[..., i, j]`` with numbers of its own that say where: what is not picked from goes on."""

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        return [axis for axis, index in enumerate(module.argument("indices")) if index is not None]

    def units(self, module: AtenCall, search: UnitSearch, leaving: Shape, arriving: Sequence[Tensor]) -> Tensor:
        if len(arriving) == 1 and isinstance(module.argument("self"), Read):
            return _moved(module, search, leaving, arriving)
        for units in arriving:
            search.keep(units)
        return search.whole(leaving)

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        return own_copy(module)


class Pad(Move):
    """Zeros before and after; other modes mix."""

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        plain = module.argument("mode", "constant") == "constant" and module.argument("value") in (None, 0)
        return () if plain else [axis for axis, pair in enumerate(_pads(module, dimensions)) if any(pair)]

    def units(self, module: AtenCall, search: UnitSearch, leaving: Shape, arriving: Sequence[Tensor]) -> Tensor:
        return _padded(module, search, leaving, arriving[0])

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        low, high = _pads(module, leaving.dimensions)[leaving.axis]
        if not (low or high):
            return own_copy(module)
        flat = list(module.argument("pad"))
        place = 2 * (leaving.dimensions - 1 - leaving.axis)
        kept, given = arriving[0].mask, leaving.mask
        before = int(given[:low].sum()) if low > 0 else -int(kept[:-low].sum()) if low else 0
        after = int(given[len(given) - high :].sum()) if high > 0 else -int(kept[high:].sum()) if high else 0
        flat[place : place + 2] = [before, after]
        return own_copy(module.with_arguments(pad=flat))


MOVES: dict[str, Move] = {
    "reshape": Resize(),
    "expand": Resize(),
    "permute": Move(),
    "slice": Cut(),
    "select": Pick(),
    "cat": Move(),
    "pad": Pad(),
    "constant_pad_nd": Pad(),
    "flip": Move(),
    "roll": Mix("dims"),
    "repeat": Move(),
    "repeat_interleave": Move(),
    "tile": Move(),
    "pixel_shuffle": Move(),
    "pixel_unshuffle": Move(),
    "im2col": Move(),
    "index_select": Reorder(),
    "index": PickEach(),
    "zeros": Zeros(),
    "new_zeros": Zeros(),
}
FLOATS_ONLY = ("im2col", "pixel_shuffle", "pixel_unshuffle")


# Without torch's mark, or marked as something else.
ALSO_POINTWISE = ("_to_copy", "to", "dropout", "where", "clamp", "prelu", "masked_fill", "addcmul", "lerp", "type_as")
SUMS = ("add", "sub", "rsub", "_to_copy", "to", "type_as", "neg")  # a part that is left out adds nothing


class Pointwise(AtenCall):
    """Each number of the result from those at the same place of what it reads, as shapes are broadcast."""

    family: ClassVar[str] = "pointwise"

    @classmethod
    def covers(cls, target: str) -> bool:
        op = target.split(".")[1]
        return torch.Tag.pointwise in getattr(operator(target), "tags", ()) or op in ALSO_POINTWISE


class PointwiseKind(AtenKind):
    """What meets at one place lives and dies together; the step's own numbers go with them."""

    name, module = Pointwise.family, Pointwise

    def follow(self, module: Pointwise, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        met = meeting([units for units in arriving if _fits(units.shape, leaving)], leaving, search)
        if not met:
            return search.whole(leaving)
        first, *others = met
        for other in others:
            search.join(first, other)
        if others and module.op not in SUMS:
            search.tie(first)  # a factor that is left out would be zero
        return first

    def narrowed(self, module: Pointwise, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        if module.op == "prelu":  # its numbers lie along the second axis, and have no other
            return with_own_narrowed(module, Kept(0, leaving.mask, 1)) if leaving.axis == 1 else own_copy(module)
        return with_own_narrowed(module, leaving)

    def examples(self) -> Sequence[Example]:
        gain = nn.Parameter(torch.tensor([[1.0], [2.0], [3.0]]), requires_grad=False)
        scaled = Pointwise("aten.mul.Tensor", [Read(0), Own("own0")], own={"own0": gain})
        both = Pointwise("aten.maximum.default", [Read(0), Read(1)])
        return [(scaled, ((2, 3, 4),)), (both, ((2, 3, 4), (2, 3, 4)))]


def _fits(shape: Sequence[int], leaving: Shape) -> bool:
    pairs = zip(reversed(shape), reversed(leaving), strict=False)
    return len(shape) <= len(leaving) and all(size in (1, wanted) for size, wanted in pairs)


KINDS = (PointwiseKind, MovementKind)
