"""Heads of attention and groups of convolutions: units in rows, of which all that stay keep equally many.

A group of a convolution is a row with two parts, what it reads and what it gives. Where two convolutions have the same
channels in other groups, as behind a channel shuffle, none of them can go without others: ``groups`` then says what of
each goes together.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

NEVER = -1  # the label of all that is never cut


@dataclass(frozen=True)
class Part:
    """Units of heads that are summed over together, such as queries with their keys, or handed on, the values.

    Where they are ``alike`` all heads keep the same places: some number, as the gain of a norm, is there once for all.
    """

    units: np.ndarray  # (H, n)
    alike: bool = False
    columns: tuple[np.ndarray, ...] = ()  # (n,) units of such numbers, which live while any head keeps their place

    def renumbered(self, of: np.ndarray) -> "Part":
        return Part(of[self.units], self.alike, tuple(of[each] for each in self.columns))


@dataclass(frozen=True)
class Heads:
    """Units of heads, and those that live in each alone.

    A head goes with all of its parts; of every part the heads that stay keep equally many units, each its own.
    """

    rows: np.ndarray  # (H,) the units of the heads themselves, which their scores carry
    parts: tuple[Part, ...]
    of_attention: bool = True  # or groups of convolutions alone

    def renumbered(self, of: np.ndarray) -> "Heads":
        return replace(self, rows=of[self.rows], parts=tuple(part.renumbered(of) for part in self.parts))

    @property
    def units(self) -> np.ndarray:
        """All of them."""
        columns = [column for part in self.parts for column in part.columns]
        return np.unique(np.concatenate([self.rows, *(part.units.ravel() for part in self.parts), *columns]))


@dataclass(frozen=True, eq=False)
class Grouped:
    """A convolution of G groups."""

    rows: Tensor  # (G,) the units of the groups themselves
    inputs: Tensor  # (G, n)
    outputs: Tensor  # (G, m)

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        return self.inputs, self.outputs


@dataclass(frozen=True, eq=False)
class Within:
    """What lives in rows alone."""

    rows: Tensor  # (H,)
    units: Tensor  # (H, n)
    of: Grouped | None = None


@dataclass
class Said:
    """What kinds of layers have said of heads (``layers.protocols.HeadSearch``)."""

    within: list[Within] = field(default_factory=list)
    same_places: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)  # (H, n), and columns (n,)
    laid: list[Tensor] = field(default_factory=list)  # (rows, n), one row after the other
    parts: list[Tensor] = field(default_factory=list)  # of values, such as all that lies before a slice
    groups: list[Grouped] = field(default_factory=list)
    level: list[Grouped] = field(default_factory=list)  # those of which all groups stay

    def live_within(self, heads: Tensor, units: Tensor) -> None:
        self.within.append(Within(heads, units))

    def grouped(self, groups: Tensor, inputs: Tensor, outputs: Tensor) -> None:
        self.groups.append(Grouped(groups, inputs, outputs))
        self.within += [Within(groups, side, self.groups[-1]) for side in (inputs, outputs)]

    def one_after_the_other(self, rows: Tensor) -> None:
        self.laid.append(rows)

    def alike(self, units: Tensor, columns: Tensor | None = None) -> None:
        self.same_places.append((units, columns))

    def apart(self, units: Tensor) -> None:
        self.parts.append(units)


class Search(Protocol):
    """What is asked of the search for units."""

    heads: Said
    writes: dict[str, Tensor]

    def join(self, left: Tensor, right: Tensor) -> None: ...
    def tie(self, units: Tensor) -> None: ...
    def keep(self, units: Tensor) -> None: ...
    def labels(self, units: Tensor) -> np.ndarray: ...


def find_heads(search: Search) -> tuple[Heads, ...]:
    """The heads as the search has found them; what does not make rows of one length is never cut."""
    while True:
        if _level(search, [*_crossing(search), *_written_in_parts(search)]):
            continue
        _settle_columns(search)
        _join_rows_that_share(search)
        within = search.heads.within
        parts = [_part(search, each) for each in within]
        wrong = [place for place, part in enumerate(parts) if part is None]
        wrong += _overlapping(parts)
        if _level(search, [of for place in wrong if (of := within[place].of) is not None]):
            continue
        # What never goes has all heads, so that none of them goes.
        fixed = [place for place, part in enumerate(parts) if part == {}]
        if not wrong and not fixed:
            heads = _grouped(within, parts)  # type: ignore[arg-type]
            doubtful = _marked(search, heads)
            if isinstance(doubtful, tuple):
                return doubtful
            if not _level(search, _touching(search, doubtful)):
                search.keep(doubtful)
            continue
        for place in wrong:
            search.keep(within[place].units)
        for place in (*wrong, *fixed):
            search.keep(within[place].rows)
        gone = {*wrong, *fixed}
        search.heads.within = [each for place, each in enumerate(within) if place not in gone]


Units = dict[int, tuple[int, ...]]  # by head: its units


def _settle_columns(search: Search) -> None:
    """Numbers that are there once for all rows, where units lie along one axis after all: theirs, or another."""
    for units, columns in search.heads.same_places:
        labels = search.labels(units)
        if columns is None or (search.labels(columns) == NEVER).all():
            continue
        if (labels == labels[:, :1]).all():
            search.keep(columns)
        elif (labels == labels[:1]).all():
            search.join(units[0], columns)


def _join_rows_that_share(search: Search) -> None:
    """Heads that share a unit, as those that share keys do, are one."""
    joined = True
    while joined:
        joined = False
        owners: dict[int, Tensor] = {}
        for each in search.heads.within:
            rows, units = each.rows, each.units
            labels, heads = search.labels(units), search.labels(rows)
            for row, (head, own) in enumerate(zip(heads.tolist(), labels.tolist(), strict=True)):
                for label in set(own) - {NEVER}:
                    other = owners.setdefault(label, rows[row : row + 1])
                    if head != NEVER and int(search.labels(other)[0]) != head:
                        search.join(other, rows[row : row + 1])
                        joined = True
                        head = int(search.labels(rows[row : row + 1])[0])


def _part(search: Search, within: Within) -> Units | None:
    """Each head's units; nothing where none can be cut, None where they make no rows of one length."""
    part: dict[int, set[int]] = {}
    labels = search.labels(within.units)
    if (labels == NEVER).all():
        return {}
    for head, own in zip(_heads_of(search, within), labels.tolist(), strict=True):
        part.setdefault(head, set()).update(own)
    if any(NEVER in own for own in part.values()) or len({len(own) for own in part.values()}) > 1:
        return None
    return {head: tuple(sorted(own)) for head, own in part.items()}


