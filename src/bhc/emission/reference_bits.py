"""Bit widths as the published Bayesian compression code counts them: for tables, not for files.

There a weight of variance v deserves as many significant bits t as ``2 v < 2^-t`` holds for (t up to 23); a layer
takes the mean over its weights, rounded up; all layers share one size of exponent, from the largest weight; a sign
bit comes on top. Biases are not counted. Its exponent, ``ceil(log2(log2(w) + 1) + 1)``, is zero, negative or no
number at all for a largest weight w under 0.71; here it is at least 1.
"""

from collections.abc import Sequence
from math import ceil, log2

import torch

from bhc.emission.weights import SlimLayer

MOST_SIGNIFICANT = 23


def reference_bits(layers: Sequence[SlimLayer]) -> tuple[int, ...]:
    """Bits of each layer's weights: sign, exponent, significant bits."""
    exponent = exponent_bits(max(float(layer.weight.abs().max()) for layer in layers))
    return tuple(1 + exponent + significant_bits(layer.kept_variance) for layer in layers)


def significant_bits(variance: torch.Tensor) -> int:
    units = 2.0 ** torch.arange(-float(MOST_SIGNIFICANT), 0.0)
    reached = torch.bucketize(2 * variance.flatten(), units, right=True)  # units that are not larger
    return ceil(float((MOST_SIGNIFICANT - reached).double().mean()))


def exponent_bits(largest: float) -> int:
    inner = log2(largest) + 1 if largest > 0 else 0.0
    return max(1, ceil(log2(inner) + 1)) if inner > 0 else 1
