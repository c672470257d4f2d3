"""The kept weights of many contexts: those that any of them keeps are generated for all at once."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from bhc.emission.plan import LayerPlan, Plan
from bhc.emission.slim import SlimLayer, Slimmer

MOST_NUMBERS = 1 << 23  # of one layer in memory at once, for all contexts of a part
WORTH = 16  # times what a context keeps: of a larger block it is cheaper to generate its own weights by themselves


@torch.no_grad()
def slim_many(slimmer: Slimmer, plans: Sequence[Plan]) -> list[tuple[SlimLayer, ...]]:
    """What ``slimmer.layers(plan, place)`` gives for the plan at each place.

    One product a layer instead of one a context and layer: contexts that have much in common ask for much the same
    weights, and what one of them has no use for costs less than a call of its own.
    """
    columns = zip(*(plan.layers for plan in plans), strict=True)
    by_layer = [_slim_layers(slimmer, index, cuts) for index, cuts in enumerate(columns)]
    return list(zip(*by_layer, strict=True))


def _slim_layers(slimmer: Slimmer, index: int, cuts: Sequence[LayerPlan]) -> list[SlimLayer]:
    """One layer in all contexts."""
    layer = cuts[0].layer
    rows, row_places = _union([cut.kept_outputs for cut in cuts], layer.num_outputs)
    columns, column_places = _union([cut.columns for cut in cuts], layer.num_inputs)
    block = len(rows) * len(columns)
    usual = sum(len(cut.kept_outputs) * len(cut.columns) for cut in cuts) / len(cuts)
    if block > WORTH * usual or block * layer.kernel_area * len(cuts) > MOST_NUMBERS:
        return [slimmer.layer(cut, index, place) for place, cut in enumerate(cuts)]
    weights, biases = slimmer.scaled(index, rows, columns)
    return [
        SlimLayer(cut, weight, bias, partial(slimmer.variance, cut, index, place))
        for place, (cut, weight, bias) in enumerate(
            zip(cuts, _each(weights, cuts, row_places, column_places), _each_bias(biases, row_places), strict=True)
        )
    ]


def _union(kept: Sequence[Tensor], count: int) -> tuple[Tensor, Sequence[Tensor]]:
    """Units that any context keeps, ascending, and where among them those of each context are."""
    every = torch.cat([*kept])
    used = torch.zeros(count, dtype=torch.bool, device=every.device)
    used[every] = True
    places = used.cumsum(0) - 1
    return used.nonzero().flatten(), places[every].split([len(own) for own in kept])


def _each(
    weights: Tensor,  # (K or 1, O', I', *kernel)
    cuts: Sequence[LayerPlan],
    rows: Sequence[Tensor],
    columns: Sequence[Tensor],
) -> Iterator[Tensor]:
    every = weights.expand(len(cuts), *weights.shape[1:]).unbind()
    for own, cut, row, column in zip(every, cuts, rows, columns, strict=True):
        weight = own.index_select(0, row).index_select(1, column)
        yield (weight if cut.kept_weights is None else weight * cut.kept_weights).cpu()


def _each_bias(biases: Tensor | None, rows: Sequence[Tensor]) -> Iterator[Tensor | None]:
    if biases is None:
        yield from [None] * len(rows)
        return
    for own, row in zip(biases.expand(len(rows), -1).unbind(), rows, strict=True):
        yield own.index_select(0, row).cpu()