def _heads_of(search: Search, within: Within) -> list[int]:
    """The head of each row; one that never goes is told from others that do not."""
    return [
        row if head == NEVER else head
        for row, head in zip(within.rows.tolist(), search.labels(within.rows).tolist(), strict=True)
    ]


def _overlapping(parts: Sequence[Units | None]) -> list[int]:
    """Parts that have some of a head's units, but not all, in common with another."""
    seen: dict[int, tuple[int, ...]] = {}
    wrong = []
    for place, part in enumerate(parts):
        for own in (part or {}).values():
            if any(seen.setdefault(unit, own) != own for unit in own) and place not in wrong:
                wrong.append(place)
    return wrong


def _grouped(within: Sequence[Within], parts: Sequence[Units]) -> tuple[Heads, ...]:
    """Parts of the same heads together."""
    groups: dict[tuple[int, ...], list[Units]] = {}
    attention = set()
    for each, part in zip(within, parts, strict=True):
        rows = tuple(sorted(part))
        own = groups.setdefault(rows, [])
        attention |= {rows} if each.of is None else set()
        if part not in own:
            own.append(part)
    return tuple(
        Heads(np.array(rows), tuple(Part(np.array([part[row] for row in rows])) for part in own), rows in attention)
        for rows, own in groups.items()
    )


def _marked(search: Search, heads: Sequence[Heads]) -> tuple[Heads, ...] | Tensor:
    """With the parts that must keep the same places in all heads; units that cannot, and must stay, if any do."""
    marked = list(heads)
    for units, columns in [*search.heads.same_places, *_laid_across(search, heads)]:
        labels = search.labels(units)
        if (labels == NEVER).all() or (labels == labels[:1]).all():
            continue
        own = None if columns is None else search.labels(columns)
        placed = [(at, place) for at, group in enumerate(marked) for place, part in enumerate(group.parts)
                  if np.isin(labels, part.units).any()]  # fmt: skip
        if not placed:
            continue  # of no head: one axis will be left
        if len(placed) != 1 or (not _lines_up(labels, own, marked[placed[0][0]].parts[placed[0][1]])):
            return units
        at, place = placed[0]
        parts = list(marked[at].parts)
        parts[place] = _with_columns(labels, own, parts[place])
        marked[at] = replace(marked[at], parts=tuple(parts))
    return tuple(marked)


def _laid_across(search: Search, heads: Sequence[Heads]) -> Iterator[tuple[Tensor, None]]:
    """What a new shape lays one after the other such that heads alternate: the order says nothing of what each keeps,
    so they must keep the same places."""
    owners = {unit: head for group in heads for part in group.parts
              for head, own in zip(group.rows.tolist(), part.units.tolist(), strict=True) for unit in own}  # fmt: skip
    for units in search.heads.laid:
        labels = search.labels(units)
        along = all(len({owners.get(unit) for unit in row}) == 1 for row in labels.tolist())
        if not along and not (labels == labels[:, :1]).all():
            yield units.T, None


