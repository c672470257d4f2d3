"""Bits from the posterior: a weight that is uncertain deserves a coarse step."""

from collections.abc import Sequence
from math import sqrt

from bhc.emission.weights import SlimLayer
from bhc.formats import Codes


def step_of(layer: SlimLayer, scale: float) -> float:
    """``step^2 = 12 scale exp(mean log V(w_ij))``: rounding adds ``step^2 / 12``, ``scale`` times the variance."""
    return sqrt(12 * scale * layer.typical_variance)


def quantise(layers: Sequence[SlimLayer], scale: float) -> tuple[dict[str, Codes], dict[str, Codes]]:
    """Codes of all weights, with a ``scale`` common to all layers, and of all biases."""
    weights = {layer.cut.layer.name: Codes.of(layer.weight, step_of(layer, scale)) for layer in layers}
    biases = {layer.cut.layer.name: layer.bias_codes for layer in layers if layer.bias_codes is not None}
    return weights, biases
