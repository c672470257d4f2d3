"""Which numbers of a network are coordinates of one vector: what a search through a graph finds.

A *coordinate* is what one output of a layer writes, or one number of a constant. Of every number of a value it is known
which coordinate it is, and by a *mark* of which vector it is a part: numbers of one value with the same mark are one
vector. Coordinates that meet in a sum are turned alike, those of two vectors that are multiplied with each other, as
queries and keys, opposite ways: ``q^T k = (A q)^T (A^-T k)``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from bhc.layers import Shape

STAYS = 0  # the coordinate of every number that must stay what it is
Tensors = tuple[tuple[str, int], ...]  # names of a step's tensors, each with the axis along which vectors lie


def mixed(numbers: Tensor) -> Tensor:
    """Marks made of marks: different for different numbers but for one pair in 2^64 (the end of splitmix64)."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        numbers = (numbers ^ (numbers >> shift)) * factor
    return numbers ^ (numbers >> 31)


@dataclass(frozen=True, eq=False)
class Marked:
    """A value: of each of its numbers the coordinate and the mark of its vector, as int64 tensors of its shape.

    Numbers that are moved keep their marks; who changes numbers gives new marks, so that what has come another way is
    another vector. What stays is marked number by number: it may become a factor.
    """

    coordinates: Tensor
    vectors: Tensor
    squared: bool = False  # whether the numbers were squared
    unchanged: bool = True  # whether each is as it was written, or a mean of such
    raw: bool = True  # whether no norm has taken their mean off
    settled: bool = False  # whether something with a mean was added after that
    constant: bool = False  # whether it is a tensor of a step's own

    @property
    def shape(self) -> Shape:
        return tuple(self.coordinates.shape)

    @property
    def moves(self) -> bool:
        """Whether there is anything that need not stay what it is."""
        return bool((self.coordinates != STAYS).any())

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Marked":
        """The same numbers at other places."""
        return replace(self, coordinates=move(self.coordinates), vectors=move(self.vectors))

    @staticmethod
    def of(values: Sequence["Marked"], coordinates: Tensor, vectors: Tensor, *, unchanged: bool) -> "Marked":
        """What is made of some values."""
        squared, raw, settled = (any(getattr(each, name) for each in values) for name in ("squared", "raw", "settled"))
        unchanged = unchanged and all(each.unchanged for each in values)
        return Marked(coordinates, vectors, squared, unchanged, raw, settled)

    def rows(self) -> "Marked":
        """As a matrix of lines along the last axis."""
        return self.moved(lambda part: part.flatten(0, -2))


@dataclass(frozen=True, eq=False)
class Source:
    """Who writes the coordinates from ``first`` on: a layer its outputs, a gain what it gives, a constant all of its
    numbers, whose axes are not known."""

    step: str
    tensors: Tensors
    first: int
    shape: Shape
    axis: int = -1  # of what the step gives, along which they lie
    is_constant: bool = False

    @property
    def coordinates(self) -> Tensor:
        return torch.arange(self.first, self.first + torch.Size(self.shape).numel())


@dataclass(frozen=True, eq=False)
class Reader:
    """A linear layer, with the coordinate and the mark of each of its inputs."""

    step: str
    value: str  # what it reads
    coordinates: Tensor  # (I,)
    vectors: Tensor  # (I,)
    unchanged: bool


@dataclass(frozen=True, eq=False)
class Gain:
    """A step that multiplies each number along the last axis with one of its own: what arrives, and what it gives."""

    step: str
    arriving: Tensor  # (C,)
    coordinates: Tensor  # (C,)


