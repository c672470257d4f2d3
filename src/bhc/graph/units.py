"""Which channels live and die together: found once, when a network is wrapped.

A unit is what one output of a layer writes, with all that is added to it or multiplied with it on the way. Each value
of the graph has a tensor of unit numbers in its own shape, which the kinds of layers carry on: who moves numbers moves
their units, who adds two values joins theirs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bhc.graph.graph import INPUT, Graph, ShapedStep, shaped_steps
from bhc.graph.groups import even_out
from bhc.graph.heads import Heads, Said, find_heads, kept_from_running_dry, lies_in_heads
from bhc.layers import EXAMPLES, Cells, Kept, Shape, Tied, Weighted, kind_of
from bhc.layers.kind import first_along, spread

FEW = 1 << 12  # numbers that are not worth a second look
MOST_CONSTANTS = 1 << 16  # numbers of a step's own that are followed one by one
CHANNELS = 1  # their axis, in a value of which nothing can be cut


@dataclass(frozen=True)
class Units:
    """The units of a network."""

    # By every value, in the graph's names: the unit of each place of its axis; of heads, (heads, cells).
    carried: dict[str, np.ndarray]
    axes: dict[str, tuple[int, ...]]  # of each value, the one along which its units lie; of heads, and of their cells
    dimensions: dict[str, int]  # how many axes each value has
    reads: dict[str, np.ndarray]  # by every weighted layer: the unit of each of its inputs
    writes: dict[str, np.ndarray]  # and of each of its outputs
    always: np.ndarray  # (U,) bool: these are never cut
    tied: np.ndarray  # (U,) bool: of these all parts are needed, not only their sum
    kept_by: dict[int, str] = field(default_factory=dict)  # of units that are never cut: the step that needs them all
    outputs_are_free: bool = True  # whether each of the network's outputs has a unit of its own, which may go
    heads: tuple[Heads, ...] = ()

    @property
    def count(self) -> int:
        return len(self.always)

    @property
    def attention(self) -> tuple[Heads, ...]:
        """Heads that are no groups of a convolution."""
        return tuple(heads for heads in self.heads if heads.of_attention)

    def needed_together(self) -> list[tuple[int, ...]]:
        """The smallest sets of units of which something must stay, or a value has no channel left.

        These are the units of each value: all that a layer writes, or a slice of it.
        """
        lines = (*self.writes.values(), *self.carried.values())
        sets = dict.fromkeys(frozenset(line.ravel().tolist()) for line in lines if not self.always[line].any())
        return [tuple(sorted(own)) for own in sets if not any(other < own for other in sets)]

    def kept(self, name: str, alive: np.ndarray) -> Kept:
        """What stays of a value where these units live, (U,) bool."""
        living, dimensions = alive[self.carried[name]], self.dimensions[name]
        if living.ndim == 1:
            return Kept(self.axes[name][0], living, dimensions)
        heads = living.any(1)
        rows = living[heads]
        places = rows.nonzero()[1].reshape(len(rows), -1 if len(rows) else 0)  # as many in each: that makes them heads
        return Kept(self.axes[name][0], heads, dimensions, Cells(self.axes[name][1], places, living.shape[1]))


def find_units(graph: Graph, input_shape: Shape, *, keep: Iterable[str] = ()) -> Units:
    """Follow every number through the graph; units that a step in ``keep`` reads or writes are never cut."""
    search = _Search(input_shape)
    wanted = {name for step in graph.steps if step.name in set(keep) for name in (step.name, *step.reads)}
    whole = {*graph.input_steps} | wanted - {graph.last_step}
    search.keep(search.carried[INPUT])
    owners = graph.owners
    for shaped in shaped_steps(graph, input_shape):
        search.follow(shaped)
        if owners.get(shaped.name, shaped.name) != shaped.name:
            search.same_layer(owners[shaped.name], shaped.name, turned=isinstance(shaped.module, Tied))
        if shaped.name in whole:
            search.step = INPUT
            search.keep(search.carried[shaped.name])
    return _numbered(search, graph.last_step)


class _Sets:
    """Disjoint sets of whole numbers."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self._roots: np.ndarray | None = None  # of the numbers there were

    def new(self, count: int) -> Tensor:
        start = len(self.parent)
        self.parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def find(self, member: int) -> int:
        root = member
        while self.parent[root] != root:
            root = self.parent[root]
        while self.parent[member] != root:
            self.parent[member], member = root, self.parent[member]
        return root

    def join(self, left: int, right: int) -> None:
        first, second = sorted((self.find(left), self.find(right)))
        if first != second:
            self.parent[second] = first
            self._roots = None

    def roots(self) -> np.ndarray:
        """The set of every number."""
        if self._roots is None or len(self._roots) < len(self.parent):
            parents = np.array(self.parent, dtype=np.int64)
            while not np.array_equal(further := parents[parents], parents):
                parents = further
            self._roots = parents
        return self._roots


