"""Shapes of values, windows that slide over them, and arguments of constructors: checked when they are read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

Shape = tuple[int, ...]  # with the batch: (N, C, H, W), (N, features), (N, T, C)

# So many examples have the shapes that are worked out; with one, what depends on their number would not show.
EXAMPLES = 2

# Kernels, strides and paddings of real layers are far smaller; a damaged file's need not be.
LARGEST_ARGUMENT = 1 << 12
# No layer comes near this; a damaged or hostile description must not make us allocate more.
LARGEST_LAYER = 1 << 28


@dataclass(frozen=True)
class Cells:
    """Of heads that stay, the places that each keeps along another axis: as many as any other, not the same ones."""

    axis: int
    places: np.ndarray  # (heads that stay, n)
    before: int  # places that there were


@dataclass(frozen=True)
class Kept:
    """What stays of a value: places along one axis, and where these are heads what each keeps along another."""

    axis: int
    mask: np.ndarray  # of the axis's places
    dimensions: int = 0  # of the value, the batch included
    cells: Cells | None = None

    @property
    def index(self) -> np.ndarray:
        return self.mask.nonzero()[0]

    def size(self, axis: int) -> int | None:
        """How many places stay along an axis; None where all do."""
        if axis % max(self.dimensions, 1) == self.axis:
            return int(self.mask.sum())
        if self.cells is not None and axis % self.dimensions == self.cells.axis:
            return self.cells.places.shape[1]
        return None

    def lines(self) -> Iterator[tuple[int, np.ndarray, int]]:
        """The axes of which some may be gone: what stays, of how many; cells are those of the first head."""
        yield self.axis, self.index, len(self.mask)
        if self.cells is not None:
            yield self.cells.axis, self.cells.places[0], self.cells.before

    def places(self, axis: int) -> int:
        """How many there were along an axis of which some may be gone."""
        is_of_cells = self.cells is not None and axis % self.dimensions == self.cells.axis
        return self.cells.before if self.cells is not None and is_of_cells else len(self.mask)

    def part(self, axis: int) -> Fraction:
        """Which part of an axis stays."""
        size = self.size(axis)
        return Fraction(1) if size is None else Fraction(size, self.places(axis))

    def before(self, axis: int, place: int) -> int:
        """How many of the first so many places of an axis stay."""
        if self.cells is not None and axis % self.dimensions == self.cells.axis:
            return int((self.cells.places[:1] < place).sum())
        return int(self.mask[:place].sum()) if axis % self.dimensions == self.axis else place

    def pick(self, numbers: Tensor) -> Tensor:
        """Those of some numbers, broadcast to the value, that go with what stays."""
        heads = self.axis - self.dimensions
        if self.cells is not None and _lies_along(numbers, self.cells.axis - self.dimensions, self.cells.before):
            return self._pick_cells(numbers, heads, self.cells.axis - self.dimensions, self.cells.places)
        return numbers.index_select(heads, torch.from_numpy(self.index)) if self.lies_along(numbers) else numbers

    def lies_along(self, numbers: Tensor) -> bool:
        """Whether numbers that are broadcast to the value have one for each place of the axis."""
        return _lies_along(numbers, self.axis - self.dimensions, len(self.mask))

    def _pick_cells(self, numbers: Tensor, heads: int, axis: int, places: np.ndarray) -> Tensor:
        by_head, alike = self.lies_along(numbers), bool((places == places[:1]).all())
        if by_head:
            numbers = numbers.index_select(heads, torch.from_numpy(self.index))
        if alike and len(places):
            return numbers.index_select(axis, torch.from_numpy(places[0]))
        numbers = numbers.reshape(*[1] * (-min(heads, axis) - numbers.dim()), *numbers.shape)
        around = [1] * numbers.dim()
        around[heads], around[axis] = places.shape
        index = torch.from_numpy(places if heads < axis else places.T).reshape(around)
        sizes = list(numbers.shape)
        sizes[heads] = len(places)
        return numbers.expand(sizes).gather(axis, index.expand(_with(sizes, axis, places.shape[1])))


def _with(sizes: Sequence[int], axis: int, size: int) -> list[int]:
    changed = list(sizes)
    changed[axis] = size
    return changed


def _lies_along(numbers: Tensor, axis: int, places: int) -> bool:
    """Whether numbers that are broadcast have one for each of so many places; axes are counted from the last."""
    return numbers.dim() >= -axis and numbers.shape[axis] == places > 1


def expect(condition: bool, problem: str) -> None:
    """ValueError where something does not hold."""
    if not condition:
        raise ValueError(problem)


def bounded(*sizes: int) -> int:
    """Their product, if each is a positive whole number and the product is not absurd."""
    if not all(type(size) is int and 0 < size <= LARGEST_LAYER for size in sizes) or prod(sizes) > LARGEST_LAYER:
        raise ValueError(f"a layer of {' x '.join(map(str, sizes))} numbers")
    return prod(sizes)


def sizes(value: Any, count: int) -> tuple[int, ...]:
    """An argument that stands for every direction, or gives one for each."""
    numbers = (value,) * count if isinstance(value, int) else tuple(value)
    expect(
        len(numbers) == count and all(type(n) is int and 0 <= n <= LARGEST_ARGUMENT for n in numbers),
        f"{value!r} is not a size",
    )
    return numbers


def pair(value: Any) -> tuple[int, int]:
    """An argument that stands for both directions, or gives one for each."""
    first, second = sizes(value, 2)
    return first, second


def spans(kernel_size: Any, dilation: Any, directions: int) -> tuple[int, ...]:
    """Places from the first to the last that a window touches, in each direction."""
    steps, kernel = sizes(dilation, directions), sizes(kernel_size, directions)
    expect(min(*kernel, *steps) >= 1, "a window has a size of zero")
    return tuple(step * (size - 1) + 1 for step, size in zip(steps, kernel, strict=True))


def windows(shape: Shape, span: Sequence[int], stride: Any, padding: Sequence[int]) -> tuple[int, ...]:
    """How often a sliding window fits, in each direction; ``padding`` before each, then after each."""
    count = len(shape) - 2
    steps = sizes(stride, count)
    fits = []
    for axis in range(count):
        expect(steps[axis] >= 1, "a window has a size of zero")
        room = shape[2 + axis] + padding[axis] + padding[axis + count] - span[axis]
        expect(room >= 0, f"a window of {span} does not fit into {shape[1:]}")
        fits.append(room // steps[axis] + 1)
    return tuple(fits)


def conv_padding(module: Any) -> tuple[int, ...]:
    """Zeros added before each direction, then after each, whatever way the layer spells them."""
    directions = module.weight.dim() - 2
    if isinstance(module.padding, str):
        expect(module.padding in ("valid", "same"), f"padding {module.padding!r}")
        if module.padding == "valid":
            return (0,) * 2 * directions
        expect(set(sizes(module.stride, directions)) == {1}, "padding 'same' needs a stride of 1")
        span = spans(module.kernel_size, module.dilation, directions)
        before = tuple((size - 1) // 2 for size in span)
        return (*before, *[size - 1 - pad for size, pad in zip(span, before, strict=True)])
    return sizes(module.padding, directions) * 2


def resized(shape: Sequence[int], axis: int, size: int) -> Shape:
    """A shape with another size along an axis."""
    return tuple(size if place == axis else length for place, length in enumerate(shape))


def must_fit(condition: bool, module: Any, *arriving: Shape) -> None:
    """ValueError, with the shapes of one example, where a module does not take what arrives."""
    shapes = " and ".join(str(shape[1:]) for shape in arriving)
    expect(condition, f"{type(module).__name__} does not take {shapes}")


LARGEST_NUMBER = 1e15  # no product with it leaves the range of a 32-bit float
LARGEST_SIZE = 1 << 22
SMALLEST_NUMBER = 1e-15


class Argument:
    """Anything that is plain data; subclasses are stricter."""

    def checked(self, value: Any) -> Any:
        """The argument, if it is one that a file may hold; ValueError else."""
        return value

    def plain(self, value: Any) -> Any:
        """The same as plain data."""
        return list(value) if isinstance(value, tuple) else value


class Real(Argument):
    """A finite number."""

    def checked(self, value: Any) -> float:
        fine = type(value) is float and abs(value) <= LARGEST_NUMBER
        expect(fine, f"{brief(value)} in the place of a finite number")
        return value

    def plain(self, value: Any) -> float:
        return float(value)


class Positive(Real):
    """A number that can be divided by."""

    def checked(self, value: Any) -> float:
        expect(super().checked(value) >= SMALLEST_NUMBER, f"{brief(value)} in the place of a positive number")
        return value


class Size(Argument):
    """A whole number, or one for each direction."""

    def checked(self, value: Any) -> int | tuple[int, ...]:
        sizes = value if isinstance(value, list) else [value]
        fine = all(type(size) is int and 0 <= size <= LARGEST_SIZE for size in sizes)
        expect(fine, f"{brief(value)} as an argument")
        return tuple(value) if isinstance(value, list) else value


class Flag(Argument):
    """True or false."""

    def checked(self, value: Any) -> bool:
        expect(type(value) is bool, f"{brief(value)} as an argument")
        return value


@dataclass(frozen=True)
class Choice(Argument):
    """One of a few words."""

    words: Sequence[str]

    def checked(self, value: Any) -> str:
        expect(value in self.words, f"{brief(value)} as an argument")
        return str(value)


def unknown(entry: Any) -> ValueError:
    """What an entry of a file is that no kind of layer would write."""
    return ValueError(f"an unknown step, {brief(entry)}")


def brief(value: Any) -> str:
    """A value as a message may show it."""
    return str(value)[:60]
