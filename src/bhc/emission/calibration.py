"""Whether probabilities mean what they say, and the temperature that makes them do so."""

import torch
from torch import Tensor

BINS = 15
COLDEST, HOTTEST = -1.0, 1.4  # powers of ten
CANDIDATES, LOOKS = 9, 3  # each look goes between the neighbours of the best so far; at last 4 % apart


def expected_calibration_error(
    probabilities: Tensor, labels: Tensor, weights: Tensor | None = None
) -> float:  # (N, C), (N,), (C,)
    """How far the highest probability lies from the part of right answers, in percent.

    Both are averaged in 15 bins of equal width, ``(0, 1/15]`` to ``(14/15, 1]``, and a bin counts with its examples,
    each with the weight of its class.
    """
    confidence, answer = probabilities.double().max(1)
    counts = torch.ones_like(confidence) if weights is None else weights.double()[labels]
    edges = torch.arange(1, BINS, dtype=torch.double) / BINS
    gaps = torch.zeros(BINS, dtype=torch.double)
    gaps.index_add_(0, torch.bucketize(confidence, edges), counts * ((answer == labels).double() - confidence))
    return 100 * float(gaps.abs().sum() / counts.sum())


def best_temperature(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
    """The temperature with the lowest cross-entropy, rounded so that it takes two bytes; classes may have weights.

    The cross-entropy has one valley, since it is convex in one over the temperature.
    """
    counts = None if weights is None else weights.to(logits.dtype)[labels]
    below = (logits - logits.amax(1, keepdim=True)).T.contiguous()  # (C, N): sums along a short last axis are slow
    own = below.gather(0, labels[None])
    low, high = COLDEST, HOTTEST
    best = 1.0
    for _ in range(LOOKS):
        powers = torch.linspace(low, high, CANDIDATES)
        temperatures = (10**powers).half().float()
        surprise = (below[:, None] / temperatures[:, None]).exp().sum(0).log() - own / temperatures[:, None]
        losses = surprise.mean(1) if counts is None else surprise @ counts
        place = int(losses.argmin())
        best = float(temperatures[place])
        low, high = float(powers[max(place - 1, 0)]), float(powers[min(place + 1, CANDIDATES - 1)])
    return best