def _lines_up(labels: np.ndarray, columns: np.ndarray | None, part: Part) -> bool:
    """Whether the units of each row stand where those of every other row do."""
    order = {unit: place for row in part.units.tolist() for place, unit in enumerate(row)}
    if not all(unit in order for unit in labels.ravel().tolist()):
        return False
    places = np.vectorize(order.__getitem__)(labels)
    if not (places == places[:1]).all():
        return False
    return columns is None or all(len(set(columns[places[0] == place])) == 1 for place in np.unique(places[0]))


def _with_columns(labels: np.ndarray, columns: np.ndarray | None, part: Part) -> Part:
    if columns is None or (columns == NEVER).any():
        return replace(part, alike=True)
    first = labels[0].tolist()
    row = next(row for row in part.units.tolist() if set(first) <= set(row))
    own = np.array([columns[first.index(unit)] for unit in row])
    return replace(part, alike=True, columns=(*part.columns, own))


def kept_from_running_dry(search: Search, units: Tensor, heads: Sequence[Heads]) -> bool:
    """Let no value of nothing but heads' units run dry, as it might where it has no part of all of them.

    Such a one is a branch of a stack: what a head has of all branches goes together, then. Returns whether it was so.
    """
    own = set(search.labels(units).ravel().tolist())
    for group in (group for group in heads if own <= set(group.units.tolist())):
        parts = (group.rows, *(part.units for part in group.parts), *(each for p in group.parts for each in p.columns))
        if any(own.issuperset(part.ravel().tolist()) for part in parts):
            return False
        wide = [part.units for part in group.parts if part.units.shape[1] > 1 and not own.isdisjoint(part.units.flat)]
        for rows in map(torch.from_numpy, wide):
            search.join(rows[:, :1].expand(rows.shape), rows)
        if not wide:
            search.keep(units)
        return True
    return False


def lies_in_heads(labels: np.ndarray, heads: Heads) -> bool:
    """Whether each row of a value, (rows, places), is one head's: of a part all units, equally often, or none."""
    owners = {unit: row for part in heads.parts for row, own in enumerate(part.units.tolist()) for unit in own}
    first = None
    for row in labels.tolist():
        counts = Counter(row)
        owner = owners.get(row[0])
        if owner is None or {owners.get(unit) for unit in counts} != {owner}:
            return False
        times = [{counts[unit] for unit in part.units[owner].tolist()} for part in heads.parts]
        first = first or times
        if times != first or any(len(each) != 1 for each in times):
            return False
    return True


def _crossing(search: Search) -> Iterator[Grouped]:
    """Convolutions of which some groups could only go together, or that would make one of several heads."""
    within = search.heads.within
    if all(each.of is None for each in within):
        return
    rows = [(place, head) for place, each in enumerate(within) for head in _heads_of(search, each)]
    own = [units for each in within for units in search.labels(each.units).tolist()]
    sets = [{-2 - head, *units} - {NEVER} for (_, head), units in zip(rows, own, strict=True)]  # heads are no units
    for together in connected(sets):
        places = {rows[at] for at in together}
        if len({place for place, _ in places}) < len(places):
            yield from {of: None for place, _ in places if (of := within[place].of) is not None}


def _written_in_parts(search: Search) -> Iterator[Grouped]:
    """Convolutions beside which a layer writes some of what a part holds: it might be left with nothing to write."""
    written: list[set[int]] | None = None
    for each in search.heads.within:
        if each.of is not None:
            written = written or [set(search.labels(units).tolist()) - {NEVER} for units in search.writes.values()]
            own = set(search.labels(each.units).ravel().tolist()) - {NEVER}
            if any(not own.isdisjoint(units) and not own <= units for units in written):
                yield each.of


def _touching(search: Search, units: Tensor) -> list[Grouped]:
    """Convolutions that have heads, and share units with others."""
    labels = search.labels(units)
    return [
        each.of for each in search.heads.within
        if each.of is not None and np.isin(search.labels(each.units), labels[labels != NEVER]).any()
    ]  # fmt: skip


def _level(search: Search, convolutions: Iterable[Grouped]) -> bool:
    """Of these all groups are to stay; whether there are any."""
    gone = dict.fromkeys(convolutions)
    if not gone:
        return False
    said = search.heads
    said.level += gone
    said.within = [each for each in said.within if each.of not in gone]
    heads = {head for each in said.within for head in search.labels(each.rows).tolist()}
    for each in gone:
        search.keep(each.rows[torch.from_numpy(~np.isin(search.labels(each.rows), list(heads)))])
    return True


def connected(sets: Sequence[set[int]]) -> list[list[int]]:
    """Places of sets that share members, or are joined by others that do."""
    parents = list(range(len(sets)))

    def find(place: int) -> int:
        while parents[place] != place:
            parents[place] = place = parents[parents[place]]
        return place

    owners: dict[int, int] = {}
    for place, members in enumerate(sets):
        for member in members:
            parents[find(place)] = find(owners.setdefault(member, place))
    found: dict[int, list[int]] = {}
    for place in range(len(sets)):
        found.setdefault(find(place), []).append(place)
    return list(found.values())
