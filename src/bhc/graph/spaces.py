"""Spaces: coordinates that stand in the same vectors wherever they are read, so that they may be mixed.

They are found by going through a graph: who moves numbers moves their coordinates, a sum turns what it adds alike. The
axes that suit a space follow from second moments of what stands in it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bhc.graph import coordinate_rules as rules
from bhc.graph.coordinate_rules import Rule, Visit
from bhc.graph.coordinates import Marked, Reader, Search, Source, Tensors, mixed
from bhc.graph.graph import Graph, Step
from bhc.layers import (
    EXAMPLES,
    Add,
    Concat,
    Embed,
    FlattenPlaces,
    GlobalMean,
    Movement,
    Multiply,
    Select,
    Shape,
    Shift,
    Subsample,
    is_product,
    is_weighted,
)
from bhc.layers.aten import AtenCall

MOVES = (nn.Flatten, FlattenPlaces, Concat, Select, Subsample)
REDUCTIONS = ("mean", "sum", *rules.LENGTHS)
CALLS: dict[str, Rule] = {
    **dict.fromkeys(("add", "sub"), rules.added),
    **dict.fromkeys(("mul", "div"), rules.scaled),
    **dict.fromkeys(("pow", "square"), rules.squared),
    **dict.fromkeys(("_to_copy", "to"), rules.cast),
    "neg": rules.negated,
    **dict.fromkeys(("layer_norm", "rms_norm"), rules.normed),
    **dict.fromkeys(REDUCTIONS, rules.reduced),
    **dict.fromkeys(("matmul", "bmm", "mm"), rules.matmul),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"), Visit.fixed),
    "masked_fill": rules.masked,
    "einsum": rules.by_letters,
    "scaled_dot_product_attention": rules.attention,
    "repeat_interleave": rules.repeated,
}
LAYERS: dict[type[nn.Module], Rule] = {
    nn.Linear: rules.linear,
    Embed: rules.written,
    Add: rules.joined,
    Multiply: rules.multiplied,
    Shift: rules.shifted,
    GlobalMean: rules.averaged,
    **dict.fromkeys(MOVES, rules.rearranged),
}
ONLY_FLOATS = ("im2col", "pixel_shuffle", "pixel_unshuffle")  # these move no whole numbers


def follow(graph: Graph, input_shape: Shape) -> Search:
    """What is found with a batch of two; what the network gives stays, and what a step without a rule reads."""
    search = Search()
    uses = Counter(id(numbers) for step in graph.steps for numbers in step.module.parameters())
    shared = frozenset(number for number, count in uses.items() if count > 1)

    def apply(step: Step, *values: Marked) -> Marked:
        visit, rule = Visit(search, step, values, shared), _rule(step.module, values)
        again = is_weighted(step.module) and any(id(numbers) in shared for numbers in step.module.parameters())
        given = None if rule is None or again else rule(visit)  # axes of one call are not those of another
        if given is not None:
            return given
        search.stay(*values)
        return visit.fixed()

    given: Any = search.fixed((EXAMPLES, *input_shape))
    result: Any = graph.run(given, apply)  # type: ignore[arg-type]
    search.stay(result)
    return search


def _rule(module: nn.Module, values: Sequence[Marked]) -> Rule | None:
    is_movement = isinstance(module, (Movement, *MOVES))
    has_own = any(True for _ in (*module.parameters(), *module.buffers()))
    if not (is_movement or has_own or any(value.moves for value in values)):
        return Visit.fixed
    if any(value.squared for value in values):
        return _rule_of_squares(module) if all(value.squared for value in values if value.moves) else None
    if isinstance(module, AtenCall):
        return CALLS.get(module.op, _movement(module))
    return LAYERS.get(type(module), rules.written if is_product(module) else None)


def _rule_of_squares(module: nn.Module) -> Rule | None:
    """They may be moved and summed."""
    if isinstance(module, AtenCall):
        return rules.reduced if module.op in ("mean", "sum") else _movement(module)
    return rules.averaged if isinstance(module, GlobalMean) else None


def _movement(module: AtenCall) -> Rule | None:
    """Zeros that are put beside numbers stay; other numbers would be taken for coordinates."""
    plain = module.argument("mode", "constant") == "constant" and module.argument("value") in (None, 0)
    return rules.moved if isinstance(module, Movement) and plain and module.op not in ONLY_FLOATS else None


@dataclass(frozen=True, eq=False)
class End:
    """Where vectors of a space stand: in rows of weights that write them, columns that read them, a constant."""

    step: str
    tensors: Tensors
    index: Tensor  # (d,) along the tensors' axes
    opposite: bool  # turned by ``A^-T`` and not by ``A``
    value: str | None = None  # the value in which such vectors can be seen: what is written, or what is read
    axis: int = -1  # and along which axis
    reads: bool = False


@dataclass(frozen=True, eq=False)
class Space:
    """Coordinates that may be mixed, and everywhere they stand."""

    classes: Tensor  # (d,) in order
    orthogonal: bool  # whether lengths must stay what they are
    ends: list[End]

    @property
    def size(self) -> int:
        return len(self.classes)


def components(count: int, links: Tensor) -> Tensor:
    """Of each of so many numbers the smallest one that links (2, n) lead to."""
    root = torch.arange(count)
    while True:
        low, high = root[links].aminmax(dim=0)
        if torch.equal(low, high):
            return root
        root.scatter_reduce_(0, high, low, "amin")
        while not torch.equal(root, further := root[root]):
            root = further


class Classes:
    """The coordinates of a finished search by classes: those of one are turned alike, or opposite ways.

    Every coordinate is there twice, as it is turned and as the opposite; links lead between them. A class that leads
    to its own opposite can only be rotated: there ``A = A^-T``.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        own, opposite = components(2 * len(search.seen), torch.cat(search.links, 1)).reshape(-1, 2).unbind(1)
        self.of = torch.minimum(own, opposite)  # each coordinate
        self.flipped = opposite < own
        self.both_ways = self.having((own == opposite).nonzero().flatten())
        self.stays = self.having(*search.staying)
        self._keep_ambiguous()

    def having(self, *coordinates: Tensor) -> Tensor:
        """Of every class, whether it has one of these coordinates."""
        marks = torch.zeros(2 * len(self.of), dtype=torch.bool)
        for each in coordinates:
            marks[self.of[each]] = True
        return marks

    @property
    def sizes(self) -> Tensor:
        """Of every coordinate, how many are in its class."""
        return torch.bincount(self.of)[self.of]

    def _keep_ambiguous(self) -> None:
        """Where a class stands twice in one vector, nobody can say which number is which."""
        written = [source.coordinates for source in self.search.sources if not source.is_constant]
        for each in [torch.cat(written)] if written else []:
            self._keep_repeated(self.of[each], self.search.seen[each])
        for reader in self.search.readers:
            seen = self.search.seen[reader.coordinates]
            self._keep_repeated(self.of[reader.coordinates], seen, reader.vectors)

    def _keep_repeated(self, *keys: Tensor) -> None:
        values, counts = torch.unique(torch.stack(keys), dim=1, return_counts=True)
        self.stays[values[0, counts > 1]] = True

    def blocks(self) -> Tensor:
        """Of every coordinate the number of those that it may be mixed with; -1 for none."""
        gained = [part for gain in self.search.gains for part in (gain.arriving, gain.coordinates)]
        stays = self.stays | self.having(*gained)
        marks = torch.zeros(len(stays), dtype=torch.int64)
        marks.index_add_(0, self.of, mixed(2 * self.search.seen + self.flipped))
        _, numbers = torch.unique(2 * marks + self.both_ways, return_inverse=True)
        numbers[stays] = -1
        return numbers[self.of]


