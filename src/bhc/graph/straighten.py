"""Layers that write queries, keys and values together become one for each, whatever way their numbers are moved.

A layer's outputs go through steps that only move numbers to those that compute with them: *ends*. Each end is followed
back number by number: where it has its examples along one axis, the layer's places along others, and some of its
outputs along the rest, it is a layer of its own with these outputs, split into axes and turned. So an end has heads
along one axis and what belongs to each along another, and nothing of other ends beside it. Where a linear layer reads
examples along another axis than the first, it is put before the step that turns them away.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bhc.graph.graph import INPUT, Graph, Step, needed_steps
from bhc.layers import Movement, Shape, bare_copy, call_of, is_product, kind_of, weighted_kind
from bhc.layers.aten import Read, SizeOf, flat
from bhc.layers.kind import fixed
from bhc.layers.reshape import Flattening

MOVES = ("reshape", "permute", "slice", "select")


def straighten(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    """The same function; ``shapes`` are those of what its steps give."""
    made: list[Step] = []
    instead: dict[str, str] = {}
    splits, cut = _splits(graph, shapes), dict[Any, Any]()
    for step in graph.steps:
        split = None if step.name in instead else splits.get(step.name)
        steps, ends = ([step], {}) if split is None else split.steps(cut)
        made.extend(each.rewired(instead) for each in steps)
        instead |= ends
    return Graph(needed_steps(made, {*graph.input_steps, instead.get(graph.last_step, graph.last_step)}))


def _splits(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, "_Split"]:
    """The layers that are split; one that is called several times is where all of its calls take it apart alike."""
    found = {step.name: _Split.of(graph, step, shapes) for step in graph.steps if _can_be_split(step)}
    forms: dict[str, set[Any]] = {}
    owners = graph.owners
    for name, owner in owners.items():
        split = found.get(name)
        forms.setdefault(owner, set()).add(None if split is None else split.form)
    return {name: split for name, split in found.items() if split is not None and len(forms[owners[name]]) == 1}


def _moves(step: Step) -> bool:
    """Whether it gives some of the numbers of one value, in another order and shape."""
    module = step.module
    is_move = isinstance(module, Movement) and module.op in MOVES and not list(module.owned())
    return len(step.reads) == 1 and (is_move or isinstance(kind_of(module), Flattening))


def _can_be_split(step: Step) -> bool:
    return is_product(step.module) and getattr(step.module, "groups", 1) == 1


@dataclass(frozen=True)
class _Axis:
    """What one axis of an end runs along: examples, places or outputs of the layer, or nothing."""

    of: str  # "b", "p", "o", or "" where its size is 1
    index: np.ndarray


@dataclass(frozen=True)
class _End:
    """A value that is a layer's outputs, moved."""

    name: str
    axes: tuple[_Axis, ...]
    first: int  # of the layer's outputs, the one it begins with

    @property
    def outputs(self) -> np.ndarray:
        """Which of the layer's outputs it has, in its own order of axes."""
        index = np.array(self.first)
        for axis in self.axes:
            if axis.of == "o":
                index = index[..., None] + axis.index
        return index

    @property
    def is_grid(self) -> bool:
        return sum(axis.of == "o" for axis in self.axes) > 1


