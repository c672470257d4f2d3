"""What stays of each branch beside a shortcut, of its heads, and of the stream that it adds to."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bhc.emission.cut import Cut
from bhc.graph import Branch, Heads, Units
from bhc.hypernet import ConditionalNetwork


class Remains(NamedTuple):
    """How much there was of something, and how much stays."""

    before: int
    after: int


@dataclass(frozen=True)
class HeadCut:
    """What stays of one head of attention."""

    alive: bool
    query_keys: Remains  # dimensions that queries and keys are multiplied along
    values: Remains


@dataclass(frozen=True)
class BranchCut:
    """What stays of one branch."""

    name: str  # of its last layer
    layers: tuple[str, ...]
    gone: bool
    units: Remains  # all that lies between the stream and the layer that adds to it, heads themselves not counted
    heads: tuple[HeadCut, ...]
    stream: Remains  # channels


def find_branch_cuts(network: ConditionalNetwork, cut: Cut) -> tuple[BranchCut, ...]:
    """In the order that branches run."""
    alive = cut.alive.cpu().numpy()
    return tuple(_branch_cut(network, branch, alive) for branch in in_order(network))


def in_order(network: ConditionalNetwork) -> list[Branch]:
    """The branches of a network as they run; one inside another ends before it."""
    place = {layer.name: place for place, layer in enumerate(network.layers)}
    return sorted(network.branches, key=lambda branch: max(place[end.layer] for end in branch.ends))


def streams(network: ConditionalNetwork) -> tuple[int, ...]:
    """Channels of each stream that branches add to."""
    found = (_stream(network.units, branch) for branch in in_order(network))
    return tuple(map(len, dict.fromkeys(tuple(stream.tolist()) for stream in found)))


def _branch_cut(network: ConditionalNetwork, branch: Branch, alive: np.ndarray) -> BranchCut:
    units = network.units
    own = {*branch.inner, *(end.layer for end in branch.ends)}
    layers = tuple(layer.name for layer in network.layers if layer.name in own)
    heads = [each for each in units.attention if set(each.rows.tolist()) <= set(branch.units)]
    return BranchCut(
        name=branch.ends[-1].layer,
        layers=layers,
        gone=not bool(alive[branch.units].any()),
        units=_remains(_hidden(branch, units), alive),
        heads=tuple(cut for each in heads for cut in _head_cuts(each, units, alive)),
        stream=_remains(_stream(units, branch), alive),
    )


def _stream(units: Units, branch: Branch) -> np.ndarray:
    """The unit of each channel of the sum at which a branch ends."""
    return units.carried[branch.ends[-1].joint].ravel()


def _hidden(branch: Branch, units: Units) -> np.ndarray:
    """Units of a branch without heads and groups themselves, and what is there once for all of them."""
    shared = [each.rows for each in units.heads]
    shared += [column for each in units.heads for part in each.parts for column in part.columns]
    return np.setdiff1d(branch.units, np.concatenate(shared)) if shared else np.array(branch.units)


def _head_cuts(heads: Heads, units: Units, alive: np.ndarray) -> Iterator[HeadCut]:
    """Values are what layers read; queries and keys are read by their product alone."""
    read = np.unique(np.concatenate(list(units.reads.values())))
    none = np.empty((len(heads.rows), 0), int)
    values, query_keys = [none], [none]
    for part in heads.parts:
        (values if np.isin(part.units, read).any() else query_keys).append(part.units)
    rows = zip(heads.rows, np.hstack(query_keys), np.hstack(values), strict=True)
    for head, own_query_keys, own_values in rows:
        yield HeadCut(bool(alive[head]), _remains(own_query_keys, alive), _remains(own_values, alive))


def _remains(units: np.ndarray, alive: np.ndarray) -> Remains:
    return Remains(len(units), int(alive[units].sum()))
