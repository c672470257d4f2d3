"""The order in which units can go, from the curvature: optimal brain surgery on whole units, all sizes in one pass.

Taking input ``i`` of a layer away and letting the others make up for it changes the network's answers by
``tr(G w_i [A^-1]_ii^-1 w_i^T)``, and the others' weights and the inverse by a step of elimination. A unit costs what it
costs all layers that read it. Those that cost least for the weights that they save go first, some at a time.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from bhc.curvature.sample import ContextCurvature, measured
from bhc.graph import Layer
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import LayerDropout

ROUND = 0.2  # of the weights that are left go at a time
MOST_RATIO = 2000.0  # times smaller: beyond it nobody looks
STILL = 1e-6  # of the largest variance: a lone input that varies less goes at once, for it costs nothing

EliminationRates = tuple[LayerDropout, ...]


@dataclass(frozen=True)
class _Reader:
    """What is left of one layer: its inputs in groups of s that go together, each group an item's."""

    items: Tensor  # (n,)
    weight: Tensor  # (r, n, s, T): factor times weights
    inverse: Tensor  # (n * s, n * s)

    @classmethod
    def of(cls, layer: Layer, items: Tensor, known: ContextCurvature, alive: Tensor) -> "_Reader":  # (I,), -1: stays
        curvature, free = known.layers[layer.name], (items >= 0) & alive[items.clamp(min=0)]
        places = free.nonzero().flatten()
        places = places[items[places].argsort(stable=True)]
        own, sizes = items[places].unique_consecutive(return_counts=True)
        kept = torch.cat([places, (items < 0).nonzero().flatten()])
        inverse = torch.linalg.inv(curvature.covariance_at(kept).double())[: len(places), : len(places)]
        weight = layer.module.weight.detach().cpu().double().reshape(*layer.weight_shape[:2], -1)
        seen = torch.einsum("ro,oit->rit", curvature.factor.double(), weight[:, places])
        return cls(own, seen.unflatten(1, (len(own), int(sizes[0]))), inverse)

    @property
    def weights_each(self) -> int:
        """Of an item, for each output of the layer."""
        return self.weight.shape[2] * self.weight.shape[3]

    def costs(self) -> Tensor:  # (n,)
        _, count, size, _ = self.weight.shape
        if size == 1:
            return self.weight.square().sum((0, 2, 3)) / self.inverse.diagonal()
        places = torch.arange(count)
        blocks = self.inverse.view(count, size, count, size)[places, :, places]  # (n, s, s)
        apart = self.weight.permute(1, 2, 0, 3).flatten(2)  # (n, s, r * T)
        return (apart * torch.linalg.solve(blocks, apart)).sum((1, 2))

    def without(self, gone: Tensor) -> "_Reader":  # (n,) bool
        """The others make up for those that go."""
        size = self.weight.shape[2]
        wide = gone.repeat_interleave(size)
        gone_at, left_at = wide.nonzero().flatten(), (~wide).nonzero().flatten()
        rows = self.inverse.index_select(0, gone_at)
        across = rows.index_select(1, left_at)  # (g, rest)
        moved = torch.linalg.solve(rows.index_select(1, gone_at), across)
        inverse = self.inverse.index_select(0, left_at).index_select(1, left_at).addmm_(across.mT, moved, alpha=-1)
        flat = self.weight.flatten(1, 2)  # (r, n * s, T)
        weight = flat.index_select(1, left_at) - torch.einsum("rgt,gk->rkt", flat.index_select(1, gone_at), moved)
        return _Reader(self.items[~gone], weight.unflatten(1, (-1, size)), inverse)


class _Items:
    """What can go, numbered: units that measured layers alone read, and lone inputs of linear layers."""

    def __init__(self, network: ConditionalNetwork, known: ContextCurvature) -> None:
        units = network.units
        self.layers = [layer for layer in measured(network) if layer.name in known.layers]
        may_go = self._units_that_may_go(network)
        self.of_unit = torch.full((units.count,), -1)
        self.of_unit[may_go] = torch.arange(int(may_go.sum()))
        self.count = self.num_units = int(may_go.sum())
        self.of_inputs: dict[str, Tensor] = {}  # by layer: the item of each input, -1 for what stays
        for layer in self.layers:
            reads = layer.reads.cpu()
            own = self.of_unit[reads]
            if layer.may_skip:
                lone = torch.from_numpy(units.always)[reads]
                own[lone] = self.count + torch.arange(int(lone.sum()))
                self.count += int(lone.sum())
            self.of_inputs[layer.name] = own

    def _units_that_may_go(self, network: ConditionalNetwork) -> Tensor:  # (U,) bool
        units = network.units
        may_go, read = torch.from_numpy(~(units.always | units.tied)), torch.zeros(units.count, dtype=torch.bool)
        for heads in units.heads:
            may_go[torch.from_numpy(heads.units)] = False
        for layer in network.layers:
            reads = layer.reads.cpu()
            if layer in self.layers:
                times = reads.bincount(minlength=units.count)
                usual = int(times[reads].mode().values)
                may_go &= (times == 0) | (times == usual)  # what arrives more often than others has no price
                read[reads] = True
            else:
                may_go[reads] = False
        may_go[network.find_masks.outputs.cpu()] = False
        return may_go & read


