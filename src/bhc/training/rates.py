"""How large the steps of means are in a given network.

A rate is that of a network of few layers, with weights and numbers of inputs as LeNets have them. An optimiser such as
Adam moves every weight by about its rate, however small the weight is and however many move with it, and what a step
does to one layer goes through all that follow.
"""

from math import sqrt

from torch import nn

from bhc.graph import Layer
from bhc.hypernet import FEW_LAYERS, ConditionalNetwork

USUAL_SIZE = 0.03  # root mean square of a layer's weights
USUAL_INPUTS = 800  # weights that one output sums over
SMALLEST_FACTOR = 0.01  # a layer of zeros must learn too
RISING = 100  # steps


def slowdown(network: ConditionalNetwork) -> float:
    """How much smaller steps of weights are than in a network of few layers.

    At the rate that suits four layers a residual network of 20, its batch norms folded, forgets all it knew within ten
    steps.
    """
    return max(1.0, len(network.layers) / FEW_LAYERS) ** 1.5


def rising_steps(network: ConditionalNetwork) -> int:
    """Over how many steps rates rise: Adam's first steps are all of full length, wherever they point."""
    return RISING if len(network.layers) > FEW_LAYERS else 0


def of_weights(network: ConditionalNetwork) -> dict[nn.Parameter, float]:
    """The factor of each parameter that generates a layer's weights."""
    factors = [_of_layer(layer) / slowdown(network) for layer in network.layers]
    return {
        parameter: factor
        for factor, head in zip(factors, network.hypernet.weight_heads, strict=True)
        for parameter in head.parameters()
    }


def of_vectors(network: ConditionalNetwork) -> float:
    """The factor of everything else in learning: a unit goes when its scale has gone the whole way from one to nothing,
    so scales slow down less."""
    return slowdown(network) ** -0.5


def _of_layer(layer: Layer) -> float:
    """For weights that are small, and for many of them under one output.

    Weight decay and folded batch norms leave some layers of deep networks with weights of a tenth of the usual size; at
    one rate for all they would be overwritten before others have moved. When n weights move alike, their sum moves by n
    steps, beside a sum of n random signs that is sqrt(n) in size.
    """
    size = max(SMALLEST_FACTOR, layer.weight_size / USUAL_SIZE)
    inputs = layer.num_inputs * layer.kernel_area / USUAL_INPUTS
    return min(1.0, size) / sqrt(max(1.0, inputs))
