"""The cut for a context: what the hypernetwork says of it, which units of which layer stay, and what of branches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from bhc.contexts import Context, ContextBatch, checked_encoding
from bhc.graph import Beside, Branch, Heads, Layer, Units
from bhc.hypernet import ConditionalNetwork, LayerVectors
from bhc.posterior import ChannelRounding, LayerDropout, LayerMask, Multiples


@dataclass(frozen=True)
class ContextScales:
    """Rates, scales and biases of K contexts, from one call; weights are generated later, where they stay."""

    network: ConditionalNetwork
    contexts: tuple[Context, ...]
    batch: ContextBatch
    embedding: Tensor  # (K, E), from which weights are generated
    vectors: tuple[LayerVectors, ...]  # means of scales, and biases
    rates: tuple[LayerDropout, ...]  # as they were learned: bits follow from these
    dropouts: tuple[LayerDropout, ...]  # by which masks are found; others than the rates where budgets must nest

    @classmethod
    @torch.no_grad()
    def of(cls, network: ConditionalNetwork, contexts: Sequence[Context]) -> "ContextScales":
        """Ask the hypernetwork about all of the contexts at once."""
        batch = ContextBatch.of(contexts, network.num_classes).to(network.device)
        hypernet, encoding = network.hypernet, checked_encoding(network.space, batch)
        embedding = hypernet.embedder(*encoding)
        rates = hypernet.dropouts(encoding)
        dropouts = network.dropouts(batch) if network.find_masks.nested else rates
        return cls(network, tuple(contexts), batch, embedding, hypernet.vectors.means(embedding), rates, dropouts)

    def alone(self, place: int) -> "ContextScales":
        """One of the contexts."""
        own = slice(place, place + 1)
        rates = tuple(_rows(layer, own) for layer in self.rates)
        return replace(
            self,
            contexts=self.contexts[own],
            batch=self.batch.at(own),
            embedding=self.embedding[own],
            vectors=tuple(_rows(layer, own) for layer in self.vectors),
            rates=rates,
            dropouts=rates if self.dropouts is self.rates else tuple(_rows(layer, own) for layer in self.dropouts),
        )


def _rows(parts: Any, own: slice) -> Any:
    """The rows of every tensor of a dataclass; what all contexts share has one row, and stays."""
    values = [getattr(parts, field.name) for field in fields(parts)]
    return type(parts)(*(value if value is None or len(value) == 1 else value[own] for value in values))


@dataclass(frozen=True)
class LayerCut:
    """What stays of one layer, as indices into the original."""

    layer: Layer
    kept_inputs: Tensor  # ascending
    kept_outputs: Tensor
    rescued: bool  # no unit had its writer and a reader under the threshold: one was kept all the same
    kept_weights: Tensor | None = None  # (O', I', *kernel) bool, where single weights go too

    @cached_property
    def columns(self) -> Tensor:
        """The second index of the weights that are needed: inputs, or their places in a group."""
        return self.kept_inputs if self.layer.groups == 1 else torch.unique(self.kept_inputs % self.layer.num_inputs)

    @cached_property
    def columns_by_group(self) -> Tensor | None:  # (O', I')
        """Which of these columns each output has; None where it has all of them."""
        if self.layer.groups == 1 or len(self.columns) == self.num_inputs_of_each:
            return None
        groups, places = (torch.div(units, size, rounding_mode="floor") for units, size in self._by_group)
        table = (self.kept_inputs % self.layer.num_inputs).reshape(-1, self.num_inputs_of_each)
        own = table[torch.searchsorted(torch.unique(groups), places)]
        return torch.searchsorted(self.columns, own)

    @property
    def _by_group(self) -> tuple[tuple[Tensor, int], tuple[Tensor, int]]:
        """What is kept at either end, and how many there were in a group."""
        layer = self.layer
        return (self.kept_inputs, layer.num_inputs), (self.kept_outputs, layer.num_outputs // layer.groups)

    @cached_property
    def num_inputs_of_each(self) -> int:
        """How many inputs an output has: all, or those of its group."""
        if self.layer.groups == 1 or self.is_gone:
            return len(self.kept_inputs)
        groups = torch.unique(torch.div(self.kept_inputs, self.layer.num_inputs, rounding_mode="floor"))
        return len(self.kept_inputs) // len(groups)

    @property
    def is_gone(self) -> bool:
        """Whether it reads nothing: with the branch that it is of."""
        return self.kept_inputs.shape[0] == 0

    @property
    def num_weights(self) -> int:
        return self.num_inputs_of_each * len(self.kept_outputs) * self.layer.kernel_area

    def at_columns(self, numbers: Tensor) -> Tensor:  # (O', columns, *kernel) -> (O', I', *kernel)
        """Of numbers at the columns those that each output has."""
        own = self.columns_by_group
        if own is None:
            return numbers
        return numbers[torch.arange(len(own), device=numbers.device)[:, None], own.to(numbers.device)]

    @property
    def num_flops(self) -> int:
        """Two operations a weight and place it is applied at."""
        return 2 * self.num_weights * self.layer.output_area

    @property
    def width(self) -> int:
        """The layer's number in an architecture: filters of a convolution, inputs of a linear layer."""
        return len(self.kept_outputs if self.layer.has_kernel else self.kept_inputs)


