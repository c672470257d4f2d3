"""The weights that stay: generated where they do, scaled, rounded, and put into a plain, smaller network."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import ceil, log2, sqrt
from operator import mul
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bhc.emission.cut import ContextScales, Cut, LayerCut
from bhc.formats import LARGEST_BIAS_CODE, Codes
from bhc.graph import BranchEnd, Graph, Step, needed_steps
from bhc.hypernet import ConditionalNetwork
from bhc.layers import Kept, ScatterChannels, Select, Tied, call_of, kind_of
from bhc.layers.aten import Own, Read
from bhc.layers.linear import TiedKind
from bhc.posterior import marginal_variance

SMALLEST_VARIANCE = 1e-20
MOST_SIGNIFICANT = 23  # bits, of a float
GROUP = 64  # contexts whose weights are generated together, at most
WASTE = 8  # times the weights that stay: more is not generated for the sake of a group
LARGEST = 1 << 20  # numbers that are gathered at once for a layer of a group, were all its members like the largest


@dataclass(frozen=True)
class SlimLayer:
    """The numbers of one layer that stay, and how sure the posterior is of them."""

    cut: LayerCut
    weight: Tensor  # (O', I', *kernel): ``mu_z mu_ij mu_s`` (paper, Eq. 4)
    bias: Tensor | None  # (O',)
    find_variance: Callable[[], Tensor]  # only rounding needs it

    @cached_property
    def variance(self) -> Tensor:
        """Of each weight, both scales integrated out."""
        return self.find_variance()

    @cached_property
    def typical_variance(self) -> float:
        """The geometric mean: the arithmetic one is ruled by a few weights of huge variance."""
        return float(self.kept_variance.clamp_min(SMALLEST_VARIANCE).log().mean().exp())

    @property
    def kept_variance(self) -> Tensor:
        """The variances of the weights that stay; all of them, unless single weights were cut."""
        kept = self.cut.kept_weights
        return self.variance if kept is None or not kept.any() else self.variance[kept.cpu()]

    @cached_property
    def bias_codes(self) -> Codes | None:
        """Biases as a byte each; the posterior says nothing about them."""
        return None if self.bias is None else Codes.of(self.bias, 0.0, largest=LARGEST_BIAS_CODE)


@dataclass(frozen=True)
class Patch:
    """What the hypernetwork says of some contexts at some outputs and inputs of a layer.

    A part that all contexts share has one row in place of k. A convolution has one scale for all of its input.
    """

    mean: Tensor  # (k, O', I', *kernel)
    in_scale: Tensor | None  # (k, I')
    out_scale: Tensor | None  # (k, O')
    bias: Tensor | None  # (k, O')

    def scaled(self) -> tuple[Tensor, Tensor | None]:
        weight, bias, kernel = self.mean, self.bias, [1] * (self.mean.dim() - 3)
        if self.in_scale is not None:
            weight = weight * self.in_scale.view(self.in_scale.shape[0], 1, -1, *kernel)
        if self.out_scale is not None:
            scale = self.out_scale.view(*self.out_scale.shape, 1, *kernel)
            own = (
                weight is not self.mean and weight.shape[0] == scale.shape[0]
            )  # no new memory, which costs more than the sums
            weight = weight.mul_(scale) if own else weight * scale
            bias = None if bias is None else bias * self.out_scale
        return weight, bias


class Slimmer:
    """Generates the weights of contexts where they stay, and scales them."""

    def __init__(self, scales: ContextScales) -> None:
        self.scales = scales
        with torch.no_grad():
            self.kept = [head.kept(scales.embedding) for head in scales.network.hypernet.weight_heads]

    @torch.no_grad()
    def layers(self, cut: Cut) -> tuple[SlimLayer, ...]:
        """Every layer of the one context, at its kept rows and columns."""
        assert len(self.scales.contexts) == 1
        return tuple(self._layer(own, index, 0) for index, own in enumerate(cut.layers))

    @torch.no_grad()
    def layers_of_all(self, cuts: Sequence[Cut]) -> list[tuple[SlimLayer, ...]]:
        """The same of every context, one cut for each; those that keep about as much are generated together."""
        by_size = sorted(range(len(cuts)), key=lambda place: cuts[place].num_weights)
        found: dict[int, tuple[SlimLayer, ...]] = {}
        while by_size:
            count = self._group_size(cuts[by_size[-1]])
            places, by_size = by_size[-count:], by_size[:-count]
            by_layer = zip(*(cuts[place].layers for place in places), strict=True)
            groups = [self._group(own, index, places) for index, own in enumerate(by_layer)]
            found |= zip(places, zip(*groups, strict=True), strict=True)
        return [found[place] for place in range(len(cuts))]

    def _group_size(self, largest: Cut) -> int:
        """How many contexts may go together of which none keeps more than this one."""
        layers = zip(largest.layers, self.kept, strict=True)
        numbers = max(cut.num_weights * kept.numbers_a_weight for cut, kept in layers)
        return min(GROUP, max(1, LARGEST // max(numbers, 1)))

    def _layer(self, cut: LayerCut, index: int, place: int) -> SlimLayer:
        patch = self._patch(index, slice(place, place + 1), cut.kept_outputs[None], cut.columns[None])
        weight, bias = patch.scaled()
        find_variance = partial(self._variance, cut, index, place, patch)
        return _slim(cut, weight[0], None if bias is None else bias[0], find_variance)

    def _group(self, cuts: Sequence[LayerCut], index: int, places: Sequence[int]) -> list[SlimLayer]:
        """One layer of several contexts: padded to one size, generated, and cut to their own."""
        rows, heights = _padded([cut.kept_outputs for cut in cuts])
        columns, widths = _padded([cut.columns for cut in cuts])
        if len(cuts) == 1 or rows.numel() * columns.shape[1] > WASTE * sum(map(mul, heights, widths)):
            return [self._layer(cut, index, place) for cut, place in zip(cuts, places, strict=True)]
        own = torch.tensor(places, device=rows.device)
        weight, bias = self._patch(index, own, rows, columns).scaled()
        layers = []
        for number, (cut, place, height, width) in enumerate(zip(cuts, places, heights, widths, strict=True)):
            own_bias = None if bias is None else bias[number if len(bias) > 1 else 0, :height]
            find_variance = partial(self._variance, cut, index, place)
            layers.append(_slim(cut, weight[number, :height, :width].contiguous(), own_bias, find_variance))
        return layers

    def _patch(self, index: int, own: slice | Tensor, rows: Tensor, columns: Tensor) -> Patch:
        """For k contexts; their units are (k, O') and (k, I')."""
        vectors = self.scales.vectors[index]
        return Patch(
            self.kept[index].mean(own, rows, columns),
            _at(vectors.in_scale, own, columns),
            _at(vectors.out_scale, own, rows),
            _at(vectors.bias, own, rows),
        )

    @torch.no_grad()
    def _variance(self, cut: LayerCut, index: int, place: int, patch: Patch | None = None) -> Tensor:
        rates, own = self.scales.rates[index], slice(place, place + 1)
        rows, columns = cut.kept_outputs[None], cut.columns[None]
        if patch is None:
            patch = self._patch(index, own, rows, columns)
        z, in_logvar = _with_logvar(patch.in_scale, _at(rates.in_log_dropout, own, columns), columns)
        s, out_logvar = _with_logvar(patch.out_scale, _at(rates.out_log_dropout, own, rows), rows)
        logvar = self.kept[index].logvar(own, rows, columns)
        return cut.at_columns(marginal_variance(patch.mean, logvar, z, in_logvar, s, out_logvar)[0]).cpu()


def _slim(cut: LayerCut, weight: Tensor, bias: Tensor | None, find_variance: Callable[[], Tensor]) -> SlimLayer:
    weight = cut.at_columns(weight)
    if cut.kept_weights is not None:
        weight = weight * cut.kept_weights
    return SlimLayer(cut, weight.cpu(), None if bias is None else bias.cpu(), find_variance)


def _at(values: Tensor | None, own: slice | Tensor, units: Tensor) -> Tensor | None:  # (k, n), or one row or column
    """What k contexts have for units of theirs; a convolution has one number for all of its input."""
    if values is None:
        return None
    rows = values if values.shape[0] == 1 else values[own]
    if rows.shape[1] == 1:
        return rows
    return rows.index_select(1, units[0]) if units.shape[0] == 1 else rows.expand(len(units), -1).gather(1, units)


def _padded(chosen: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Lists of units as rows of one length, filled up with the first unit; and how long each was."""
    counts = [len(each) for each in chosen]
    padded = torch.zeros(len(counts), max(counts), dtype=torch.long, device=chosen[0].device)
    filled = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    padded.masked_scatter_(filled.to(padded.device), torch.cat(tuple(chosen)))
    return padded, counts