class _Search:
    """What the kinds of layers use to say who lives and dies together (``layers.protocols.UnitSearch``)."""

    def __init__(self, input_shape: Shape) -> None:
        self.sets = _Sets()
        shape = (EXAMPLES, *input_shape)
        # Of several inputs each is a step of its own; together they are no value that could be read.
        axis = min(CHANNELS, len(input_shape))
        self.carried = {INPUT: spread(self.sets.new(shape[axis]), shape, axis)}
        self.kept: list[Tensor] = []  # what is never cut
        self.keepers: list[str] = []  # and the step that said so
        self.tied: list[Tensor] = []  # what all of its writers write
        self.reads: dict[str, Tensor] = {}
        self.writes: dict[str, Tensor] = {}
        self.fed_back: list[Tensor] = []  # what a step reads of its own results
        self.own: list[Tensor] = []  # numbers of steps' own, which stay unless they meet what goes
        self.heads = Said()
        self.nothing: Tensor | None = None
        self._never: tuple[np.ndarray, int, np.ndarray] | None = None  # sets, how much was kept, and what that is
        self.step = INPUT  # the one that is being followed

    def follow(self, shaped: ShapedStep) -> None:
        self.step, kind = shaped.name, kind_of(shaped.module)
        arriving = [self.carried[name] for name in shaped.step.reads]
        leaving = kind.follow(shaped.module, self, shaped.leaving, *arriving)
        leaving = _spread_again(leaving)
        self.carried[shaped.name] = leaving
        if isinstance(kind, Weighted):
            if shaped.name not in self.reads:
                self.reads[shaped.name] = self.along(arriving[0], kind.in_axis, passing=True)
            if shaped.name not in self.writes:
                self.writes[shaped.name] = self.along(leaving, kind.out_axis, passing=True)

    def same_layer(self, first: str, again: str, *, turned: bool) -> None:
        """Two calls of one layer, whose weights are there once: inputs live and die together, and so do outputs."""
        reads, writes = (self.writes, self.reads) if turned else (self.reads, self.writes)
        self.join(self.reads[first], reads[again])
        self.join(self.writes[first], writes[again])

    def new(self, count: int) -> Tensor:
        return self.sets.new(count)

    def words(self, count: int) -> Tensor:
        self.reads[self.step] = self.sets.new(count)
        return self.reads[self.step]

    def has_ends(self, reads: Tensor, writes: Tensor, *, fed_back: bool = True) -> None:
        self.reads[self.step], self.writes[self.step] = reads, writes
        if fed_back:
            self.fed_back.append(reads)

    def join(self, left: Tensor, right: Tensor) -> None:
        for one, other in _different_pairs(left, right):
            self.sets.join(one, other)

    def tie(self, units: Tensor) -> None:
        self.tied.append(_thin(units))

    def keep(self, units: Tensor) -> None:
        self.kept.append(_thin(units))
        self.keepers.append(self.step)

    def along(self, units: Tensor, axis: int, *, passing: bool = False) -> Tensor:
        rows = _thin(units, but=axis).movedim(axis, 0).flatten(1)
        rows = rows.expand(units.shape[axis], -1)
        if rows.shape[1] > 1:
            labels = self.labels(rows)
            if (labels == labels[:1]).all():  # it varies along other axes alone
                if passing:
                    return self.whole((units.shape[axis],))
                self.keep(units)
            elif (labels != labels[:, :1]).any():
                self.join(rows[:, :1].expand(rows.shape), rows)
        return rows[:, 0]

    def constants(self, shape: Shape) -> Tensor:
        count = int(np.prod(shape))
        if count > MOST_CONSTANTS:
            return self.whole(shape)
        units = self.sets.new(count)
        self.own.append(units)
        return units.reshape(shape)

    def varies(self, units: Tensor, axis: int) -> bool:
        return _thin(units).shape[axis] > 1 and axis in self.varying(units)

    def whole(self, shape: Shape) -> Tensor:
        if self.nothing is None:
            self.nothing = self.sets.new(1)
            self.keep(self.nothing)
        return self.nothing[0].expand(shape)

    def labels(self, units: Tensor) -> np.ndarray:
        """The set that each number belongs to; one for all that is never cut."""
        roots = self.sets.roots()
        if self._never is None or self._never[0] is not roots or self._never[1] != len(self.kept):
            never = np.zeros(len(roots), dtype=bool)
            for kept in self.kept:
                never[roots[kept.numpy().ravel()]] = True
            self._never = roots, len(self.kept), never
        labels = roots[units.numpy()]
        return np.where(self._never[2][labels], -1, labels)

    def varying(self, units: Tensor) -> list[int]:
        """The axes along which what can be cut is not the same everywhere."""
        thin = _thin(units)
        wide = [axis for axis, size in enumerate(thin.shape) if size > 1]
        if not wide:
            return []
        labels = self.labels(thin)
        return [axis for axis in wide if (labels != labels.take([0], axis)).any()]


