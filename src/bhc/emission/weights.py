"""The weights that stay: generated where they do, and scaled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import mul

import torch
from torch import Tensor

from bhc.emission.plan import Generated, LayerPlan, Plan
from bhc.formats import LARGEST_BIAS_CODE, Codes
from bhc.posterior import marginal_variance

SMALLEST_VARIANCE = 1e-20
GROUP = 64  # contexts whose weights are generated together, at most
WASTE = 8  # times the weights that stay: more is not generated for the sake of a group
LARGEST = 1 << 20  # numbers that are gathered at once for a layer of a group, were all its members like the largest


@dataclass(frozen=True)
class SlimLayer:
    """The numbers of one layer that stay, and how sure the posterior is of them."""

    cut: LayerPlan
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
        """Weights and biases of a plain layer."""
        weight, bias, kernel = self.mean, self.bias, [1] * (self.mean.dim() - 3)
        if self.in_scale is not None:
            weight = weight * self.in_scale.view(len(self.in_scale), 1, -1, *kernel)
        if self.out_scale is not None:
            weight = weight * self.out_scale.view(*self.out_scale.shape, 1, *kernel)
            bias = None if bias is None else bias * self.out_scale
        return weight, bias


class Slimmer:
    """Generates the weights of contexts where they stay, and scales them."""

    def __init__(self, generated: Generated) -> None:
        self.generated = generated
        with torch.no_grad():
            self.kept = [head.kept(generated.embedding) for head in generated.network.hypernet.weight_heads]

    @torch.no_grad()
    def layers(self, plan: Plan) -> tuple[SlimLayer, ...]:
        """Every layer of the one context, at its kept rows and columns."""
        assert len(self.generated.contexts) == 1
        return tuple(self._layer(cut, index, 0) for index, cut in enumerate(plan.layers))

    @torch.no_grad()
    def layers_of_all(self, plans: Sequence[Plan]) -> list[tuple[SlimLayer, ...]]:
        """The same of every context, one plan for each; those that keep about as much are generated together."""
        by_size = sorted(range(len(plans)), key=lambda place: plans[place].num_weights)
        found: dict[int, tuple[SlimLayer, ...]] = {}
        while by_size:
            count = self._group_size(plans[by_size[-1]])
            places, by_size = by_size[-count:], by_size[:-count]
            cuts = zip(*(plans[place].layers for place in places), strict=True)
            groups = [self._group(own, index, places) for index, own in enumerate(cuts)]
            found |= zip(places, zip(*groups, strict=True), strict=True)
        return [found[place] for place in range(len(plans))]

    def _group_size(self, largest: Plan) -> int:
        """How many contexts may go together of which none keeps more than this one."""
        layers = zip(largest.layers, self.kept, strict=True)
        numbers = max(cut.num_weights * kept.numbers_a_weight for cut, kept in layers)
        return min(GROUP, max(1, LARGEST // max(numbers, 1)))

    def _layer(self, cut: LayerPlan, index: int, place: int) -> SlimLayer:
        patch = self._patch(index, slice(place, place + 1), cut.kept_outputs[None], cut.columns[None])
        weight, bias = patch.scaled()
        find_variance = partial(self._variance, cut, index, place, patch)
        return _slim(cut, weight[0], None if bias is None else bias[0], find_variance)

    def _group(self, cuts: Sequence[LayerPlan], index: int, places: Sequence[int]) -> list[SlimLayer]:
        """One layer of several contexts: padded to one size, generated, and cut to their own."""
        rows, heights = _padded([cut.kept_outputs for cut in cuts])
        columns, widths = _padded([cut.columns for cut in cuts])
        if len(cuts) == 1 or rows.numel() * columns.shape[1] > WASTE * sum(map(mul, heights, widths)):
            return [self._layer(cut, index, place) for cut, place in zip(cuts, places, strict=True)]
        own = torch.tensor(places, device=rows.device)
        weight, bias = self._patch(index, own, rows, columns).scaled()
        layers = []
        for number, (cut, place) in enumerate(zip(cuts, places, strict=True)):
            height, width = heights[number], widths[number]
            own_bias = None if bias is None else bias[number if len(bias) > 1 else 0, :height]
            find_variance = partial(self._variance, cut, index, place)
            layers.append(_slim(cut, weight[number, :height, :width].contiguous(), own_bias, find_variance))
        return layers

    def _patch(self, index: int, own: slice | Tensor, rows: Tensor, columns: Tensor) -> Patch:
        """For k contexts; their units are (k, O') and (k, I')."""
        vectors = self.generated.vectors[index]
        return Patch(
            self.kept[index].mean(own, rows, columns),
            _at(vectors.in_scale, own, columns),
            _at(vectors.out_scale, own, rows),
            _at(vectors.bias, own, rows),
        )

    @torch.no_grad()
    def _variance(self, cut: LayerPlan, index: int, place: int, patch: Patch | None = None) -> Tensor:
        rates, own = self.generated.rates[index], slice(place, place + 1)
        rows, columns = cut.kept_outputs[None], cut.columns[None]
        if patch is None:
            patch = self._patch(index, own, rows, columns)
        z, in_logvar = _with_logvar(patch.in_scale, _at(rates.in_log_dropout, own, columns), columns)
        s, out_logvar = _with_logvar(patch.out_scale, _at(rates.out_log_dropout, own, rows), rows)
        logvar = self.kept[index].logvar(own, rows, columns)
        return marginal_variance(patch.mean, logvar, z, in_logvar, s, out_logvar)[0].cpu()


def _slim(cut: LayerPlan, weight: Tensor, bias: Tensor | None, find_variance: Callable[[], Tensor]) -> SlimLayer:
    if cut.kept_weights is not None:
        weight = weight * cut.kept_weights
    return SlimLayer(cut, weight.cpu(), None if bias is None else bias.cpu(), find_variance)


def _at(values: Tensor | None, own: slice | Tensor, units: Tensor) -> Tensor | None:  # (k, n), or one row or column
    """What k contexts have for units of theirs; a convolution has one number for all of its input."""
    if values is None:
        return None
    rows = values if len(values) == 1 else values[own]
    if rows.shape[1] == 1:
        return rows
    return rows.index_select(1, units[0]) if len(units) == 1 else rows.expand(len(units), -1).gather(1, units)


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
