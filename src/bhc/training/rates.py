"""How large the steps of means are in a given network.

A rate is that of a network of few layers with weights of the usual size. An optimiser such as Adam moves every weight
by about its rate, however small the weight is, and what a step does to one layer goes through all that follow.
"""

from torch import nn

from bhc.hypernet import SHALLOW, ConditionalNetwork

USUAL_SIZE = 0.03  # root mean square of a layer's weights


def slowdown(network: ConditionalNetwork) -> float:
    """How much smaller the steps of means are than in a network of few layers.

    A residual network of 20 layers, its batch norms folded, forgot all it knew within ten steps at the rate that suits
    four.
    """
    return max(1.0, len(network.layers) / SHALLOW) ** 1.5


def relative_sizes(network: ConditionalNetwork) -> dict[nn.Parameter, float]:
    """For each parameter that generates a layer's weights, how small those are: 1 at the usual size and over it.

    Weight decay and folded batch norms leave some layers of deep networks with weights of a tenth of that; at one rate
    for all they would be overwritten before others have moved.
    """
    return {
        parameter: min(1.0, layer.weight_size / USUAL_SIZE)
        for layer, head in zip(network.layers, network.hypernet.weight_heads, strict=True)
        for parameter in head.parameters()
    }