def _numbered(search: _Search, last: str) -> Units:
    """The units in the order they are written."""
    search.step = INPUT
    _keep_own(search)
    heads, axes = _heads_and_axes(search, last)
    roots = search.sets.roots()
    number = {root: place for place, root in enumerate(np.unique(roots).tolist())}
    of = np.array([number[root] for root in roots.tolist()], dtype=np.int64)
    always, tied = np.zeros((2, len(number)), dtype=bool)
    for flags, marked in ((always, search.kept), (tied, search.tied)):
        for units in marked:
            flags[of[units.numpy().ravel()]] = True
    heads = tuple(group.renumbered(of) for group in heads)
    for group in heads:
        for part in group.parts:
            always[group.rows] |= always[part.units].any(1)
    carried = {name: of[_lines(units, axes[name])] for name, units in search.carried.items()}
    reads, writes = ({name: of[u.numpy()] for name, u in ends.items()} for ends in (search.reads, search.writes))
    dimensions = {name: max(units.dim(), 1) for name, units in search.carried.items()}
    kept_by: dict[int, str] = {}
    for units, keeper in zip(search.kept, search.keepers, strict=True):
        for unit in np.unique(of[units.numpy().ravel()]).tolist():
            kept_by.setdefault(unit, keeper)
    outputs = carried[last]
    free = axes[last] == (CHANNELS,) and len(set(outputs)) == len(outputs) and not always[outputs].any()
    if not free or any(np.isin(outputs, of[units.numpy()]).any() for units in search.fed_back):
        free = False  # or others would hang on an output that goes
        always[outputs] = True
    axes = {name: axes[name] for name in carried}
    return Units(carried, axes, dimensions, reads, writes, always, tied, kept_by, free, heads)


