"""Heads of attention: units that come in rows, of which all that stay keep equally many."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
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

    def renumbered(self, of: np.ndarray) -> "Heads":
        return Heads(of[self.rows], tuple(part.renumbered(of) for part in self.parts))

    @property
    def units(self) -> np.ndarray:
        """All of them."""
        columns = [column for part in self.parts for column in part.columns]
        return np.unique(np.concatenate([self.rows, *(part.units.ravel() for part in self.parts), *columns]))


@dataclass
class Said:
    """What kinds of layers have said of heads (``layers.protocols.HeadSearch``)."""

    within: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # heads, (H,), and what lives in each, (H, n)
    same_places: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)  # (H, n), and columns (n,)
    parts: list[Tensor] = field(default_factory=list)  # of values, such as all that lies before a slice

    def live_within(self, heads: Tensor, units: Tensor) -> None:
        self.within.append((heads, units))

    def alike(self, units: Tensor, columns: Tensor | None = None) -> None:
        self.same_places.append((units, columns))

    def apart(self, units: Tensor) -> None:
        self.parts.append(units)


class Search(Protocol):
    """What is asked of the search for units."""

    heads: Said

    def join(self, left: Tensor, right: Tensor) -> None: ...
    def keep(self, units: Tensor) -> None: ...
    def labels(self, units: Tensor) -> np.ndarray: ...


def find_heads(search: Search) -> tuple[Heads, ...]:
    """The heads as the search has found them; what does not make rows of one length is never cut."""
    while True:
        _join_rows_that_share(search)
        parts = [_part(search, rows, units) for rows, units in search.heads.within]
        wrong = [place for place, part in enumerate(parts) if part is None]
        wrong += _overlapping(parts)
        # What never goes has all heads, so that none of them goes.
        fixed = [place for place, part in enumerate(parts) if part == {}]
        if not wrong and not fixed:
            heads = _grouped([part for part in parts if part])
            doubtful = _marked(search, heads)
            if isinstance(doubtful, tuple):
                return doubtful
            search.keep(doubtful)
            continue
        for place in wrong:
            search.keep(search.heads.within[place][1])
        for place in (*wrong, *fixed):
            search.keep(search.heads.within[place][0])
        gone = {*wrong, *fixed}
        search.heads.within = [each for place, each in enumerate(search.heads.within) if place not in gone]


Units = dict[int, tuple[int, ...]]  # by head: its units


def _join_rows_that_share(search: Search) -> None:
    """Heads that share a unit, as those that share keys do, are one."""
    joined = True
    while joined:
        joined = False
        owners: dict[int, Tensor] = {}
        for rows, units in search.heads.within:
            labels, heads = search.labels(units), search.labels(rows)
            for row, (head, own) in enumerate(zip(heads.tolist(), labels.tolist(), strict=True)):
                for label in set(own) - {NEVER}:
                    other = owners.setdefault(label, rows[row : row + 1])
                    if head != NEVER and int(search.labels(other)[0]) != head:
                        search.join(other, rows[row : row + 1])
                        joined = True
                        head = int(search.labels(rows[row : row + 1])[0])


def _part(search: Search, rows: Tensor, units: Tensor) -> Units | None:
    """Each head's units; nothing where none can be cut, None where they make no rows of one length."""
    part: dict[int, set[int]] = {}
    labels = search.labels(units)
    if (labels == NEVER).all():
        return {}
    for row, head, own in zip(rows.tolist(), search.labels(rows).tolist(), labels.tolist(), strict=True):
        part.setdefault(row if head == NEVER else head, set()).update(own)
    if any(NEVER in own for own in part.values()) or len({len(own) for own in part.values()}) > 1:
        return None
    return {head: tuple(sorted(own)) for head, own in part.items()}


def _overlapping(parts: Sequence[Units | None]) -> list[int]:
    """Parts that have some of a head's units, but not all, in common with another."""
    seen: dict[int, tuple[int, ...]] = {}
    wrong = []
    for place, part in enumerate(parts):
        for own in (part or {}).values():
            if any(seen.setdefault(unit, own) != own for unit in own) and place not in wrong:
                wrong.append(place)
    return wrong


def _grouped(parts: Sequence[Units]) -> tuple[Heads, ...]:
    """Parts of the same heads together."""
    groups: dict[tuple[int, ...], list[Units]] = {}
    for part in parts:
        own = groups.setdefault(tuple(sorted(part)), [])
        if part not in own:
            own.append(part)
    return tuple(
        Heads(np.array(rows), tuple(Part(np.array([part[row] for row in rows])) for part in own))
        for rows, own in groups.items()
    )


def _marked(search: Search, heads: Sequence[Heads]) -> tuple[Heads, ...] | Tensor:
    """With the parts that must keep the same places in all heads; units that cannot, and must stay, if any do."""
    marked = list(heads)
    for units, columns in search.heads.same_places:
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
