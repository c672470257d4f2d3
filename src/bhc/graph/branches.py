"""Branches beside a shortcut: what goes as a whole where nothing of it is worth keeping, so that depth is cut too.

A branch is all that lies between a stream and a layer that adds to it. Where one of its layers, or its heads, keep no
unit, nothing of the branch says anything about the input: it gives a constant, ``s b`` of its last layer, which is
added to the stream instead.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bhc.graph.graph import INPUT, Graph, ShapedStep, Step, shaped_steps
from bhc.graph.units import Units
from bhc.graph.weighted import Layer
from bhc.layers import Add, Shape, kind_of
from bhc.layers.aten import AtenCall, Read


@dataclass(frozen=True)
class BranchEnd:
    """The last layer of a branch, and how what it gives comes to be added."""

    layer: str
    shape: Shape  # of what it gives
    path: tuple[str, ...]  # steps between, which leave a constant one
    joint: str  # the sum

    def constant(self, graph: Graph, numbers: Tensor, axis: int) -> Tensor:
        """What arrives at the sum where the layer gives these numbers, one an output, at all places."""
        sizes = [1] * len(self.shape)
        sizes[axis] = len(numbers)
        value = numbers.reshape(sizes).expand(self.shape)
        for name in self.path:
            value = graph.get_submodule(name)(value)
        return value


@dataclass(frozen=True)
class Branch:
    """What goes together."""

    groups: tuple[tuple[int, ...], ...]  # units that a layer writes, or heads have: none left of one, none of all
    inner: tuple[str, ...]  # layers that go with it
    ends: tuple[BranchEnd, ...]

    @property
    def units(self) -> list[int]:
        return sorted({unit for group in self.groups for unit in group})


def find_branches(graph: Graph, input_shape: Shape, layers: Sequence[Layer], units: Units) -> tuple[Branch, ...]:
    """Inner ones after those that they are in."""
    shaped = {each.name: each for each in shaped_steps(graph, input_shape)}
    search = _Search(graph, shaped, layers, units)
    branches = search.branches()
    order = {step.name: place for place, step in enumerate(graph.steps)}
    return tuple(sorted(branches, key=lambda branch: -max(order[end.layer] for end in branch.ends)))


class _Search:
    def __init__(self, graph: Graph, shaped: Mapping[str, ShapedStep], layers: Sequence[Layer], units: Units) -> None:
        self.graph, self.shaped, self.units = graph, shaped, units
        self.layers = {layer.name: layer for layer in layers}
        again = [layer for layer in layers if layer.is_shared]  # at one place they may be needed, at another not
        self.called_again = {unit for layer in again for unit in (*layer.reads.tolist(), *layer.writes.tolist())}
        self.reads = {name: set(layer.reads.tolist()) for name, layer in self.layers.items()}
        self.writes = {name: set(layer.writes.tolist()) for name, layer in self.layers.items()}
        writers = Counter(unit for own in self.writes.values() for unit in own)
        self.must_write = {u for u in writers if writers[u] == 1 or units.always[u] or units.tied[u]}
        self.groups = self._candidates()
        self.ends = self._one_of_each_sum({name: end for name in self.layers if (end := self._end(name)) is not None})

    def _candidates(self) -> list[frozenset[int]]:
        """Sets of units that might go as a whole."""
        of_heads = [frozenset(heads.units.tolist()) for heads in self.units.heads]
        held = set(self.units.carried[self.graph.last_step].ravel().tolist()).union(*of_heads)
        parts = (frozenset(own) for own in self.units.needed_together())  # of what is written, such as its halves
        written = dict.fromkeys((*map(frozenset, self.writes.values()), *parts))
        stays = self.called_again | set(self.units.always.nonzero()[0].tolist())
        return [group for group in (*(own for own in written if not own & held), *of_heads) if not group & stays]

    def _end(self, name: str) -> BranchEnd | None:
        """Where all that a layer writes others write too, and it goes into a sum unchanged but for where it lies."""
        if self.writes[name] & self.must_write or self.layers[name].is_shared:
            return None
        path: list[str] = []
        at = name
        while len(readers := self.graph.readers[at]) == 1 and readers[0] != INPUT:
            step = self.shaped[readers[0]].step
            if is_sum(step):
                end = BranchEnd(name, self.shaped[name].leaving, tuple(path), step.name)
                return end if self._stays_constant(end, at) else None
            if len(step.reads) != 1 or step.name in self.layers or self._counts(step):
                return None
            path.append(step.name)
            at = step.name
        return None

    def _one_of_each_sum(self, ends: dict[str, BranchEnd]) -> dict[str, BranchEnd]:
        """What only ends read, and of two that are added to each other one: something has to stay."""
        while True:
            others = [own for name, own in self.reads.items() if name not in ends]
            elsewhere = set().union(*others)
            alone = {name: end for name, end in ends.items() if not self.reads[name] & elsewhere}
            if len(alone) == len(ends):
                return {end.layer: end for end in {end.joint: end for end in ends.values()}.values()}
            ends = alone

    def _counts(self, step: Step) -> bool:
        axes = [self.units.axes[name] for name in step.reads]
        return kind_of(step.module).counts_kept(step.module, axes, [self.units.dimensions[n] for n in step.reads])

    def _stays_constant(self, end: BranchEnd, last: str) -> bool:
        layer = self.layers[end.layer]
        numbers = torch.randn(layer.num_outputs, generator=torch.Generator().manual_seed(0))
        given = end.constant(self.graph, numbers, layer.kind.out_axis)
        if len(self.units.axes[last]) != 1:
            return False
        lines = given.movedim(self.units.axes[last][0], 0).flatten(1)
        return bool((lines == lines[:, :1]).all())

    def branches(self) -> Iterator[Branch]:
        groups = self._that_may_go()
        owner = {unit: place for place, group in enumerate(groups) for unit in group}
        together = list(range(len(groups)))

        def find(place: int) -> int:
            while together[place] != place:
                place = together[place]
            return place

        for places in filter(None, self._connected(groups, owner)):
            for other in places[1:]:
                together[find(other)] = find(places[0])
        for root in sorted({find(place) for place in range(len(groups))}):
            own = [group for place, group in enumerate(groups) if find(place) == root]
            members = set().union(*own)
            ends = tuple(end for name, end in self.ends.items() if self.reads[name] & members)
            inner = tuple(name for name, written in self.writes.items() if written & members)
            yield Branch(tuple(tuple(sorted(group)) for group in own), inner, ends)

    def _that_may_go(self) -> list[frozenset[int]]:
        """Groups of which all that is read ends in sums."""
        groups = list(self.groups)
        while True:
            covered = set().union(*groups) if groups else set()
            left = [group for group in groups if self._may_go(group, covered)]
            if len(left) == len(groups):
                return left
            groups = left

    def _may_go(self, group: frozenset[int], covered: set[int]) -> bool:
        readers = [name for name, own in self.reads.items() if own & group]
        read = bool(readers) and all(
            self.reads[name] <= covered if name in self.ends else self.writes[name] <= covered for name in readers
        )
        return read and all(self._stays_inside(step, group, covered) for step in self.graph.steps)

    def _stays_inside(self, step: Step, group: frozenset[int], covered: set[int]) -> bool:
        """Whether a step that is no layer hands on what it reads of a group to what may go too."""
        if self._is_layer(step) or not any(self._free(name) & group for name in step.reads):
            return True
        given = self._free(step.name)
        return bool(given) and given <= covered

    def _is_layer(self, step: Step) -> bool:
        """Whether its units are those that its weights read and write: not where it slides over units."""
        return step.name in self.layers and not self._counts(step)

    def _free(self, name: str) -> set[int]:
        own = self.units.carried[name].ravel()
        return set(own[~self.units.always[own]].tolist())

    def _connected(self, groups: Sequence[frozenset[int]], owner: Mapping[int, int]) -> Iterator[list[int]]:
        """Places of groups that go together."""
        for place, group in enumerate(groups):
            yield sorted({place, *(owner[unit] for unit in group)})
        for name in self.layers:
            touched = self.reads[name] if name in self.ends else self.reads[name] | self.writes[name]
            if self.writes[name] <= owner.keys() or name in self.ends:
                yield sorted({owner[unit] for unit in touched if unit in owner})
        for step in self.graph.steps:
            if not self._is_layer(step):
                touched = set().union(*(self._free(name) for name in (*step.reads, step.name)))
                yield sorted({owner[unit] for unit in touched if unit in owner})


def is_sum(step: Step) -> bool:
    """Whether it adds two values, and nothing else."""
    module = step.module
    if isinstance(module, Add):
        return True
    is_add = isinstance(module, AtenCall) and module.target == "aten.add.Tensor" and module.argument("alpha", 1) == 1
    return is_add and [module.argument(name) for name in ("self", "other")] == [Read(0), Read(1)]  # type: ignore[operator]
