"""Products of two values, attention among them: what is summed over lives and dies together, heads go whole.

``out[b, m, n] = sum_k left[b, m, k] right[b, k, n]``, and the same for other orders of the axes. Where units lie along
k the product carries none of them: it carries the heads, one along b, which live with some of their units alone. Where
they lie along n, as in values that are mixed by scores, they are handed on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from bhc.layers.arguments import Kept, Shape
from bhc.layers.aten import AtenCall, Own, Read
from bhc.layers.calls import AtenKind, count_flops, with_own
from bhc.layers.kind import Example, own_copy
from bhc.layers.pools import are_cells
from bhc.layers.protocols import UnitSearch

BATCH = "abcdefgh"  # letters of axes that both sides and the product have


@dataclass(frozen=True)
class Letters:
    """A letter for each axis of two values and of their product; an axis that is summed over is not in the latter."""

    left: str
    right: str
    out: str

    @classmethod
    def of_matrices(cls, left: int, right: int) -> "Letters":
        """Of ``left @ right``, which have so many axes."""
        batch = BATCH[: max(left, right, 2) - 2]
        rows, columns = "m" if left > 1 else "", "n" if right > 1 else ""
        sides = (
            batch[len(batch) - max(left - 2, 0) :] + rows + "k",
            batch[len(batch) - max(right - 2, 0) :] + "k" + columns,
        )
        return cls(*sides, batch + rows + columns)

    @classmethod
    def of_equation(cls, equation: str) -> "Letters | None":
        """Of an einsum of two values in which each letter stands once."""
        given, arrow, out = equation.replace(" ", "").partition("->")
        sides = given.split(",")
        words = (*sides, out)
        plain = all(word.isalpha() and len(set(word)) == len(word) for word in words)
        return cls(*words) if arrow and plain and len(sides) == 2 else None

    @property
    def summed(self) -> set[str]:
        return (set(self.left) | set(self.right)) - set(self.out)


class Product(AtenCall):
    """A sum of products of two values, or of a value and numbers of its own."""

    family: ClassVar[str] = "product"

    @classmethod
    def covers(cls, target: str) -> bool:
        return target in ("aten.matmul.default", "aten.bmm.default", "aten.linear.default", "aten.einsum.default")


SIDES = {"matmul": ("self", "other"), "bmm": ("self", "mat2"), "linear": ("input", "weight")}


def _sides(module: Product) -> Sequence[Any]:
    """Its two arguments; others are none of values."""
    if module.op == "einsum":
        return module.argument("tensors")
    return [module.argument(name) for name in SIDES[module.op]]


class ProductKind(AtenKind):
    """``Product``. Of weights that are its own, as those that several layers share, inputs go and outputs stay."""

    name, module = Product.family, Product

    def follow(self, module: Product, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        letters = _letters(module, [units.dim() for units in arriving])
        if letters is None or isinstance(module.argument("bias"), Read):
            return keep_whole(search, leaving, arriving)
        given = [arriving[side.place] if isinstance(side, Read) else None for side in _sides(module)]
        found = product_units(search, letters, *given)
        return keep_whole(search, leaving, arriving) if found is None else found.expand(leaving)

    def counts_kept(self, module: Product, axes: Sequence[tuple[int, ...]], dimensions: Sequence[int]) -> bool:
        letters = _letters(module, dimensions)
        if letters is None:
            return False
        words = (letters.left, letters.right)
        return any(
            isinstance(side, Read) and any(word[axis] in letters.summed for axis in axes[side.place])
            for side, word in zip(_sides(module), words, strict=True)
        )

    def masked(self, module: Product, keeps: Sequence[Tensor | None], *values: Tensor) -> Tensor:
        return module(*with_zeros(keeps, values))

    def narrowed(self, module: Product, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        letters = _letters(module, [kept.dimensions for kept in arriving])
        sides = _sides(module)
        if letters is None or not any(isinstance(side, Own) for side in sides):
            return own_copy(module)
        place = next(place for place, side in enumerate(sides) if isinstance(side, Own))
        kept = arriving[sides[1 - place].place]
        own, other = (letters.left, letters.right)[:: 1 if place == 0 else -1]
        letter, numbers = other[kept.axis], getattr(module, sides[place].name).detach()
        if kept.cells is not None and len(own) == len(other):
            order = _beside(own, other)
            numbers = kept.pick(numbers.permute(order)).permute(np.argsort(order).tolist())
        elif letter in own:
            numbers = numbers.index_select(own.index(letter), torch.from_numpy(kept.index))
        return with_own(module, dict(module.named_own()) | {sides[place].name: numbers})

    def shares_of_flops(
        self, module: Product, arriving: Sequence[Shape], leaving: Shape
    ) -> Sequence[tuple[int, tuple[int, ...]]]:
        return [(self.num_flops(module, arriving, leaving), tuple(range(len(arriving) + 1)))]

    def num_flops(self, module: Product, arriving: Sequence[Shape], leaving: Shape) -> int:
        return count_flops(module, arriving, leaving)

    def examples(self) -> Sequence[Example]:
        return [
            (Product("aten.matmul.default", [Read(0), Read(1)]), ((2, 3, 4), (2, 4, 5))),
            (Product("aten.einsum.default", ["bik,bjk->bij", [Read(0), Read(1)]]), ((2, 3, 4), (2, 5, 4))),
        ]


class Attention(AtenCall):
    """``softmax(query key^T scale + mask) value``, for each head."""

    family: ClassVar[str] = "attention"

    @classmethod
    def covers(cls, target: str) -> bool:
        return target == "aten.scaled_dot_product_attention.default"


class AttentionKind(AtenKind):
    """Queries and keys in pairs, values by themselves, heads as a whole; the scale stays what it was."""

    name, module = Attention.family, Attention

    def follow(self, module: Attention, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        places = [module.argument(name) for name in ("query", "key", "value")]
        mask, grouped = module.argument("attn_mask"), module.argument("enable_gqa", False)
        if not all(isinstance(side, Read) for side in places):
            return keep_whole(search, leaving, arriving)
        query, key, value = (arriving[side.place] for side in places)
        if grouped and query.dim() == 4:  # heads that share keys and values
            times = query.shape[1] // key.shape[1]
            key, value = (units.repeat_interleave(times, 1) for units in (key, value))
        batch = BATCH[: query.dim() - 2]
        scores = product_units(search, Letters(f"{batch}mk", f"{batch}nk", f"{batch}mn"), query, key)
        if scores is None:
            return keep_whole(search, leaving, arriving)
        shape = (*query.shape[:-1], key.shape[-2])
        scores = scores.expand(shape)
        if isinstance(mask, Read):
            units = arriving[mask.place]
            if any(search.varies(units, axis) for axis in range(units.dim())):
                search.join(scores, units.expand(shape))
        found = product_units(search, Letters(f"{batch}mk", f"{batch}kn", f"{batch}mn"), scores, value)
        return keep_whole(search, leaving, arriving) if found is None else found.expand(leaving)

    def counts_kept(self, module: Attention, axes: Sequence[tuple[int, ...]], dimensions: Sequence[int]) -> bool:
        query = module.argument("query")
        return isinstance(query, Read) and dimensions[query.place] - 1 in axes[query.place]

    def masked(self, module: Attention, keeps: Sequence[Tensor | None], *values: Tensor) -> Tensor:
        query = module.argument("query").place
        alone = [keep if place == query else None for place, keep in enumerate(keeps)]
        return module(*with_zeros(alone, values))

    def narrowed(self, module: Attention, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        query = arriving[module.argument("query").place]
        scale = module.argument("scale")
        if scale is None:
            before = (
                query.cells.before if query.cells is not None and query.cells.axis == query.dimensions - 1 else None
            )
            before = len(query.mask) if query.axis == query.dimensions - 1 else before
            module = module if before is None else module.with_arguments(scale=before**-0.5)  # type: ignore[assignment]
        own = dict(module.named_own())
        mask = module.argument("attn_mask")
        heads = query.axis - query.dimensions
        if isinstance(mask, Own) and heads <= -3 and query.lies_along(own[mask.name]):
            own[mask.name] = own[mask.name].index_select(heads, torch.from_numpy(query.index))
        return with_own(module, own)

    def shares_of_flops(
        self, module: Attention, arriving: Sequence[Shape], leaving: Shape
    ) -> Sequence[tuple[int, tuple[int, ...]]]:
        query, value = (module.argument(name) for name in ("query", "value"))
        if not (isinstance(query, Read) and isinstance(value, Read)):
            return super().shares_of_flops(module, arriving, leaving)
        whole = self.num_flops(module, arriving, leaving)
        scores = whole * arriving[query.place][-1] // (arriving[query.place][-1] + arriving[value.place][-1])
        return [(scores, (query.place,)), (whole - scores, (-1,))]

    def num_flops(self, module: Attention, arriving: Sequence[Shape], leaving: Shape) -> int:
        return count_flops(module, arriving, leaving)

    def examples(self) -> Sequence[Example]:
        return [
            (Attention("aten.scaled_dot_product_attention.default", [Read(0), Read(1), Read(2)]), ((2, 2, 3, 4),) * 3)
        ]


def _beside(own: str, other: str) -> list[int]:
    """The axes of one side in the order in which the other has them, with that of its own where the other's is."""
    alone = own.index(next(letter for letter in own if letter not in other))
    return [own.index(letter) if letter in own else alone for letter in other]