def _with_logvar(scale: Tensor | None, rate: Tensor | None, units: Tensor) -> tuple[Tensor, Tensor]:  # (1, n) each
    """Means and log-variances of scales; without scales, a one that is certain.

    A rate is that of the end of learning, as the masks are; consolidation has since moved the means.
    """
    if scale is None or rate is None:
        ones = torch.ones(units.shape, device=units.device)
        return ones, torch.full_like(ones, -torch.inf)
    return scale, rate + scale.square().log()


def slim_model(network: ConditionalNetwork, cut: Cut) -> Graph:
    """The network of the kept units: ``diag(mu_z) M_w diag(mu_s)`` at the kept rows and columns only."""
    return assemble(network, cut, Slimmer(ContextScales.of(network, [cut.context])).layers(cut))


def assemble(network: ConditionalNetwork, cut: Cut, layers: Sequence[SlimLayer]) -> Graph:
    """The original's graph with each weighted layer replaced by what stays of it; branches that went are constants."""
    steps = list(_steps(network, cut, layers))
    gone = any(layer.cut.is_gone for layer in layers)
    shared = (layer.cut.layer.name for layer in layers if layer.cut.layer.is_shared)  # other calls have its name
    wanted = {steps[-1].name, *network.base_model.input_steps, *shared}
    return Graph(needed_steps(steps, wanted) if gone else steps).eval()