def _keep_own(search: _Search) -> None:
    """Numbers of steps' own that meet nothing a layer writes."""
    roots = search.sets.roots()
    written = np.zeros(len(roots), dtype=bool)
    for units in search.writes.values():
        written[roots[units.numpy()]] = True
    for units in search.own:
        search.keep(units[torch.from_numpy(~written[roots[units.numpy()]])])


def _heads_and_axes(search: _Search, last: str) -> tuple[tuple[Heads, ...], dict[str, tuple[int, ...]]]:
    """Along which axes the units of each value lie; where that is neither one axis nor heads with their cells, they
    are joined until there is one."""
    values = search.carried | {f"part {place}": units for place, units in enumerate(search.heads.parts)}
    while True:
        heads = find_heads(search)
        axes: dict[str, tuple[int, ...]] = {}
        joined = False
        for name, units in values.items():
            varying, usual = search.varying(units), min(CHANNELS, max(units.dim(), 1) - 1)
            axes[name] = tuple(varying) or (usual,)
            if len(varying) > 1:
                pair = _as_heads(search, units, varying, heads)
                if pair is None:
                    best = max(varying, key=lambda axis: (_num_lines(search, units, axis), -axis))
                    search.along(units, best)
                    joined = True
                axes[name] = pair or (best,)
            joined |= kept_from_running_dry(search, _thin(units), heads)
        if not joined and not even_out(search, heads, search.carried[last]):
            return heads, axes


def _num_lines(search: _Search, units: Tensor, axis: int) -> int:
    """How many of the places along an axis differ from each other: the most units there can be if they lie there."""
    lines = search.labels(_thin(units, but=axis).movedim(axis, 0).flatten(1))
    return len(np.unique(lines, axis=0))


def _as_heads(search: _Search, units: Tensor, varying: Sequence[int], heads: Sequence[Heads]) -> tuple[int, int] | None:
    """Of two axes, that of heads and that of what each keeps."""
    if len(varying) != 2:
        return None
    for axes in (tuple(varying), tuple(reversed(varying))):
        labels = search.labels(torch.from_numpy(_lines(units, axes)))
        if any(lies_in_heads(labels, group) for group in heads):
            return axes  # type: ignore[return-value]
    return None


def _thin(units: Tensor, *, but: int | None = None) -> Tensor:
    """One place of each axis along which a tensor was only spread out; ``but`` for one."""
    for axis in range(units.dim()):
        if units.stride(axis) == 0 and units.shape[axis] > 1 and (but is None or axis != but % units.dim()):
            units = units.narrow(axis, 0, 1)
    return units


def _spread_again(units: Tensor) -> Tensor:
    """The same numbers, each once along axes where an operator has copied them: what follows looks at fewer."""
    thin = units
    for axis in range(units.dim()):
        if thin.shape[axis] > 1 and thin.stride(axis) != 0 and _thin(thin).numel() > FEW:
            first = thin.narrow(axis, 0, 1)
            if bool((_thin(thin, but=axis) == _thin(first, but=axis)).all()):
                thin = first
    return thin.expand(units.shape)


def _lines(units: Tensor, axes: tuple[int, ...]) -> np.ndarray:
    """The units along one axis or two, at the first place of all others; a number without axes is a line of one."""
    return first_along(units.reshape(units.shape or (1,)), *axes).numpy()


def _different_pairs(left: Tensor, right: Tensor) -> Iterator[tuple[int, int]]:
    """Every pair of numbers that stand at the same place, once."""
    left, right = torch.broadcast_tensors(left, right)
    for axis in range(left.dim()):
        if left.stride(axis) == right.stride(axis) == 0 and left.shape[axis] > 1:
            left, right = left.narrow(axis, 0, 1), right.narrow(axis, 0, 1)
    pairs = dict.fromkeys(zip(left.flatten().tolist(), right.flatten().tolist(), strict=True))
    return ((one, other) for one, other in pairs if one != other)
