"""Convolutions whose groups all stay: what goes together so that all of them keep equally many channels.

With ``c_g(u)`` the channels of a unit ``u`` in group ``g`` of G, a set of units leaves the groups even if

    sum_u (G c_g(u) - sum_h c_h(u)) = 0    for every g, of every convolution that has some of them.

All units together are such a set. It is taken apart into small ones, each of which is one unit from then on.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bhc.graph.heads import NEVER, Grouped, Heads, Part, Search, connected

Choice = tuple[list[list[int]], list[int]]  # sets of units, of which any may go, and units that must stay


def even_out(search: Search, heads: Sequence[Heads], outputs: Tensor) -> bool:
    """Of convolutions whose groups all stay, join units until groups that keep any keep equally many; whether there
    was anything to join. What contexts choose, the network's outputs, is never cut in groups."""
    chosen = search.labels(outputs)
    given = (each[np.isin(each, chosen)] for each in _sides(search, search.heads.groups))
    if any((units != NEVER).any() for units in given):
        search.keep(outputs)
        return True
    level = [each for each in search.heads.level if any(len(own) > 1 for own in _groups(search, each))]
    own = [set().union(*_groups(search, each)) - {NEVER} for each in level]
    return _even_heads(search, heads, _sides(search, level)) or any(
        _even_together(search, heads, [level[at] for at in together]) for together in connected(own)
    )


def _sides(search: Search, convolutions: Iterable[Grouped]) -> list[np.ndarray]:
    """What they read and give, (groups, channels); the same once."""
    found = [search.labels(side) for each in convolutions for side in each.sides]
    return list({(each.shape, each.tobytes()): each for each in found}.values())


