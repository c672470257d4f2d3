"""Sums of products of two values: one answers the other, as keys queries, or says how much of the other is added."""

from collections.abc import Sequence
from math import prod

import torch

from bhc.graph.basis.coordinates import Marked, Search, mixed


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
