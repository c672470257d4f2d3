"""How exact weights are: 32-bit floats, or bits from the posterior, a coarse step for a weight that is uncertain."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, sqrt

import torch

from bhc.emission.weights import SlimLayer
from bhc.errors import BhcError
from bhc.formats import Codes
from bhc.posterior import Family

MOST_SIGNIFICANT = 23  # bits, of a float

# Powers of two: a step 1.4 times as coarse each, and two bytes in a file. Finer ones cost bytes and gained nothing on
# validation data.
SCALES = tuple(2.0**power for power in range(-6, 4))

# For weights that go one by one: those that stay may be far more uncertain than they are large. Of groups hardly any
# are; finer steps are tried where the finest of the usual ones does harm.
FINER_SCALES = tuple(2.0**power for power in range(-12, -6))


def scales_for(family: Family) -> tuple[float, ...]:
    """The scales to try first on networks of a family, in ascending order."""
    return (*FINER_SCALES, *SCALES) if family.cuts_weights else SCALES


@dataclass(frozen=True)
class Float32:
    """32-bit floats: pruning alone."""


@dataclass(frozen=True)
class VarianceBits:
    """Steps from the posterior's variance; ``scale`` None has their common scale searched on validation data."""

    scale: float | None = None

    def __post_init__(self) -> None:
        if self.scale is not None and not 1e-6 <= self.scale <= 1e6:
            raise BhcError(f"the scale of the steps must lie between 1e-6 and 1e6, given {self.scale}")


Quantisation = Float32 | VarianceBits


def step_of(layer: SlimLayer, scale: float) -> float:
    """``step^2 = 12 scale exp(mean log V(w_ij))``: rounding adds ``step^2 / 12``, ``scale`` times the variance."""
    return sqrt(12 * scale * layer.typical_variance)


def quantise(layers: Sequence[SlimLayer], scale: float) -> tuple[dict[str, Codes], dict[str, Codes]]:
    """Codes of all weights, with a ``scale`` common to all layers, and of all biases."""
    weights = {layer.cut.layer.name: Codes.of(layer.weight, step_of(layer, scale)) for layer in layers}
    biases = {layer.cut.layer.name: layer.bias_codes for layer in layers if layer.bias_codes is not None}
    return weights, biases


def reference_bits(layers: Sequence[SlimLayer]) -> tuple[int, ...]:
    """Bit widths as the published Bayesian compression code counts them: for tables, not for files.

    There a weight of variance v deserves as many significant bits t as ``2 v < 2^-t`` holds for (t up to 23); a layer
    takes the mean over its weights, rounded up; all layers share one size of exponent, from the largest weight; a sign
    bit comes on top. Biases are not counted. Its exponent, ``ceil(log2(log2(w) + 1) + 1)``, is zero, negative or no
    number at all for a largest weight w under 0.71; here it is at least 1.
    """
    exponent = exponent_bits(max(float(layer.weight.abs().max()) for layer in layers))
    return tuple(1 + exponent + significant_bits(layer.kept_variance) for layer in layers)


def significant_bits(variance: torch.Tensor) -> int:
    units = 2.0 ** torch.arange(-float(MOST_SIGNIFICANT), 0.0)
    reached = torch.bucketize(2 * variance.flatten(), units, right=True)  # units that are not larger
    return ceil(float((MOST_SIGNIFICANT - reached).double().mean()))


def exponent_bits(largest: float) -> int:
    inner = log2(largest) + 1 if largest > 0 else 0.0
    return max(1, ceil(log2(inner) + 1)) if inner > 0 else 1