def _steps(network: ConditionalNetwork, cut: Cut, layers: Sequence[SlimLayer]) -> Iterator[Step]:
    by_name = {name: each for each in layers for name in (*each.cut.layer.calls, *each.cut.layer.transposed)}
    smaller: dict[str, nn.Module] = {}  # by layer: what all of its calls use
    alive, units = cut.alive.cpu().numpy(), network.units
    kept = cache(lambda name: units.kept(name, alive))  # by value: one step writes it and others read it
    instead: dict[str, str] = {}  # the step that puts what a layer writes where it belongs
    lost = Lost.of(network, alive, by_name)
    for step in network.base_model.steps:
        if step.name in lost.steps:
            continue
        layer = by_name.get(step.name)
        reads = tuple(instead.get(name, name) for name in step.reads)
        if step.name in lost.constants:
            source = next(own for name, own in zip(step.reads, reads, strict=True) if name not in lost.steps)
            shift = lost.constants[step.name]
            instead[step.name] = source if shift is None else step.name
            if shift is not None:
                yield Step(step.name, shift, (source,))
            continue
        if layer is None:
            *arriving, leaving = map(kept, (*step.reads, step.name))
            yield Step(step.name, kind_of(step.module).narrowed(step.module, arriving, leaving), reads)
            continue
        own = layer.cut
        if own.layer.name not in smaller:
            smaller[own.layer.name] = own.layer.kind.smaller(step.module, layer.weight, layer.bias, own.kept_inputs)
        call = _Call.of(own, smaller[own.layer.name], transposed=step.name in own.layer.transposed)
        index, _ = _among_living(*call.reads, alive)
        if index is not None and call.picks_inputs:
            axis = call.in_axis % units.dimensions[step.reads[0]]
            yield Step(f"select_{step.name}", Select(index, axis), reads)
            reads = (f"select_{step.name}",)
        (before,) = step.reads
        if own.layer.kind.counts_kept(step.module, [units.axes[before]], [units.dimensions[before]]):
            made = _over_units(step.name, call.module, reads, kept(before), kept(step.name))
            instead[step.name] = made[-1].name
            yield from made
            continue
        yield Step(step.name, call.module, reads)
        index, width = _among_living(*call.writes, alive)
        if index is not None:
            instead[step.name] = f"place_{step.name}"
            places = ScatterChannels(index, width, call.out_axis % units.dimensions[step.name])
            yield Step(instead[step.name], places, (step.name,))


def _over_units(name: str, module: nn.Module, reads: tuple[str, ...], arriving: Kept, leaving: Kept) -> Sequence[Step]:
    """A layer that slides over units: zeros at the places of those that went, and of what it gives what stays."""
    steps: list[Step] = []
    if not arriving.mask.all():
        places = ScatterChannels(torch.from_numpy(arriving.index), len(arriving.mask), arriving.axis)
        steps.append(Step(f"place_{name}", places, reads))
        reads = (f"place_{name}",)
    steps.append(Step(name, module, reads))
    for axis, index, count in leaving.lines():
        if len(index) < count:
            before = steps[-1].name
            steps.append(Step(f"select_{before}", Select(torch.from_numpy(index), axis), (before,)))
    return steps


class _Call(NamedTuple):
    """One use of a layer's weights: at either end the units, and which of them are kept."""

    module: nn.Module
    reads: tuple[np.ndarray, Tensor]
    writes: tuple[np.ndarray, Tensor]
    in_axis: int
    out_axis: int
    picks_inputs: bool = True  # whether what it does not read has to be left out for it: not rows of words

    @classmethod
    def of(cls, cut: LayerCut, module: nn.Module, *, transposed: bool) -> "_Call":
        layer, (read, written) = cut.layer, cut.layer.units_of_ends
        reads, writes = (read, cut.kept_inputs), (written, cut.kept_outputs)
        if transposed:
            return cls(Tied(module), writes, reads, TiedKind.axis, TiedKind.axis)
        picks = layer.kind.words(layer.module) is None
        return cls(module, reads, writes, layer.kind.in_axis, layer.kind.out_axis, picks)


