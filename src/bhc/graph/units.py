"""Which channels live and die together: found once, when a network is wrapped.

A unit is what one output of a layer writes, with all that is added to it, multiplied with it or grouped with it on
the way. Each value of the graph says, channel by channel, which unit it carries.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from torch import nn

from bhc.graph.graph import INPUT, Graph
from bhc.graph.kinds import CONVOLUTIONS, LAYERS
from bhc.graph.shapes import Passage, Shape, passages
from bhc.graph.steps import Add, Concat, Multiply, PadChannels
from bhc.graph.tokens import ChannelNorm, Embed, SelfAttention

Carried = np.ndarray  # the unit of each channel


@dataclass(frozen=True)
class Units:
    """The units of a network."""

    carried: dict[str, Carried]  # by every value, in the graph's names
    always: np.ndarray  # (U,) bool: these are never cut
    tied: np.ndarray  # (U,) bool: of these all parts are needed, not only their sum
    words: dict[str, Carried] = field(default_factory=dict)  # of each embedding: what its rows stand for

    @property
    def count(self) -> int:
        return len(self.always)


def find_units(graph: Graph, input_shape: Shape, *, keep: Iterable[str] = ()) -> Units:
    """Follow every channel through the graph; units that a step in ``keep`` reads or writes are never cut."""
    search = _Search(input_shape)
    for passage in passages(graph, input_shape):
        search.follow(passage)
    whole = {INPUT} | {name for step in graph.steps if step.name in set(keep) for name in (step.name, *step.reads)}
    return search.finish(whole, graph.last_step)


class _Sets:
    """Disjoint sets of whole numbers."""

    def __init__(self) -> None:
        self.parent: list[int] = []

    def new(self, count: int) -> np.ndarray:
        start = len(self.parent)
        self.parent.extend(range(start, start + count))
        return np.arange(start, start + count)

    def find(self, member: int) -> int:
        root = member
        while self.parent[root] != root:
            root = self.parent[root]
        while self.parent[member] != root:
            self.parent[member], member = root, self.parent[member]
        return root

    def join(self, left: int, right: int) -> None:
        first, second = sorted((self.find(left), self.find(right)))
        self.parent[second] = first


class _Search:
    def __init__(self, input_shape: Shape) -> None:
        self.sets = _Sets()
        self.carried: dict[str, Carried] = {INPUT: self.sets.new(input_shape[0])}
        self.whole: list[Carried] = []  # what is never cut
        self.tied: list[Carried] = []  # what all of its writers write
        self.words: dict[str, Carried] = {}

    def follow(self, passage: Passage) -> None:
        arriving = [self.carried[name] for name in passage.step.reads]
        self.carried[passage.name] = self._leaving(passage, arriving)

    def _leaving(self, passage: Passage, arriving: Sequence[Carried]) -> Carried:
        module, units = passage.module, arriving[0]
        if isinstance(module, Embed):
            # Whole numbers carry no units; the words that they stand for do, as inputs that are always there.
            self.words[passage.name] = self.sets.new(module.rows)
            self.whole.append(self.words[passage.name])
        if isinstance(module, LAYERS):
            return self._written(module, units)
        match module:
            case ChannelNorm() | SelfAttention():
                self.whole.append(units)
                return units
            case nn.Flatten():
                return np.repeat(units, prod(passage.arriving[0][1:]))
            case Add():
                return self._joined(*arriving)
            case Multiply():
                self.tied.append(units)  # a factor that is left out would be zero
                return self._joined(*arriving)
            case Concat():
                return np.concatenate(arriving)
            case PadChannels():
                # Zeros that nobody writes: they stay where they meet a unit that does.
                return np.concatenate([self.sets.new(module.before), units, self.sets.new(module.after)])
        return units

    def _written(self, module: nn.Module, units: Carried) -> Carried:
        outputs = self.sets.new(len(module.weight))  # type: ignore[arg-type]
        if isinstance(module, CONVOLUTIONS) and module.groups > 1:
            # Inputs and outputs of one group are one unit: the group goes, or stays.
            self.tied.append(outputs)
            for inside, outside in zip(np.split(units, module.groups), np.split(outputs, module.groups), strict=True):
                for unit in (*inside, *outside):
                    self.sets.join(outside[0], unit)
        return outputs

    def _joined(self, left: Carried, right: Carried) -> Carried:
        for one, other in zip(left, right, strict=True):
            self.sets.join(one, other)
        return left

    def finish(self, whole: set[str], last: str) -> Units:
        """Number the units in the order they are written."""
        roots = [self.sets.find(unit) for unit in range(len(self.sets.parent))]
        number = {root: place for place, root in enumerate(sorted(set(roots)))}
        of = np.array([number[root] for root in roots])
        carried = {name: of[units] for name, units in self.carried.items()}
        always, tied = np.zeros((2, len(number)), dtype=bool)
        for units in (*(carried[name] for name in whole - {last}), *(of[units] for units in self.whole)):
            always[units] = True
        for units in self.tied:
            tied[of[units]] = True
        return Units(carried, always, tied, {name: of[units] for name, units in self.words.items()})
