"""Rates that never fall as the budget rises."""

from collections.abc import Callable
from dataclasses import fields, replace

import torch
from torch import Tensor

from bhc.contexts import ContextBatch
from bhc.posterior import LayerDropout

RUNGS = 9  # budgets that rates are generated at, from 0 to 1
FARTHEST = 1e30  # no threshold comes near it

Rates = tuple[LayerDropout, ...]


def climb(rates_of: Callable[[ContextBatch], Rates], batch: ContextBatch) -> Rates:
    """The largest rates on the way up from budget 0 to each context's own, linear between the rungs.

    ``r(w) = (1 - t) m_j + t m_{j+1}`` with ``m_j = max(r_0, ..., r_j)`` and w between the rungs j and j + 1. Beyond
    both ends, where only training goes, they are those of the end.
    """
    assert batch.budget is not None
    contexts = len(batch)
    rungs = torch.linspace(0, 1, RUNGS, device=batch.budget.device).repeat_interleave(contexts)[:, None]
    layers = rates_of(replace(batch.repeated(RUNGS), budget=rungs))
    return tuple(_at(layer, batch.budget) for layer in layers)


def _at(layer: LayerDropout, budget: Tensor) -> LayerDropout:
    """One layer's rates at the contexts' budgets, (K, 1)."""
    each = {field.name: getattr(layer, field.name) for field in fields(layer)}
    return LayerDropout(**{name: None if rates is None else _between(rates, budget) for name, rates in each.items()})


def _between(rates: Tensor, budget: Tensor) -> Tensor:  # (K, ...)
    if len(rates) == 1:  # shared by all contexts
        return rates
    finite = rates.clamp(-FARTHEST, FARTHEST)  # between two that are infinite there is no number
    largest = finite.unflatten(0, (RUNGS, len(budget))).cummax(0).values
    place = budget[:, 0].clamp(0, 1) * (RUNGS - 1)
    below = place.long().clamp(max=RUNGS - 2)
    own = torch.arange(len(budget), device=budget.device)
    part = (place - below).reshape(-1, *[1] * (rates.dim() - 1))
    return largest[below, own].lerp(largest[below + 1, own], part)
