"""How well a score tells two kinds of inputs apart."""

import torch
from torch import Tensor


def auroc(inside: Tensor, outside: Tensor) -> float:  # (N,), (M,)
    """The area under the ROC curve: how often an input from outside has the higher score.

    Over all pairs of one input from inside and one from outside; a tie counts half. 0.5 tells nothing, 1 all.
    """
    values, places = torch.unique(torch.cat([inside, outside]), return_inverse=True)
    here = torch.bincount(places[: len(inside)], minlength=len(values))
    there = torch.bincount(places[len(inside) :], minlength=len(values))
    halves = int((there * (2 * here.cumsum(0) - here)).sum())  # two for each pair in order, one for each tie
    return halves / (2 * len(inside) * len(outside))