@dataclass(frozen=True)
class Lost:
    """Steps of branches that went, and what is added in their place where a branch met its shortcut; None: nothing."""

    steps: frozenset[str]
    constants: Mapping[str, nn.Module | None]

    @classmethod
    def of(cls, network: ConditionalNetwork, alive: np.ndarray, layers: Mapping[str, SlimLayer]) -> "Lost":
        gone = [branch for branch in network.branches if not alive[branch.units].any()]
        if not gone:
            return cls(frozenset(), {})
        units = np.zeros(len(alive), dtype=bool)
        units[[unit for branch in gone for unit in branch.units]] = True
        steps = {name for branch in gone for name in branch.inner}
        constants: dict[str, nn.Module | None] = {}
        for end in (end for branch in gone for end in branch.ends):
            steps |= {end.layer, *end.path}
            constants[end.joint] = _shift(network, end, layers[end.layer], alive)
        inside = (name for name, own in network.units.carried.items() if units[own].any())
        return cls(frozenset(steps.union(inside)), constants)


def _shift(network: ConditionalNetwork, end: BranchEnd, layer: SlimLayer, alive: np.ndarray) -> nn.Module | None:
    """Adds what the last layer of a branch gives where it reads nothing, ``s b``."""
    numbers = torch.zeros(layer.cut.layer.num_outputs)
    if layer.bias is not None:
        numbers[layer.cut.kept_outputs.cpu()] = layer.bias.detach()
    given = end.constant(network.base_model, numbers, layer.cut.layer.kind.out_axis)
    if not given.any():
        return None
    axes, units = network.units.axes[end.joint], network.units.carried[end.joint]
    (axis,) = axes
    line = given.movedim(axis, 0).flatten(1)[:, 0][torch.from_numpy(alive[units])]
    own = line.reshape(-1, *[1] * (given.dim() - 1 - axis)).clone()
    return call_of("aten.add.Tensor", [Read(0), Own("own0")], own={"own0": own})


def _among_living(units: np.ndarray, kept: Tensor, alive: np.ndarray) -> tuple[Tensor | None, int]:
    """Which of its units that live a layer keeps, None if all, and how many live; arrays: many small steps."""
    keeps = np.zeros(len(units), dtype=bool)
    keeps[kept.cpu().numpy()] = True
    among = keeps[alive[units]]
    return None if among.all() else torch.from_numpy(among.nonzero()[0]), len(among)


def step_of(layer: SlimLayer, scale: float) -> float:
    """``step^2 = 12 scale exp(mean log V(w_ij))``: rounding adds ``step^2 / 12``, ``scale`` times the variance."""
    return sqrt(12 * scale * layer.typical_variance)


def present(layers: Sequence[SlimLayer]) -> list[SlimLayer]:
    """Those that did not go with a branch."""
    return [layer for layer in layers if not layer.cut.is_gone]


def quantise(layers: Sequence[SlimLayer], scale: float) -> tuple[dict[str, Codes], dict[str, Codes]]:
    """Codes of all weights, with a ``scale`` common to all layers, and of all biases."""
    there = present(layers)
    weights = {layer.cut.layer.name: Codes.of(layer.weight, step_of(layer, scale)) for layer in there}
    biases = {layer.cut.layer.name: layer.bias_codes for layer in there if layer.bias_codes is not None}
    return weights, biases


def reference_bits(layers: Sequence[SlimLayer]) -> tuple[int, ...]:
    """Bit widths as the published Bayesian compression code counts them: for tables, not for files.

    There a weight of variance v deserves as many significant bits t as ``2 v < 2^-t`` holds for (t up to 23); a layer
    takes the mean over its weights, rounded up; all layers share one size of exponent, from the largest weight; a sign
    bit comes on top. Biases are not counted. Its exponent, ``ceil(log2(log2(w) + 1) + 1)``, is zero, negative or no
    number at all for a largest weight w under 0.71; here it is at least 1.
    """
    there = present(layers)
    exponent = exponent_bits(max(float(layer.weight.abs().max()) for layer in there))
    return tuple(1 + exponent + significant_bits(layer.kept_variance) for layer in there)


def significant_bits(variance: Tensor) -> int:
    units = 2.0 ** torch.arange(-float(MOST_SIGNIFICANT), 0.0)
    reached = torch.bucketize(2 * variance.flatten(), units, right=True)  # units that are not larger
    return ceil(float((MOST_SIGNIFICANT - reached).double().mean()))


def exponent_bits(largest: float) -> int:
    inner = log2(largest) + 1 if largest > 0 else 0.0
    return max(1, ceil(log2(inner) + 1)) if inner > 0 else 1
