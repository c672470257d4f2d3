"""How wide the prior of a layer's weights is."""

from collections.abc import Sequence

from bhc.graph import Layer

SHALLOW = 4  # layers
SMALLEST = 1e-4  # a layer of zeros has a prior too


def usual_prior_stds(layers: Sequence[Layer]) -> tuple[float, ...]:
    """One a layer: 1, as in the paper, in networks of few layers; in deeper ones the size of the pretrained weights.

    The scales' prior knows no unit, so the width of the weights' prior says nothing about the best posterior, and
    everything about the way there. From weights of 0.004 towards a prior of 1 the noise grows to many times the signal
    before any scale has moved, and sixteen layers of that forget what they knew.
    """
    if len(layers) <= SHALLOW:
        return (1.0,) * len(layers)
    return tuple(max(layer.weight_size, SMALLEST) for layer in layers)
