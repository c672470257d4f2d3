"""How wide the prior of a layer's weights is."""

from collections.abc import Sequence

from bhc.graph import Layer

FEW_LAYERS = 4  # networks of so many or fewer are trained as published
SMALLEST = 1e-4  # a layer of zeros has a prior too


def usual_prior_stds(layers: Sequence[Layer]) -> tuple[float, ...]:
    """One a layer: 1, as in the paper, in networks of few layers; in deeper ones the size of the pretrained weights.

    Normal-Jeffreys scales know no unit, so the width of the weights' prior says nothing about the best posterior, and
    everything about the way there: with weights far smaller than their prior the noise outgrows them before any scale
    has moved, and every layer behind sees noise alone.
    """
    if len(layers) <= FEW_LAYERS:
        return (1.0,) * len(layers)
    # Three digits: a sum over millions of weights has its last ones from the number of threads.
    return tuple(float(f"{max(layer.weight_size, SMALLEST):.3g}") for layer in layers)