class Search:
    """What is found as values are followed through a graph."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.readers: list[Reader] = []
        self.gains: list[Gain] = []
        self.norms: dict[str, Tensor] = {}  # by step: the coordinates whose mean is taken off, in lines
        self.seen = torch.zeros(1, dtype=torch.int64)  # of every coordinate: a mark of all places where it stands
        self.places = 0  # so far
        self.links = [torch.zeros(2, 0, dtype=torch.int64)]  # of coordinates, twice their number; odd: turned opposite
        self.staying = [torch.tensor([STAYS])]
        self.lengths: list[Tensor] = []  # of these the length of vectors counts
        self.elsewhere: list[Tensor] = []  # these are read by others than linear layers
        self.means_matter: list[Tensor] = []  # these are read with their mean
        self.keeping_means: set[str] = set()  # steps whose constants are added after a norm

    def write(
        self, step: str, tensors: Tensors, shape: Sequence[int], *, axis: int = -1, is_constant: bool = False
    ) -> Tensor:
        """New coordinates, in a shape."""
        first, size = len(self.seen), torch.Size(shape)
        self.seen = torch.cat([self.seen, self.new_mark().expand(size.numel())])
        self.sources.append(Source(step, tensors, first, size, axis, is_constant))
        return torch.arange(first, first + size.numel()).reshape(size)

    def fixed(self, shape: Sequence[int]) -> Marked:
        """A value that stays what it is."""
        size = torch.Size(shape)
        marks = torch.arange(size.numel()) + self.new_mark()
        return Marked(torch.tensor(STAYS).expand(size), marks.reshape(size))

    def new_mark(self) -> Tensor:
        self.places += 1
        return mixed(torch.tensor(self.places))

    def alike(self, left: Tensor, right: Tensor) -> None:
        """These are turned alike, number by number."""
        self._link(left, right, 0)

    def opposite(self, left: Tensor, right: Tensor) -> None:
        """Products of these are to stay what they are."""
        self._link(left, right, 1)

    def _link(self, left: Tensor, right: Tensor, turn: int) -> None:
        count, apart = len(self.seen), (left != right) | bool(turn)
        pairs = (left * count + right)[apart].unique()
        left, right = 2 * (pairs // count), 2 * (pairs % count)
        self.links.append(torch.stack([torch.cat([left, left + 1]), torch.cat([right + turn, right + 1 - turn])]))

    def stay(self, *values: Marked) -> None:
        """Nothing of these may be turned."""
        self.staying += [value.coordinates.unique() for value in values]

    def stand(self, value: Marked) -> None:
        """Vectors lie along the last axis: what is in one line may be mixed with what is in the same lines alone."""
        rows = value.rows()
        lines = mixed(torch.arange(len(rows.vectors))[:, None] + self.new_mark())
        self.seen.index_add_(0, rows.coordinates.flatten(), mixed(rows.vectors + lines).flatten())

    def read(self, step: str, name: str, value: Marked) -> None:
        """A linear layer sums over the last axis, the same coordinates in every line."""
        rows = value.rows()
        self.alike(rows.coordinates, rows.coordinates[:1])
        self.stand(value)
        marks = mixed(rows.vectors + torch.arange(len(rows.vectors))[:, None]).sum(0)
        self.readers.append(Reader(step, name, rows.coordinates[0], marks, value.unchanged))
        self.with_mean(value)

    def measure(self, value: Marked) -> None:
        """The length of what lies along the last axis counts."""
        self.stand(value)
        self.lengths.append(value.coordinates.unique())
        self.elsewhere.append(value.coordinates.unique())

    def with_mean(self, value: Marked) -> None:
        """Who reads it would read something else if its mean were taken off."""
        if value.raw:
            self.means_matter.append(value.coordinates.unique())


def contracted(search: Search, left: Marked, right: Marked) -> Marked:  # (..., I, C), (..., J, C) -> (..., I, J)
    """``sum_c left[i, c] right[j, c]``."""
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left = left.moved(lambda part: part.expand(*batch, *part.shape[-2:]))
    right = right.moved(lambda part: part.expand(*batch, *part.shape[-2:]))
    left, right = _unless_weights(search, left, right), _unless_weights(search, right, left)
    if left.moves and right.moves:
        return _answered(search, left, right)
    if left.moves:
        return _weighted(search, left, right.shape[-2]).moved(lambda part: part.mT)
    return _weighted(search, right, left.shape[-2])


def _unless_weights(search: Search, value: Marked, other: Marked) -> Marked:
    """A constant with which whole vectors are weighed stays."""
    if not value.constant or bool((other.coordinates != other.coordinates[..., :1]).any()):
        return value
    search.stay(value)
    return search.fixed(value.shape)


def _answered(search: Search, left: Marked, right: Marked) -> Marked:
    """Vectors lie along the axis that is summed over, and are turned opposite ways."""
    for value in (left, right):
        search.alike(value.coordinates, value.coordinates[..., :1, :])
        search.stand(value)
        search.elsewhere.append(value.coordinates.unique())
        search.with_mean(value)
    search.opposite(left.coordinates[..., 0, :], right.coordinates[..., 0, :])
    return search.fixed((*left.shape[:-1], right.shape[-2]))


def _weighted(search: Search, value: Marked, lines: int) -> Marked:  # (..., J, C) -> (..., lines, J)
    """Vectors lie along J and are added, each times a number of its own."""
    search.alike(value.coordinates, value.coordinates[..., :1])
    shape = (*value.shape[:-2], lines, value.shape[-2])
    vectors = mixed(value.vectors + torch.arange(value.shape[-1])).sum(-1)
    own = mixed(torch.arange(prod(shape[:-1])) + search.new_mark()).reshape(*shape[:-1], 1)
    coordinates = value.coordinates[..., 0].unsqueeze(-2).expand(shape)
    return Marked.of([value], coordinates, vectors.unsqueeze(-2) + own, unchanged=False)


def einsum(search: Search, equation: str, left: Marked, right: Marked) -> Marked | None:
    """The same by letters: those of both that stay are a batch, those that are gone are summed over."""
    terms, _, given = equation.replace(" ", "").partition("->")
    one, other = terms.split(",")
    if "." in equation or not given or any(len(set(term)) < len(term) for term in (one, other, given)):
        return None
    both = [letter for letter in one if letter in other]
    batch, over = [each for each in both if each in given], [each for each in both if each not in given]
    rows, columns = ([each for each in term if each not in both] for term in (one, other))
    if sorted(given) != sorted(batch + rows + columns):
        return None
    sizes = dict(zip(one, left.shape, strict=True)) | dict(zip(other, right.shape, strict=True))
    product = contracted(
        search, _in_order(left, one, (batch, rows, over), sizes), _in_order(right, other, (batch, columns, over), sizes)
    )
    letters = batch + rows + columns
    shape, order = [sizes[each] for each in letters], [letters.index(each) for each in given]
    return product.moved(lambda part: part.reshape(shape).permute(order))


def _in_order(value: Marked, term: str, parts: Sequence[Sequence[str]], sizes: dict[str, int]) -> Marked:
    """A batch, then one axis for each other part of the letters."""
    batch, *others = parts
    order = [term.index(letter) for part in parts for letter in part]
    shape = [sizes[each] for each in batch] + [prod(sizes[each] for each in part) for part in others]
    return value.moved(lambda part: part.permute(order).reshape(shape))
