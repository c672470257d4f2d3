"""Input normalisation folded into the first layer, so that an exported network has a step less."""

from collections import OrderedDict
from dataclasses import replace

from torch import nn

from bhc.formats.quantised import Codes, QuantisedNetwork, with_numbers
from bhc.graph import KINDS, Select, conv_padding


def fold_normalisation(network: QuantisedNetwork) -> QuantisedNetwork:
    """``W (x - mean) / std + b = (W / std) x + (b - W mean / std)``: the same codes with another step.

    Left as it is where that does not hold: a padded convolution of inputs with a mean pads with zeros after
    the mean was taken off.
    """
    first = network.chain[0]
    if KINDS[type(first)].name != "normalise":
        return network
    mean, std = float(first.mean), float(first.std)  # type: ignore[arg-type]
    name, layer = network.layers[0].name, network.layers[0].module
    between = list(network.chain)[1 : list(dict(network.chain.named_children())).index(name)]
    padded = isinstance(layer, nn.Conv2d) and any(conv_padding(layer))
    if not all(isinstance(step, nn.Flatten | Select) for step in between) or (padded and mean != 0):
        return network
    numbers = {f"{name}.weight": layer.weight / std}
    if mean != 0:
        shift = mean * numbers[f"{name}.weight"].flatten(1).sum(1)
        numbers[f"{name}.bias"] = -shift if layer.bias is None else layer.bias - shift
    chain = nn.Sequential(OrderedDict(list(with_numbers(network.chain, numbers).named_children())[1:]))
    weights = {key: Codes(c.codes, c.step / std) if key == name else c for key, c in network.weights.items()}
    biases = {key: codes for key, codes in network.biases.items() if key != name or mean == 0}
    return replace(network, chain=chain, weights=weights, biases=biases)
