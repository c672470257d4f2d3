"""How large the steps of weights' means are in a given network.

A rate is that of a network of few layers with weights of the usual size. An optimiser such as Adam moves every weight
by about its rate, however small the weight is, and what a step does to one layer goes through all that follow.
"""

from torch import nn

from bhc.hypernet import SHALLOW, ConditionalNetwork

USUAL_SIZE = 0.03  # root mean square of a layer's weights


def slowdown(network: ConditionalNetwork) -> float:
    """How much smaller steps are than in a network of few layers.

    A residual network of 20 layers, its batch norms folded, forgot all it knew within ten steps at the rate that suits
    four.
    """
    return max(1.0, len(network.layers) / SHALLOW) ** 1.5


def of_weights(network: ConditionalNetwork) -> dict[nn.Parameter, float]:
    """The factor of each parameter that generates a layer's weights: for depth, and for weights that are small.

    Weight decay and folded batch norms leave some layers of deep networks with weights of a tenth of the usual size; at
    one rate for all they would be overwritten before others have moved. Scales and biases need no factor, and want
    none: a unit goes when its scale has gone the whole way from one to nothing.
    """
    return {
        parameter: min(1.0, layer.weight_size / USUAL_SIZE) / slowdown(network)
        for layer, head in zip(network.layers, network.hypernet.weight_heads, strict=True)
        for parameter in head.parameters()
    }
