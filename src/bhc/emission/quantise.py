"""Bits from the posterior: a weight that is uncertain deserves a coarse step."""

from collections.abc import Sequence


from bhc.emission.slim import SlimLayer
from bhc.formats import Codes
from bhc.formats.quantised import LARGEST_BIAS_CODE

SMALLEST_VARIANCE = 1e-20


def step_of(layer: SlimLayer, scale: float) -> float:
    """``step^2 = 12 scale exp(mean log V(w_ij))``: rounding adds ``step^2 / 12``, ``scale`` times the variance.

    The geometric mean, because the arithmetic one is ruled by a few weights of huge variance.
    """
    log_variance = layer.variance.clamp_min(SMALLEST_VARIANCE).log().mean()
    return float((12 * scale * log_variance.exp()).sqrt())


def quantise(layers: Sequence[SlimLayer], scale: float) -> tuple[dict[str, Codes], dict[str, Codes]]:
    """Codes of all weights and biases; ``scale`` is common to all layers. Biases take a byte each."""
    weights, biases = {}, {}
    for layer in layers:
        name = layer.cut.layer.name
        weights[name] = Codes.of(layer.weight, step_of(layer, scale))
        if layer.bias is not None:
            biases[name] = Codes.of(layer.bias, 0.0, largest=LARGEST_BIAS_CODE)
    return weights, biases