@dataclass(frozen=True)
class _Grid:
    """Examples, places and outputs of a layer: sizes, and what each number of its result is among them."""

    sizes: tuple[int, ...]  # (B, places ..., O)
    labels: Tensor  # of the layer's result, in its shape

    def axes(self, moved: Tensor) -> tuple[_Axis, ...] | None:
        """Of the labels of an end; None where an axis runs along more than one."""
        labels = moved.numpy()
        start = labels[(0,) * labels.ndim]
        lines = (np.moveaxis(labels, axis, 0).reshape(labels.shape[axis], -1) for axis in range(labels.ndim))
        offsets = [line[:, 0] - start for line in lines]
        total = start
        for axis, offset in enumerate(offsets):
            total = total + offset.reshape([-1 if place == axis else 1 for place in range(labels.ndim)])
        if not np.array_equal(np.broadcast_to(total, labels.shape), labels):
            return None
        found = [self._axis(int(start), offset) for offset in offsets]
        axes = tuple(axis for axis in found if axis is not None)
        return axes if len(axes) == len(found) and self._is_whole(axes) else None

    def _axis(self, start: int, offset: np.ndarray) -> _Axis | None:
        if len(offset) == 1:
            return _Axis("", offset)
        outputs, places = self.sizes[-1], prod(self.sizes[1:-1])
        at = start + offset
        if (offset % (outputs * places) == 0).all():
            return _Axis("b", at // (outputs * places))
        if (offset % outputs == 0).all() and len(set((at // (outputs * places)).tolist())) == 1:
            return _Axis("p", at // outputs % places)
        return _Axis("o", offset) if len(set((at // outputs).tolist())) == 1 else None

    def _is_whole(self, axes: Sequence[_Axis]) -> bool:
        """Whether it has all examples and places, each once, in their order."""
        places = [axis.index for axis in axes if axis.of == "p"]
        runs = [np.arange(size) for size in self.sizes[1:-1] if size > 1]
        examples = [axis.index for axis in axes if axis.of == "b"]
        strides = [prod(self.sizes[place + 1 : -1]) for place in range(1, len(self.sizes) - 1) if self.sizes[place] > 1]
        one = len(places) <= 1 and all(np.array_equal(own, np.arange(prod(self.sizes[1:-1]))) for own in places)
        each = len(places) == len(runs) and all(
            np.array_equal(own, run * stride) for own, run, stride in zip(places, runs, strides, strict=True)
        )
        complete = each or (one and (bool(places) or not runs))
        return complete and len(examples) == 1 and np.array_equal(examples[0], np.arange(self.sizes[0]))


@dataclass(frozen=True)
class _Split:
    """A layer, what it is to read, and its ends."""

    step: Step
    name: str  # that those of its steps begin with
    source: str
    turned: tuple[int, ...] | None  # how what it reads is turned first, and then put side by side
    columns: np.ndarray | None  # its inputs in that order
    grid: _Grid
    ends: tuple[_End, ...]
    dynamic: bool  # whether other sizes than that of the batch may change

    @classmethod
    def of(cls, graph: Graph, step: Step, shapes: Mapping[str, Shape]) -> "_Split | None":
        """None where nothing is to be done, or cannot be."""
        by_name = {each.name: each for each in graph.steps}
        chain = _chain_before(graph, step, by_name)
        dynamic = any(_has_sizes(by_name[name].module) for name in (*chain, *_moved_after(graph, step, by_name)))
        straight = _straight_source(step, chain, by_name, shapes)
        if straight is None:
            return None
        source, turned, columns, grid = straight
        ends = tuple(_ends(graph, step, by_name, grid))
        found = [end for end in ends if end is not None]
        if len(found) != len(ends) or not ends or (turned is None and not any(end.is_grid for end in found)):
            return None
        if not _are_apart([end.outputs for end in found]) or (dynamic and len(grid.sizes) > 3):
            return None
        return cls(step, _free(graph, step.name), source, turned, columns, grid, tuple(found), dynamic)

    @property
    def form(self) -> Any:
        """What becomes of the layer's weights."""
        rows = frozenset(tuple(end.outputs.ravel().tolist()) for end in self.ends)
        return rows, None if self.columns is None else tuple(self.columns.tolist())

    def steps(self, cut: dict[Any, Any]) -> tuple[list[Step], dict[str, str]]:
        """The new steps, and by end whose result stands for it; ``cut`` are parts of layers that were made before."""
        made = self._turned()
        source = made[-1].name if made else self.source
        instead: dict[str, str] = {}
        layers: dict[tuple[int, ...], str] = {}
        several = len({tuple(end.outputs.ravel().tolist()) for end in self.ends}) > 1
        for place, end in enumerate(self.ends):
            rows = tuple(end.outputs.ravel().tolist())
            if rows not in layers:
                layers[rows] = f"{self.name}_{len(layers)}" if several else self.step.name
                key = (id(self.module), rows)
                cut[key] = cut.get(key) or self._layer(end.outputs.ravel())
                made.append(Step(layers[rows], cut[key], (source,)))
            steps = self._movement(end, layers[rows], place)
            made.extend(steps)
            instead[end.name] = steps[-1].name if steps else layers[rows]
        return made, {end: other for end, other in instead.items() if end != other}

    def _turned(self) -> list[Step]:
        """What it reads with the examples first and its inputs last."""
        if self.turned is None:
            return []
        outer = len(self.grid.sizes) - 1
        sizes: list[int | SizeOf] = [-1, *self.grid.sizes[1:-1]]
        if self.dynamic:
            sizes = [SizeOf(((0, axis),)) for axis in range(outer)]
        moves: list[tuple[str, str, Sequence[Any]]] = []
        if self.turned != tuple(range(len(self.turned))):
            moves.append((f"{self.name}_turned", "permute", self.turned))
        if len(self.turned) > outer + 1:
            moves.append((f"{self.name}_inputs", "reshape", [*sizes, self.module.weight.shape[1]]))
        return _moved(self.source, *moves)

    @property
    def module(self) -> Any:
        return self.step.module

    def _layer(self, rows: np.ndarray) -> Any:
        """The layer with some of its outputs."""
        layer = bare_copy(self.module)
        weight = self.module.weight.detach()[torch.from_numpy(rows)]
        weight = weight if self.columns is None else weight[:, torch.from_numpy(self.columns)]
        layer._parameters["weight"] = fixed(weight.contiguous())
        if self.module.bias is not None:
            layer._parameters["bias"] = fixed(self.module.bias.detach()[torch.from_numpy(rows)])
        for name in ("out_features", "out_channels"):
            if hasattr(layer, name):
                setattr(layer, name, len(rows))
        return layer

    def _movement(self, end: _End, source: str, place: int) -> list[Step]:
        """From (B, places, O), or with the outputs where the layer has them, to the end's axes."""
        axis = weighted_kind(self.step.module).out_axis % len(self.grid.sizes)
        kinds = [axis.of for axis in end.axes]
        outputs = [len(each.index) for each in end.axes if each.of == "o"]
        places = [len(each.index) for each in end.axes if each.of == "p"]
        before = ["b", *["p"] * len(places)]
        before[axis if axis < len(self.grid.sizes) - 1 else len(before) :] = [
            *["o"] * len(outputs), *["p"] * (1 + len(places) - min(axis, 1 + len(places)))
        ]  # fmt: skip
        sizes = self._sizes(before, places, outputs)
        ones = kinds.count("")
        order, taken = [], {"b": 0, "p": 0, "o": 0, "": 0}
        at = {of: [index for index, each in enumerate(before) if each == of] for of in "bpo"}
        at[""] = list(range(len(before), len(before) + ones))
        for of in kinds:
            order.append(at[of][taken[of]])
            taken[of] += 1
        name = f"{self.name}_end_{place}"
        moves: list[tuple[str, str, Sequence[Any]]] = []
        if len(outputs) != 1 or ones or len(places) != len(self.grid.sizes) - 2:
            moves.append((f"{name}_apart", "reshape", [*sizes, *[1] * ones]))
        if order != list(range(len(order))):
            moves.append((name, "permute", order))
        return _moved(source, *moves)

    def _sizes(self, before: Sequence[str], places: Sequence[int], outputs: Sequence[int]) -> list[int | SizeOf]:
        sizes, own = {"p": list(places), "o": list(outputs)}, []
        for of in before:
            if of == "b":
                own.append(SizeOf(((0, 0),)) if self.dynamic else -1)
            elif of == "p" and self.dynamic:
                own.append(SizeOf(((0, 1 + (weighted_kind(self.step.module).out_axis == 1)),)))
            else:
                own.append(sizes[of].pop(0))
        return own


def _moved(source: str, *moves: tuple[str, str, Sequence[Any]]) -> list[Step]:
    """Steps that move numbers, each reads the one before: name, operator, and what that is given."""
    steps: list[Step] = []
    for name, op, argument in moves:
        steps.append(Step(name, call_of(f"aten.{op}.default", [Read(0), list(argument)]), (source,)))
        source = name
    return steps


def _free(graph: Graph, name: str) -> str:
    """A beginning that no other step's name has with a number, or as an end, after it."""
    taken = {step.name for step in graph.steps}
    while any(each.startswith((f"{name}_end_", f"{name}_turned", f"{name}_inputs")) for each in taken) or any(
        f"{name}_{place}" in taken for place in range(len(taken))
    ):
        name += "_part"
    return name


def _has_sizes(module: nn.Module) -> bool:
    return any(isinstance(part, SizeOf) for part in flat(getattr(module, "arguments", ())))


def _are_apart(rows: Sequence[np.ndarray]) -> bool:
    """Whether two ends have the same outputs, or none in common."""
    own = list({tuple(sorted(each.ravel().tolist())): set(each.ravel().tolist()) for each in rows}.values())
    return len(set().union(*own)) == sum(map(len, own))


def _chain_before(graph: Graph, step: Step, by_name: Mapping[str, Step]) -> list[str]:
    """The steps that move what a layer reads, the first one first."""
    chain: list[str] = []
    name = step.reads[0]
    while name in by_name and _moves(by_name[name]):
        chain.insert(0, name)
        name = by_name[name].reads[0]
    return chain


def _moved_after(graph: Graph, step: Step, by_name: Mapping[str, Step]) -> list[str]:
    found, ahead = [], [step.name]
    while ahead:
        readers = [name for name in graph.readers[ahead.pop()] if name != INPUT and _moves(by_name[name])]
        found += readers
        ahead += readers
    return found


def _straight_source(
    step: Step, chain: Sequence[str], by_name: Mapping[str, Step], shapes: Mapping[str, Shape]
) -> tuple[str, tuple[int, ...] | None, np.ndarray | None, _Grid] | None:
    """What a layer is to read, how that is turned, its inputs in that order, and the grid of its result."""
    axis = weighted_kind(step.module).out_axis
    shape = shapes[step.name]
    result = (*[size for place, size in enumerate(shape) if place != axis % len(shape)], shape[axis])
    labels = torch.arange(prod(result)).reshape(result).movedim(-1, axis)
    if not chain or axis != -1:
        return step.reads[0], None, None, _Grid(result, labels)
    source = by_name[chain[0]].reads[0]
    if source not in shapes:
        return step.reads[0], None, None, _Grid(result, labels)
    first = shapes[source]
    moved = torch.arange(prod(first)).reshape(first)
    for name in chain:
        moved = by_name[name].module(moved)
    if moved.numel() != prod(first) or _examples_come_first(moved, first):
        return step.reads[0], None, None, _Grid(result, labels)
    return _turned_source(source, first, moved, result[-1])


def _examples_come_first(moved: Tensor, shape: Shape) -> bool:
    """Whether the numbers of each example follow each other along the first axis."""
    examples = (moved // prod(shape[1:])).flatten(1)
    each = examples[:, 0]
    return bool((examples == each[:, None]).all()) and bool((each[1:] >= each[:-1]).all())


def _turned_source(
    source: str, shape: Shape, moved: Tensor, outputs: int
) -> tuple[str, tuple[int, ...], np.ndarray, _Grid] | None:
    """The axes of the source that are the layer's inputs go last."""
    rows = moved.reshape(-1, moved.shape[-1]).numpy()
    own, places = rows[0] - rows[0].min(), rows.min(1)
    if not np.array_equal(np.sort(rows, 1), np.sort(rows[:1] - rows[0].min(), 1) + places[:, None]):
        return None
    if not np.array_equal(rows, own[None] + places[:, None]):
        return None
    coordinates = np.stack(np.unravel_index(own, shape))
    inner = [axis for axis in range(len(shape)) if (coordinates[axis] != coordinates[axis][0]).any()]
    if 0 in inner or prod(shape[axis] for axis in inner) != len(own):
        return None
    outer = [axis for axis in range(len(shape)) if axis not in inner]
    columns = np.ravel_multi_index([coordinates[axis] for axis in inner], [shape[axis] for axis in inner])
    at = np.ravel_multi_index(
        [np.unravel_index(places, shape)[axis] for axis in outer], [shape[axis] for axis in outer]
    )
    labels = torch.from_numpy(at[:, None] * outputs + np.arange(outputs)[None])
    sizes = (*[shape[axis] for axis in outer], outputs)
    return source, (*outer, *inner), np.argsort(columns), _Grid(sizes, labels.reshape(*moved.shape[:-1], outputs))


def _ends(graph: Graph, step: Step, by_name: Mapping[str, Step], grid: _Grid) -> Iterator[_End | None]:
    ahead = [(step.name, grid.labels)]
    while ahead:
        name, labels = ahead.pop(0)
        readers = graph.readers[name]
        if any(reader == INPUT or not _moves(by_name[reader]) for reader in readers):
            axes = grid.axes(labels)
            yield None if axes is None else _End(name, axes, int(labels.flatten()[0]) % grid.sizes[-1])
        for reader in dict.fromkeys(readers):
            if reader != INPUT and _moves(by_name[reader]):
                ahead.append((reader, by_name[reader].module(labels)))