class _Elimination:
    """One pass over all sizes."""

    def __init__(self, network: ConditionalNetwork, known: ContextCurvature, kept_outputs: Tensor) -> None:
        self.network, self.items = network, _Items(network, known)
        self.alive = torch.ones(self.items.count, dtype=torch.bool)
        self.rate = torch.full((self.items.count,), -log(MOST_RATIO) - 1)
        gone = torch.zeros(network.units.count, dtype=torch.bool)
        gone[network.find_masks.outputs.cpu()] = ~kept_outputs.cpu()
        self.written = {layer.name: self.items.of_unit[layer.writes.cpu()] for layer in network.layers}
        self.num_inputs = {layer.name: float(layer.num_inputs) for layer in network.layers}
        self.num_outputs = {layer.name: float((~gone[layer.writes.cpu()]).sum()) for layer in network.layers}
        self.beside = network.num_weights - sum(layer.num_weights for layer in network.layers)
        for layer in self.items.layers:
            self._without_still(layer, known)
        self.readers = {
            layer.name: _Reader.of(layer, own, known, self.alive)
            for layer in self.items.layers
            if self.alive[(own := self.items.of_inputs[layer.name])[own >= 0]].any()
        }

    def _without_still(self, layer: Layer, known: ContextCurvature) -> None:
        own, variance = self.items.of_inputs[layer.name], known.layers[layer.name].variance
        still = (own >= self.items.num_units) & (variance <= STILL * variance.amax())
        if not still.all():
            self.alive[own[still]], self.rate[own[still]] = False, 0.0
            self.num_inputs[layer.name] -= float(still.sum())

    @property
    def size(self) -> float:
        """The weights that are left."""
        layers = self.network.layers
        own = sum(self.num_inputs[each.name] * self.num_outputs[each.name] * each.kernel_area for each in layers)
        return max(1.0, self.beside + own)

    def run(self) -> None:
        while self.size * MOST_RATIO > self.network.num_weights and self._round():
            pass

    def _round(self) -> bool:
        """Let some go; False where nothing is left that can."""
        saved, cost = self._saved(), torch.zeros(self.items.count, dtype=torch.float64)
        for reader in self.readers.values():
            cost.index_add_(0, reader.items, reader.costs())
        score = (cost / saved).masked_fill(~self.alive, torch.inf)
        for reader in self.readers.values():
            score[reader.items[score[reader.items].argmax()]] = torch.inf  # of each something stays
        order = score.argsort()[: int(score.isfinite().sum())]
        if not len(order):
            return False
        total = saved[order].cumsum(0)
        order = order[: max(1, int((total <= ROUND * self.size).sum()))]
        left = (self.size - saved[order].cumsum(0)).clamp(min=1.0)
        self.rate[order] = (left / self.network.num_weights).log().float()
        self.alive[order] = False
        self._take_away()
        return True

    def _saved(self) -> Tensor:  # (items,)
        """Weights that go with each item."""
        saved = torch.full((self.items.count,), 1e-9, dtype=torch.float64)
        for name, reader in self.readers.items():
            saved[reader.items] += reader.weights_each * self.num_outputs[name]
        for layer in self.network.layers:
            own = self.written[layer.name]
            each = torch.full((int((own >= 0).sum()),), self.num_inputs[layer.name] * layer.kernel_area)
            saved.index_add_(0, own[own >= 0], each.double())
        return saved

    def _take_away(self) -> None:
        for name, reader in self.readers.items():
            gone = ~self.alive[reader.items]
            if gone.any():
                self.num_inputs[name] -= float(gone.sum()) * reader.weight.shape[2]
                self.readers[name] = reader.without(gone)
        for name, own in self.written.items():
            left = (own < 0) | self.alive[own.clamp(min=0)]
            self.num_outputs[name] -= float((~left).sum())
            self.written[name] = own[left]

    def rates(self) -> EliminationRates:
        """Of what stays for good, minus infinity."""
        known = torch.cat([self.rate, torch.full((1,), -torch.inf)]).to(self.network.device)
        found = []
        for layer in self.network.layers:
            own = self.items.of_inputs.get(layer.name)
            reading = torch.full((len(layer.reads),), -1) if own is None else own
            writing = self.items.of_unit[layer.writes.cpu()]
            arriving = None if layer.has_kernel else known[reading.to(known.device)][None]
            found.append(LayerDropout(arriving, known[writing.to(known.device)][None]))
        return tuple(found)


@torch.no_grad()
def eliminated(network: ConditionalNetwork, known: ContextCurvature, kept_outputs: Tensor) -> EliminationRates:
    """For every unit and input ``-log r``: from networks r times smaller on it is gone. A threshold is such a number.

    ``kept_outputs``, (O,) bool, are those that the context has.
    """
    elimination = _Elimination(network, known, kept_outputs)
    elimination.run()
    return elimination.rates()