def _letters(module: Product, dimensions: Sequence[int]) -> Letters | None:
    sides = _sides(module)
    if len(sides) != 2 or not any(isinstance(side, Read) for side in sides) or sides[0] == sides[1]:
        return None
    counts = [dimensions[side.place] if isinstance(side, Read) else getattr(module, side.name).dim() for side in sides]
    if module.op == "einsum":
        letters = Letters.of_equation(str(module.argument("equation")))
        fits = letters is not None and [len(letters.left), len(letters.right)] == counts
        return letters if fits else None
    if module.op == "linear":
        places = BATCH[: counts[0] - 1]
        return Letters(places + "k", "nk", places + "n") if counts[1] == 2 else None
    return Letters.of_matrices(*counts)


def with_zeros(keeps: Sequence[Tensor | None], values: Sequence[Tensor]) -> list[Tensor]:
    """The values, the first that can be with zeros where nothing is left: of two factors one is enough."""
    first = next((place for place, keep in enumerate(keeps) if keep is not None), None)
    masked = list(values)
    if first is not None:
        masked[first] = values[first].masked_fill(~keeps[first], 0.0)  # type: ignore[operator]
    return masked


def keep_whole(search: UnitSearch, leaving: Shape, arriving: Sequence[Tensor]) -> Tensor:
    for units in arriving:
        search.keep(units)
    return search.whole(leaving)