def find_spaces(search: Search) -> tuple[list[Space], Classes]:
    """All spaces of more than one coordinate."""
    while True:
        classes = Classes(search)
        finder = _Ends(search, classes)
        ends = finder.find()
        if not finder.lost:
            break
        search.staying += finder.lost
    by_length = classes.both_ways | classes.having(*search.lengths)
    members = {block: classes.of[finder.blocks == block].unique() for block in ends}
    spaces = [Space(members[block], bool(by_length[members[block]].any()), found) for block, found in ends.items()]
    return [space for space in spaces if space.size > 1], classes


def find_free(graph: Graph, input_shape: Shape) -> list[Space]:
    """The spaces whose axes may be chosen: those that layers read, or vectors that are multiplied with theirs."""
    search = follow(graph, input_shape)
    search.staying += [lines.flatten() for lines in search.norms.values()]  # a mean is taken off there still
    spaces, _ = find_spaces(search)
    return [space for space in spaces if space.orthogonal or {end.opposite for end in space.ends} == {False, True}]


class _Ends:
    """Looks for the places where the vectors of every block stand, each in the order of its classes."""

    def __init__(self, search: Search, classes: Classes) -> None:
        self.search, self.classes, self.blocks = search, classes, classes.blocks()
        self.lost: list[Tensor] = []  # coordinates of constants whose vectors lie along no axis

    def find(self) -> dict[int, list[End]]:
        found: dict[int, list[End]] = defaultdict(list)
        for source in self.search.sources:
            for block, end in self._of_constant(source) if source.is_constant else self._of_layer(source):
                found[block].append(end)
        for reader in self.search.readers:
            for block, end in self._of_reader(reader):
                found[block].append(end)
        return found

    def _of_layer(self, source: Source) -> Iterator[tuple[int, End]]:
        """A layer may write several vectors of one space, as the queries of heads that share their keys."""
        for block, index, opposite in self._copies(source.coordinates):
            yield block, End(source.step, source.tensors, index, opposite, source.step, source.axis)

    def _of_reader(self, reader: Reader) -> Iterator[tuple[int, End]]:
        for block, index, opposite in self._copies(reader.coordinates, reader.vectors):
            yield block, End(reader.step, (("weight", 1),), index, not opposite, reader.value, reads=True)

    def _copies(self, coordinates: Tensor, *vectors: Tensor) -> Iterator[tuple[int, Tensor, bool]]:
        """The places of each vector in a list of coordinates: its block, index, and whether it is turned opposite."""
        blocks, classes, seen = self.blocks[coordinates], self.classes.of[coordinates], self.search.seen[coordinates]
        _, copy = torch.unique(torch.stack([blocks, seen, *vectors]), dim=1, return_inverse=True)
        order = torch.argsort(classes, stable=True)
        order = order[torch.argsort(copy[order], stable=True)]
        for index in order.split(torch.bincount(copy).tolist()):
            if (block := int(blocks[index[0]])) >= 0:
                yield block, index, bool(self.classes.flipped[coordinates[index[0]]])

    def _of_constant(self, source: Source) -> Iterator[tuple[int, End]]:
        """Its vectors lie along an axis, in the same order in all lines."""
        ((name, _),) = source.tensors
        coordinates = source.coordinates.reshape(source.shape)
        blocks = self.blocks[coordinates]
        for block in torch.unique(blocks[blocks >= 0]).tolist():
            axis = self._axis(coordinates, blocks == block)
            if axis is None:
                self.lost.append(coordinates[blocks == block])
                continue
            line = coordinates.movedim(axis, -1).reshape(-1, source.shape[axis])[0]
            index = (self.blocks[line] == block).nonzero().flatten()
            index = index[torch.argsort(self.classes.of[line[index]])]
            yield block, End(source.step, ((name, axis),), index, bool(self.classes.flipped[line[index[0]]]))

    def _axis(self, coordinates: Tensor, inside: Tensor) -> int | None:
        """Along which each line has every class once."""
        classes = torch.where(inside, self.classes.of[coordinates], -1)
        size = int(classes[inside].unique().numel())
        for axis in range(coordinates.dim()):
            lines = classes.movedim(axis, -1).reshape(-1, classes.shape[axis])
            if bool((lines == lines[:1]).all()) and int((lines[0] >= 0).sum()) == size:
                return axis
        return None