def _imbalance(sides: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:  # (U,), (U, all groups)
    """Units, and by how much each group has more of them than the mean, times the number of groups."""
    labels = np.unique(np.concatenate([side.ravel() for side in sides]))
    each = []
    for side in sides:
        counts = np.zeros((len(labels), len(side)), dtype=np.int64)
        np.add.at(counts, (np.searchsorted(labels, side), np.arange(len(side))[:, None]), 1)
        each.append(len(side) * counts - counts.sum(1, keepdims=True))
    return labels, np.hstack(each)


def _even_heads(search: Search, heads: Sequence[Heads], sides: Sequence[np.ndarray]) -> bool:
    """Heads among what groups read and give: all of them stay where each is of one group, else each keeps all."""
    if not sides or not heads:
        return False
    labels, imbalance = _imbalance(sides)
    uneven = {unit: own for unit, own in zip(labels.tolist(), imbalance, strict=True) if own.any()}
    return any(_even_part(search, group.rows, part, uneven) for group in heads for part in group.parts)


def _even_part(search: Search, rows: np.ndarray, part: Part, uneven: Mapping[int, np.ndarray]) -> bool:
    """``uneven`` are units with their imbalance."""
    shared = [column for column in part.columns if not uneven.keys().isdisjoint(column.tolist())]
    if shared:
        return _keep(search, *shared, part.units)
    if uneven.keys().isdisjoint(part.units.ravel().tolist()):
        return False
    even = np.zeros_like(next(iter(uneven.values())))
    each = np.array([[uneven.get(unit, even) for unit in row] for row in part.units.tolist()])  # (H, n, all groups)
    if (each == each[:, :1]).all():
        return _keep(search, part.units if each.sum((0, 1)).any() else rows)
    units = torch.from_numpy(part.units)
    search.join(units[:, :1].expand(units.shape), units)
    return True


def _keep(search: Search, *units: np.ndarray) -> bool:
    """Never cut these; whether any of them could be before."""
    together = torch.from_numpy(np.concatenate([each.ravel() for each in units]))
    if (search.labels(together) == NEVER).all():
        return False
    search.keep(together)
    return True


def _even_together(search: Search, heads: Sequence[Heads], convolutions: Sequence[Grouped]) -> bool:
    """Join what goes together in convolutions that share units, or whole groups where fewer channels must stay then."""
    fixed = {NEVER}.union(*(part.units.ravel().tolist() for group in heads for part in group.parts))
    sides = _sides(search, convolutions)
    labels, imbalance = _imbalance(sides)
    if not any(own.any() for unit, own in zip(labels.tolist(), imbalance, strict=True) if unit not in fixed):
        return False
    counts = Counter(unit for side in sides for unit in side.ravel().tolist())
    whole = _whole(search, convolutions)
    goes = [sorted(units) for units in whole if NEVER not in units]
    stays = sorted(set().union(*(units for units in whole if NEVER in units)) - {NEVER})
    together = _even_sides(sides, fixed)
    if _smallest([(goes, stays)], counts) < _smallest(together, counts):
        together = [(goes, stays)]
    for sets, left in together:
        _join(search, sets)
        _keep(search, np.array(left, dtype=np.int64))
    return True


def _whole(search: Search, convolutions: Sequence[Grouped]) -> list[set[int]]:
    """Units that go together where groups go whole."""
    groups = [own for each in convolutions for own in _groups(search, each)]
    return [set().union(*(groups[at] for at in together)) for together in connected(groups)]


def _smallest(choices: Iterable[Choice], counts: Mapping[int, int]) -> int:
    """How many channels must stay: one set of each choice, and what is in none."""
    sizes = [([sum(counts[unit] for unit in units) for units in sets], left) for sets, left in choices]
    return sum(min(own, default=0) + sum(counts[unit] for unit in left) for own, left in sizes)


def _even_sides(sides: Sequence[np.ndarray], fixed: set[int]) -> list[Choice]:
    """Of sides that share units: sets of these, none ``fixed``, that leave all groups even, and what is in none."""
    found = []
    for together in connected([{*side.ravel().tolist()} - fixed for side in sides]):
        labels, imbalance = _imbalance([sides[at] for at in together])
        free = ~np.isin(labels, list(fixed))
        found.append(even_sets(labels[free], imbalance[free], imbalance[labels == NEVER].sum(0)))
    return found


def _groups(search: Search, convolution: Grouped) -> list[set[int]]:
    """The units of each group."""
    sides = [search.labels(side).tolist() for side in convolution.sides]
    return [{*read, *given} for read, given in zip(*sides, strict=True)]


def even_sets(
    units: np.ndarray,  # (U,)
    imbalance: np.ndarray,  # (U, all groups)
    start: np.ndarray,  # (all groups,), of what never goes
) -> Choice:
    """Sets of units that leave all groups even, and what is in none.

    A path through sums of imbalances that stays near zero: where it comes back to a sum, what lies between is a set.
    """
    kinds, kind = np.unique(imbalance, axis=0, return_inverse=True)
    waiting = [units[kind.ravel() == place][::-1].tolist() for place in range(len(kinds))]
    counts = np.array([len(each) for each in waiting])
    found, path, sums, at = [], [], {start.tobytes(): 0}, start
    while counts.any():
        far = ((at + kinds) ** 2).sum(1)
        far[counts == 0] = far.max() + 1
        nearest = max(np.flatnonzero(far == far.min()), key=lambda place: counts[place])  # spend them evenly
        counts[nearest] -= 1
        path.append((waiting[nearest].pop(), at.tobytes()))
        at = at + kinds[nearest]
        first = sums.setdefault(at.tobytes(), len(path))
        if first < len(path):
            found.append([unit for unit, _ in path[first:]])
            for _, passed in path[first + 1 :]:
                del sums[passed]
            del path[first:]
    return found, [unit for unit, _ in path]


def _join(search: Search, sets: Iterable[Sequence[int]]) -> None:
    """Each one unit; where one layer writes it, it writes all of it."""
    layers = Counter(unit for units in search.writes.values() for unit in set(search.labels(units).tolist()))
    for units in map(torch.tensor, sets):
        if len(units) > 1:
            search.join(units[:1].expand(len(units)), units)
        if max(layers[int(unit)] for unit in units) == 1:
            search.tie(units)