def product_units(search: UnitSearch, letters: Letters, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """The units of a product, one size for each axis that they do not lie along; None where it keeps all it reads.

    A side without units has numbers of the step's own, which follow what they meet.
    """
    if left is None or right is None:
        word, units = (letters.right, right) if left is None else (letters.left, left)
        return None if units is None else _with_own_numbers(search, letters, word, units)
    ends = (letters.left, left), (letters.right, right)
    lying = [_lying(search, word, units) for word, units in ends]
    both = set(letters.left) & set(letters.right) & set(letters.out)
    heads, summed = sorted((lying[0] | lying[1]) & both), sorted((lying[0] | lying[1]) & letters.summed)
    free = [sorted(own - both - letters.summed) for own in lying]
    if max(map(len, (heads, summed, *free))) > 1 or sum(map(bool, (summed, *free))) > 1:
        return None
    if summed:
        return _scores(search, letters, ends, heads, summed[0])
    if not (free[0] or free[1]):
        first, second = torch.broadcast_tensors(*(_rows(units, word, heads)[:, 0] for word, units in ends))
        if search.varies(first, 0) or search.varies(second, 0):
            search.join(first, second)
            search.tie(first)
        return _spread(first if heads else first[0], letters.out, heads)
    mixed, scores = ends if free[0] else reversed(ends)
    return _mixed(search, letters, mixed, scores, heads, (free[0] or free[1])[0])


End = tuple[str, Tensor]  # the letters of one side's axes, and its units


def _with_own_numbers(search: UnitSearch, letters: Letters, word: str, units: Tensor) -> Tensor | None:
    lying = sorted(_lying(search, word, units))
    if len(lying) > 1:
        return _heads_with_own_numbers(search, letters, word, units, lying)
    if not lying or lying[0] in letters.summed:
        return search.whole((1,) * len(letters.out))
    return _spread(_rows(units, word, [], lying[0])[0], letters.out, lying)


def _heads_with_own_numbers(
    search: UnitSearch, letters: Letters, word: str, units: Tensor, lying: Sequence[str]
) -> Tensor | None:
    """Scores of what each head has with numbers of that head: they carry the heads."""
    heads, summed = ([letter for letter in lying if (letter in letters.summed) == is_summed] for is_summed in (0, 1))
    own = letters.left if word == letters.right else letters.right
    if len(heads) != 1 or len(summed) != 1 or heads[0] not in letters.out or heads[0] not in own:
        return None
    cells = _rows(units, word, heads, summed[0])
    if not are_cells(cells):
        return None
    rows = search.new(len(cells))
    search.heads.live_within(rows, cells)
    return _spread(rows, letters.out, heads)


def _scores(search: UnitSearch, letters: Letters, ends: Sequence[End], heads: list[str], axis: str) -> Tensor | None:
    """What is multiplied goes in pairs; what comes of it has a unit for each head."""
    if not all(axis in word for word, _ in ends):
        return None
    first, second = torch.broadcast_tensors(*(_rows(units, word, heads, axis) for word, units in ends))
    if not (are_cells(first) and are_cells(second)):
        return None
    search.join(first, second)
    search.tie(first)
    rows = search.new(len(first))
    search.heads.live_within(rows, first)
    return _spread(rows if heads else rows[0], letters.out, heads)


def _mixed(search: UnitSearch, letters: Letters, mixed: End, scores: End, heads: list[str], axis: str) -> Tensor:
    """Each unit is handed on, as long as its head lives."""
    units = _rows(mixed[1], mixed[0], heads, axis)
    rows = _rows(scores[1], scores[0], heads)[:, 0]
    if len(units) > 1 and not search.varies(rows, 0):  # scores that are the same for all heads, or never go
        search.keep(rows)
        rows = search.new(len(units))
        search.keep(rows)
    search.heads.live_within(rows, units.expand(len(rows), -1))
    return _spread(units if heads else units[0], letters.out, [*heads, axis])


def _lying(search: UnitSearch, letters: str, units: Tensor) -> set[str]:
    """The axes along which units differ."""
    return {letter for axis, letter in enumerate(letters) if search.varies(units, axis)}


def _rows(units: Tensor, letters: str, heads: Sequence[str], axis: str | None = None) -> Tensor:
    """(heads or 1, places of the axis or 1), at the first place of all other axes."""
    for place, letter in enumerate(letters):
        if letter not in (*heads, axis):
            units = units.narrow(place, 0, 1)
    wanted = [letters.find(letter) if letter else -1 for letter in (heads[0] if heads else None, axis)]
    sizes = [units.shape[place] if place >= 0 else 1 for place in wanted]
    there = [place for place in wanted if place >= 0]
    return units.permute(*there, *(place for place in range(units.dim()) if place not in there)).reshape(sizes)


def _spread(units: Tensor, out: str, axes: Sequence[str]) -> Tensor:
    """Units along some axes as those of the product, with size 1 along all others."""
    order = sorted(range(len(axes)), key=lambda place: out.index(axes[place]))
    sizes = {axes[place]: units.shape[place] for place in order}
    return units.permute(order).reshape([sizes.get(letter, 1) for letter in out])


KINDS = (ProductKind, AttentionKind)
