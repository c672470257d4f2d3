"""Calls that move numbers: units are moved as the numbers are, and sizes among their arguments follow a cut."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from bhc.layers.asked import UnitSearch
from bhc.layers.aten import AtenCall, Own, Read, SizeOf
from bhc.layers.calls import AtenKind, with_own_narrowed
from bhc.layers.kind import Example
from bhc.layers.modules import own_copy
from bhc.layers.shapes import Kept, Shape


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
        for axis in MOVES[module.op].mixed(module, len(leaving)):
            for units in arriving:
                if axis < units.dim() and search.varies(units, axis):
                    search.keep(units)
        if module.op in ("pad", "constant_pad_nd"):
            return _padded(module, search, leaving, arriving[0])
        return _moved(module, search, leaving, arriving)

    def narrowed(self, module: Movement, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        return MOVES[module.op].narrowed(module, arriving, leaving)

    def examples(self) -> Sequence[Example]:
        turned = Movement("aten.permute.default", [Read(0), [0, 2, 1]])
        heads = Movement("aten.reshape.default", [Read(0), [SizeOf(((0, 0),)), 2, 3, 4]])
        return [(turned, ((2, 3, 4),)), (heads, ((2, 6, 4),))]


def _moved(module: Movement, search: UnitSearch, leaving: Shape, arriving: Sequence[Tensor]) -> Tensor:
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


def _padded(module: Movement, search: UnitSearch, leaving: Shape, units: Tensor) -> Tensor:
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

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        return with_own_narrowed(module, leaving) if _moves_its_own(module) else own_copy(module)


def _moves_its_own(module: AtenCall) -> bool:
    """Whether it is numbers of its own that are moved, to where there are as many as a batch has examples."""
    return isinstance(module.argument("self"), Own)


class Resize(Move):
    """Sizes of the result among the arguments."""

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        name = "shape" if module.op == "reshape" else "size"
        sizes = list(module.argument(name))
        from_last = leaving.dimensions - leaving.axis
        if type(sizes[-from_last]) is int and sizes[-from_last] == len(leaving.mask):
            sizes[-from_last] = int(leaving.mask.sum())
        return with_own_narrowed(module.with_arguments(**{name: sizes}), leaving)


class Cut(Move):
    """``x[start:end]`` along an axis."""

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        fixed = not any(isinstance(module.argument(name), SizeOf) for name in ("start", "end"))
        return () if fixed and module.argument("step") == 1 else (module.argument("dim") % dimensions,)

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        kept = arriving[0]
        if _moves_its_own(module) or module.argument("dim") % kept.dimensions != kept.axis or kept.mask.all():
            return super().narrowed(module, arriving, leaving)
        start, end, _ = slice(module.argument("start"), module.argument("end")).indices(len(kept.mask))
        start, end = (int(kept.mask[:place].sum()) for place in (start, end))
        return own_copy(module.with_arguments(start=start, end=end))


class Pick(Move):
    """``x[index]`` along an axis."""

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        return (module.argument("dim") % (dimensions + 1),)


class Mix(Move):
    """Mixes the places of the axes that an argument names."""

    def __init__(self, argument: str) -> None:
        self.name = argument

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        axes = module.argument(self.name)
        if axes is None or axes == []:  # of the numbers as they lie in memory
            return range(dimensions)
        return [axis % dimensions for axis in (axes if isinstance(axes, list) else [axes])]


class Pad(Move):
    """Zeros before and after; other modes mix."""

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        plain = module.argument("mode", "constant") == "constant" and module.argument("value") in (None, 0)
        return () if plain else [axis for axis, pair in enumerate(_pads(module, dimensions)) if any(pair)]

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
    "pixel_shuffle": Move(),
    "pixel_unshuffle": Move(),
    "im2col": Move(),
    "index_select": Mix("dim"),
}
FLOATS_ONLY = ("im2col", "pixel_shuffle", "pixel_unshuffle")


KINDS = (MovementKind,)
