"""The weights that stay: generated where they do, and scaled."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from bhc.emission.generated import Generated
from bhc.emission.plan import LayerPlan, Plan
from bhc.formats import LARGEST_BIAS_CODE, Codes
from bhc.posterior import marginal_variance

SMALLEST_VARIANCE = 1e-20
GROUP = 64  # contexts whose weights are generated together
WASTE = 8  # times the weights that stay: more is not generated for the sake of a group
LARGEST = 1 << 22  # numbers of one layer that a group may have at once


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
        return tuple(self._layer(cut, index, 0) for index, cut in enumerate(plan.layers))

    @torch.no_grad()
    def layers_of_all(self, plans: Sequence[Plan]) -> Iterator[tuple[SlimLayer, ...]]:
        """The same of every context, one plan for each; those that keep much the same are generated together."""
        for first in range(0, len(plans), GROUP):
            cuts = zip(*(plan.layers for plan in plans[first : first + GROUP]), strict=True)
            yield from zip(*(self._group(own, index, first) for index, own in enumerate(cuts)), strict=True)

    def _layer(self, cut: LayerPlan, index: int, place: int) -> SlimLayer:
        patch = self._patch(index, slice(place, place + 1), cut.kept_outputs, cut.columns)
        weight, bias = patch.scaled()
        find_variance = partial(self._variance, cut, index, place, patch)
        return _slim(cut, weight[0], None if bias is None else bias[0], find_variance)

    def _group(self, cuts: Sequence[LayerPlan], index: int, first: int) -> list[SlimLayer]:
        """One layer of contexts that follow each other: generated wherever one of them keeps it, then picked."""
        rows, own_rows = _union([cut.kept_outputs for cut in cuts])
        columns, own_columns = _union([cut.columns for cut in cuts])
        generated = len(cuts) * len(rows) * len(columns) * cuts[0].layer.kernel_area
        if generated > min(LARGEST, WASTE * sum(cut.num_weights for cut in cuts)):
            return [self._layer(cut, index, first + number) for number, cut in enumerate(cuts)]
        weight, bias = self._patch(index, slice(first, first + len(cuts)), rows, columns).scaled()
        layers = []
        for number, (cut, outputs, inputs) in enumerate(zip(cuts, own_rows, own_columns, strict=True)):
            own = _picked(_picked(_row(weight, number), 0, outputs), 1, inputs)
            own_bias = None if bias is None else _picked(_row(bias, number), 0, outputs)
            layers.append(_slim(cut, own, own_bias, partial(self._variance, cut, index, first + number)))
        return layers

    def _patch(self, index: int, own: slice, rows: Tensor, columns: Tensor) -> Patch:
        vectors = self.generated.vectors[index]
        return Patch(
            self.kept[index].mean(own, rows, columns),
            _at(vectors.in_scale, own, columns),
            _at(vectors.out_scale, own, rows),
            _at(vectors.bias, own, rows),
        )

    @torch.no_grad()
    def _variance(self, cut: LayerPlan, index: int, place: int, patch: Patch | None = None) -> Tensor:
        rates, own, rows, columns = self.generated.rates[index], slice(place, place + 1), cut.kept_outputs, cut.columns
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


def _at(values: Tensor | None, own: slice, units: Tensor) -> Tensor | None:  # (k or 1, n)
    """What some contexts have for the units that stay; a convolution has one number for all of its input."""
    if values is None:
        return None
    rows = values if len(values) == 1 else values[own]
    return rows if rows.shape[1] == 1 else rows.index_select(1, units)


def _union(chosen: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """All units that are in one of the lists, ascending, and where in them those of each list are."""
    every, counts = torch.cat(tuple(chosen)), [len(each) for each in chosen]
    units, places = every.unique(return_inverse=True)
    return units, places.split(counts)


def _row(values: Tensor, number: int) -> Tensor:
    return values[number if len(values) > 1 else 0]


def _picked(values: Tensor, dim: int, places: Tensor) -> Tensor:
    """``places`` ascend, so as many as there are is all of them."""
    return values if len(places) == values.shape[dim] else values.index_select(dim, places)


def _with_logvar(scale: Tensor | None, rate: Tensor | None, places: Tensor) -> tuple[Tensor, Tensor]:  # (1, n) each
    """Means and log-variances of scales; without scales, a one that is certain.

    A rate is that of the end of learning, as the masks are; consolidation has since moved the means.
    """
    if scale is None or rate is None:
        ones = torch.ones(1, len(places), device=places.device)
        return ones, torch.full_like(ones, -torch.inf)
    return scale, rate + scale.square().log()