def turn_(graph: Graph, end: End, matrix: Tensor) -> None:
    """Turn the vectors that stand somewhere, in place; they are rounded when all is summed."""
    for name, axis in end.tensors:
        numbers = getattr(graph.get_submodule(end.step), name).data
        vectors = numbers.index_select(axis, end.index).double()
        turned = torch.tensordot(matrix, vectors, dims=([1], [axis])).movedim(0, axis)
        numbers.index_copy_(axis, end.index, turned.to(numbers.dtype))


FLOOR = 1e-6  # of the largest variance: what is less was never seen, and a direction of rounding errors


def principal(moment: Tensor) -> tuple[Tensor, Tensor]:
    """The rotation to the eigenvectors of a second moment, the largest first, and back."""
    _, axes = _eigen(moment)
    return axes.mT, axes


def balanced(written: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
    """``A`` and its inverse: ``A M A^T = A^-T G A^-1 = diag(s)``, the largest first.

    ``M^(1/2) G M^(1/2) = U diag(s^2) U^T``, ``A = diag(s)^(1/2) U^T M^(-1/2)``. Eigenvalues of ``M`` and ``s`` have a
    floor, under which they tell no more than how sums were rounded.
    """
    variances, axes = _eigen(written)
    root = _floored(variances).sqrt()
    squares, turn = _eigen(root[:, None] * (axes.mT @ read @ axes) * root)
    scale = _floored(squares.clamp(min=0).sqrt()).sqrt()
    return scale[:, None] * turn.mT / root @ axes.mT, axes @ (root[:, None] * turn / scale)


def _eigen(moment: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues from the largest on, eigenvectors as columns, of each the largest number positive."""
    values, vectors = torch.linalg.eigh(moment)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return values.flip(0), (vectors * largest.sign()).flip(1)


def _floored(values: Tensor) -> Tensor:
    largest = values.max()
    return values.clamp(min=FLOOR * largest) if largest > 0 else torch.ones_like(values)