@dataclass(frozen=True)
class Cut:
    """The cut at one threshold."""

    context: Context
    threshold: float
    alive: Tensor  # (U,) bool, the units that stay
    classes: tuple[int, ...]  # the outputs that remain, in the original numbering
    layers: tuple[LayerCut, ...]
    beside: Beside  # the steps that are not layers to be cut

    @property
    def num_weights(self) -> int:
        return self._counts_beside[0] + sum(layer.num_weights for layer in self.layers)

    @property
    def num_flops(self) -> int:
        return self._counts_beside[1] + sum(layer.num_flops for layer in self.layers)

    def count_heads(self, heads: Sequence[Heads]) -> tuple[int, ...]:
        """Of each attention those that stay."""
        alive = self.alive.cpu().numpy()
        return tuple(int(alive[each.rows].sum()) for each in heads)

    @cached_property
    def _counts_beside(self) -> tuple[int, int]:
        if not self.beside.shrinks:
            return self.beside.fixed_weights, self.beside.fixed_flops
        weights, flops = self.beside.counts(self.alive[None])
        return int(weights), int(flops)

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(len(kept) for layer in self.layers for kept in (layer.kept_inputs, layer.kept_outputs))

    @property
    def counts(self) -> tuple[int, ...]:
        """How much stays of everything, which tells the cuts of a context apart: with its threshold it only shrinks."""
        single = (int(layer.kept_weights.sum()) for layer in self.layers if layer.kept_weights is not None)
        return (*self.widths, *single)


class Cutter:
    """One context, to be cut at any threshold; no weight is generated here."""

    def __init__(
        self,
        network: ConditionalNetwork,
        context: Context,
        scales: ContextScales | None = None,
        *,
        multiples: Multiples | None = None,
    ) -> None:
        """``scales`` is what the hypernetwork says of the context, where it was asked before."""
        self.network, self.context, self.multiples = network, context, multiples
        self.scales = ContextScales.of(network, [context]) if scales is None else scales
        self.rounding = None if multiples is None else _rounding(network, multiples)

    @classmethod
    def many(cls, network: ConditionalNetwork, contexts: Sequence[Context]) -> "list[Cutter]":
        """Those of several contexts, with one call of the hypernetwork."""
        if not contexts:
            return []
        together = ContextScales.of(network, contexts)
        return [cls(network, context, together.alone(place)) for place, context in enumerate(contexts)]

    def rounded_to(self, multiples: Multiples | None) -> "Cutter":
        """The same context, its channels in these multiples."""
        if multiples == self.multiples:
            return self
        return Cutter(self.network, self.context, self.scales, multiples=multiples)

    def cut(self, threshold: float) -> Cut:
        return cut_all(self.scales, threshold, rounding=self.rounding)[0]


_ROUNDINGS: WeakKeyDictionary[ConditionalNetwork, dict[Any, ChannelRounding]] = WeakKeyDictionary()


def _rounding(network: ConditionalNetwork, multiples: Multiples) -> ChannelRounding:
    """Made once: it takes as long as an emission."""
    known, key = _ROUNDINGS.setdefault(network, {}), (multiples, network.device)
    if key not in known:
        parts = (network.layers, network.units, network.base_model)
        known[key] = ChannelRounding(multiples, *parts, device=network.device)
    return known[key]


@torch.no_grad()
def cut_all(scales: ContextScales, threshold: float, *, rounding: ChannelRounding | None = None) -> list[Cut]:
    """What stays of each context at one threshold; their masks are found together."""
    network, batch = scales.network, scales.batch
    limits = torch.full((len(batch), 1), threshold, device=network.device)
    outputs = network.outputs_of(batch)
    masks = network.find_masks(scales.dropouts, limits, outputs, batch.inputs, rounding=rounding)
    by_layer = [_layer_cuts(layer, mask) for layer, mask in zip(network.layers, masks.layers, strict=True)]
    classes = [tuple(own.tolist()) for own in _places(outputs)]
    return [
        Cut(context, float(threshold), alive, own, layers, network.beside)
        for context, alive, own, layers in zip(
            scales.contexts, masks.alive, classes, zip(*by_layer, strict=True), strict=True
        )
    ]


def _layer_cuts(layer: Layer, mask: LayerMask) -> list[LayerCut]:
    """One for each context."""
    kept = zip(_places(mask.keep_in), _places(mask.keep_out), mask.rescued.tolist(), strict=True)
    cuts = [LayerCut(layer, *own) for own in kept]
    if mask.keep_weight is None:
        return cuts
    weights = mask.keep_weight.expand(len(cuts), *mask.keep_weight.shape[1:])
    return [
        replace(cut, kept_weights=cut.at_columns(own[cut.kept_outputs[:, None], cut.columns]))
        for cut, own in zip(cuts, weights, strict=True)
    ]


def _places(masks: Tensor) -> tuple[Tensor, ...]:
    """Where each row of (K, n) is true."""
    if masks.shape[0] == 1:
        return (masks[0].nonzero()[:, 0],)
    return masks.nonzero()[:, 1].split(masks.sum(1).tolist())


def make_cut(network: ConditionalNetwork, context: Context, threshold: float) -> Cut:
    return Cutter(network, context).cut(threshold)


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
