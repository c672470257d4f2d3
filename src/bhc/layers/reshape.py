"""Numbers that are moved, picked or put somewhere; none of them changes."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.layers.arguments import LARGEST_ARGUMENT, LARGEST_SIZE, Argument, Kept, Shape, Size, bounded, must_fit, resized
from bhc.layers.kind import Example, LayerKind, Uncut, first_along, own_copy, spread
from bhc.layers.protocols import Captured, CWriter, FileReader, FileWriter, OnnxWriter, UnitSearch


def laid_anew(search: UnitSearch, units: Tensor, given: Tensor) -> Tensor:
    """Units in a new shape, as ``given``; which order they had, or have now, along one axis."""
    lines = []
    for each in (units, given):
        varying = [axis for axis in range(each.dim()) if search.varies(each, axis)]
        lines += [first_along(each, *varying)] if len(varying) == 2 else []
    if len(lines) == 1 or (len(lines) == 2 and not torch.equal(*lines)):
        for line in lines:
            search.heads.one_after_the_other(line)
    return given


class FlattenPlaces(nn.Module):
    """All directions in space as one: (N, C, ...) -> (N, C, T)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2)


class PadChannels(nn.Module):
    """Channels of zeros before and after those that arrive: half of a shortcut without weights."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0) * (x.dim() - 2) + (self.before, self.after))

    def extra_repr(self) -> str:
        return f"before={self.before}, after={self.after}"


class Select(nn.Module):
    """Keep the listed features of a flat input, or channels of another, in order: ``x[:, index]``."""

    index: Tensor

    def __init__(self, index: Tensor, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("index", index.long())

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(self.axis, self.index)

    def extra_repr(self) -> str:
        return f"kept={len(self.index)}" + ("" if self.axis == 1 else f", axis={self.axis}")


class ScatterChannels(nn.Module):
    """Channels put at their places among ``width``, zeros at the others: a layer that writes some of a stream."""

    index: Tensor

    def __init__(self, index: Tensor, width: int, axis: int = 1) -> None:
        super().__init__()
        self.width, self.axis = width, axis
        self.register_buffer("index", index.long())

    def forward(self, x: Tensor) -> Tensor:
        zeros = x.new_zeros(*resized(x.shape, self.axis, self.width))
        return zeros.index_copy(self.axis, self.index, x)

    def extra_repr(self) -> str:
        return f"width={self.width}, kept={len(self.index)}" + ("" if self.axis == 1 else f", axis={self.axis}")


class Flattening(Uncut):
    """Puts what lies along the last axes side by side; each number keeps its unit."""

    any_dtype = True
    calls = ("aten.reshape.default",)
    first: ClassVar[int]  # of these axes

    def captured(self, call: Captured) -> nn.Module | None:
        (shape,) = call.arriving
        flat = (*shape[: self.first], prod(shape[self.first :]))
        return self.module() if len(shape) > self.first + 1 and call.leaving == flat else None

    def output_shape(self, module: Any, *arriving: Shape) -> Shape:
        (shape,) = arriving
        return (*shape[: self.first], prod(shape[self.first :]))

    def follow(self, module: Any, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        return laid_anew(search, arriving[0], arriving[0].reshape(leaving))


class Flatten(Flattening):
    """``nn.Flatten``: a channel's places side by side, each with the channel's unit."""

    name, module, number, keeps_inputs_apart, first = "flatten", nn.Flatten, 12, True, 1

    def to_onnx(self, module: nn.Flatten, name: str, writer: OnnxWriter) -> None:
        writer.node("Flatten", name)

    def to_c(self, module: nn.Flatten, name: str, arriving: Shape, leaving: Shape, writer: CWriter) -> None:
        """Values lie flat already."""

    def examples(self) -> Sequence[Example]:
        return [(nn.Flatten(), ((2, 3, 4, 5),)), (nn.Flatten(), ((2, 3),))]


class FlattenPlacesKind(Flattening):
    name, module, number, first = "flatten-places", FlattenPlaces, 35, 2

    def output_shape(self, module: FlattenPlaces, *arriving: Shape) -> Shape:
        must_fit(len(arriving[0]) > 2, module, *arriving)
        return super().output_shape(module, *arriving)

    def to_onnx(self, module: FlattenPlaces, name: str, writer: OnnxWriter) -> None:
        # 0: as it comes.
        writer.node("Reshape", name, writer.constant(f"{name}.shape", np.array([0, 0, -1])))

    def examples(self) -> Sequence[Example]:
        return [(FlattenPlaces(), ((2, 3, 4, 5),))]


class PadChannelsKind(LayerKind):
    """``PadChannels``: zeros go with the units that they meet; others stay: they may become something."""

    name, module, number = "pad-channels", PadChannels, 22
    any_dtype = True
    calls = ("aten.pad.default", "aten.constant_pad_nd.default")
    arguments: ClassVar[Mapping[str, Argument]] = {"before": Size(), "after": Size()}

    def captured(self, call: Captured) -> nn.Module | None:
        padding, rest = list(call.plain("pad")), 2 * (len(call.arriving[0]) - 2)
        constant = call.plain("mode") in ("constant", None) and call.plain("value") in (None, 0)
        if not constant or len(padding) != rest + 2 or any(padding[:rest]) or min(padding) < 0:
            return None
        return PadChannels(*padding[rest:])

    def output_shape(self, module: PadChannels, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(all(0 <= count <= LARGEST_ARGUMENT for count in (module.before, module.after)), module, shape)
        return (shape[0], module.before + shape[1] + module.after, *shape[2:])

    def follow(self, module: PadChannels, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        if not search.varies(arriving[0], 1) and any(
            search.varies(arriving[0], axis) for axis in range(2, len(leaving))
        ):
            return arriving[0].narrow(1, 0, 1).expand(leaving)  # its zeros have the channels of their places
        before, after = (search.constants((count,)) for count in (module.before, module.after))
        return spread(torch.cat([before, search.along(arriving[0], 1), after]), leaving, 1)

    def narrowed(self, module: PadChannels, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        if leaving.axis != 1:
            return own_copy(module)
        before, after = leaving.mask[: module.before], leaving.mask[module.before + len(arriving[0].mask) :]
        return PadChannels(int(before.sum()), int(after.sum()))

    def to_onnx(self, module: PadChannels, name: str, writer: OnnxWriter) -> None:
        rest = [0] * (len(writer.arriving[name]) - 1)
        pads = np.array([0, module.before, *rest, 0, module.after, *rest])
        writer.node("Pad", name, writer.constant(f"{name}.pads", pads))

    def examples(self) -> Sequence[Example]:
        return [(PadChannels(1, 2), ((2, 3, 4),))]


class SelectKind(LayerKind):
    """``Select``: emission puts it before a layer that reads some of what arrives."""

    name, module, number = "select", Select, 14
    any_dtype = True

    def output_shape(self, module: Select, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(module.axis < len(shape) and _within(module.index, shape[module.axis]), module, shape)
        return resized(shape, module.axis, len(module.index))

    def follow(self, module: Select, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        return arriving[0].index_select(module.axis, module.index.cpu())

    def narrowed(self, module: Select, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        if leaving.axis != module.axis:
            return own_copy(module)
        places = np.cumsum(arriving[0].mask) - 1
        return Select(torch.from_numpy(places[module.index.cpu().numpy()[leaving.mask]]), module.axis)

    def describe(self, module: Select) -> dict[str, Any]:
        return {"kept": len(module.index)} | ({} if module.axis == 1 else {"axis": module.axis})

    def build(self, described: Mapping[str, Any]) -> nn.Module:
        return Select(torch.zeros(bounded(described["kept"]), dtype=torch.long), described.get("axis", 1))

    def write(self, module: Select, name: str, arriving: Shape, file: FileWriter) -> list[Any]:
        file.selection(module.index, arriving[module.axis])
        return [self.tag, len(module.index)] + ([] if module.axis == 1 else [module.axis])

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        match entry:
            case [_, int(kept)] if 0 < kept <= file.shape[1]:
                file.select(kept, 1)
            case [_, int(kept), int(axis)] if 1 < axis < len(file.shape) and 0 < kept <= file.shape[axis]:
                file.select(kept, axis)
            case _:
                raise ValueError(f"{str(entry[1:])[:60]} of {file.shape[1]} values are read")

    def to_onnx(self, module: Select, name: str, writer: OnnxWriter) -> None:
        writer.node("Gather", name, writer.constant(f"{name}.index", module.index.numpy()), axis=module.axis)

    def c_obstacle(self, module: Select, arriving: Shape) -> str | None:
        return None if module.axis == 1 else "reads channels that come last"

    def to_c(self, module: Select, name: str, arriving: Shape, leaving: Shape, writer: CWriter) -> None:
        index = writer.integers(f"{name}_index", module.index.numpy(), unsigned=True)
        places, target = prod(leaving[1:]), writer.target(prod(leaving))
        there = f"{index}[i]" if places == 1 else f"{index}[i / {places}] * {places} + i % {places}"
        loop = f"for (i = 0; i < {prod(leaving)}; i++) {target}[i] = {writer.source}[{there}];"
        writer.lines(name, ["int i;", loop])
        writer.source = target

    def examples(self) -> Sequence[Example]:
        index = torch.tensor([0, 2])
        return [(Select(index), ((2, 3, 4),)), (Select(index, 2), ((2, 4, 3),))]


class PlaceKind(LayerKind):
    """``ScatterChannels``: emission puts it after a layer that writes some of a stream."""

    name, module, number = "place", ScatterChannels, 37
    any_dtype = True

    def output_shape(self, module: ScatterChannels, *arriving: Shape) -> Shape:
        (shape,) = arriving
        axis = module.axis
        fits = axis < len(shape) and shape[axis] == len(module.index) and _within(module.index, module.width)
        must_fit(fits, module, shape)
        return resized(shape, axis, module.width)

    def follow(self, module: ScatterChannels, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        if not search.varies(arriving[0], module.axis):
            search.keep(arriving[0])
            return search.whole(leaving)
        units = search.new(module.width)
        units[module.index.cpu()] = search.along(arriving[0], module.axis)
        return spread(units, leaving, module.axis)

    def narrowed(self, module: ScatterChannels, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        if leaving.axis != module.axis:
            return own_copy(module)
        places = np.cumsum(leaving.mask) - 1
        index = places[module.index.cpu().numpy()[arriving[0].mask]]
        return ScatterChannels(torch.from_numpy(index), int(leaving.mask.sum()), module.axis)

    def describe(self, module: ScatterChannels) -> dict[str, Any]:
        axis = {} if module.axis == 1 else {"axis": module.axis}
        return {"width": module.width, "kept": len(module.index)} | axis

    def build(self, described: Mapping[str, Any]) -> nn.Module:
        index = torch.zeros(bounded(described["kept"]), dtype=torch.long)
        return ScatterChannels(index, bounded(described["width"]), described.get("axis", 1))

    def write(self, module: ScatterChannels, name: str, arriving: Shape, file: FileWriter) -> list[Any]:
        file.selection(module.index, module.width, of_last=True)
        return [self.tag, module.width] + ([] if module.axis == 1 else [module.axis])

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        match entry:
            case [_, int(width)] if file.shape[1] <= width <= LARGEST_SIZE:
                file.place(width, 1)
            case [_, int(width), int(axis)] if 1 < axis < len(file.shape) and file.shape[axis] <= width <= LARGEST_SIZE:
                file.place(width, axis)
            case _:
                raise ValueError(f"{file.shape[1]} channels at {str(entry[1:])[:60]} places")

    def to_onnx(self, module: ScatterChannels, name: str, writer: OnnxWriter) -> None:
        """A channel of zeros beside those that arrive, and each place reads the one or the other."""
        after = np.zeros(len(writer.arriving[name]) + 1, dtype=np.int64)
        after[module.axis] = 1
        pads = np.concatenate([np.zeros_like(after), after])
        writer.node("Pad", f"{name}.zero", writer.constant(f"{name}.zero.pads", pads))
        source = np.full(module.width, len(module.index))
        source[module.index.numpy()] = np.arange(len(module.index))
        writer.node("Gather", name, writer.constant(f"{name}.index", source), axis=module.axis)

    def examples(self) -> Sequence[Example]:
        index = torch.tensor([0, 2])
        return [(ScatterChannels(index, 4), ((2, 2, 3),)), (ScatterChannels(index, 4, 2), ((2, 3, 2),))]


def _within(index: Tensor, count: int) -> bool:
    return bool(len(index)) and int(index.min()) >= 0 and int(index.max()) < count


KINDS = (Flatten, FlattenPlacesKind, PadChannelsKind, SelectKind, PlaceKind)
