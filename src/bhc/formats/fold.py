"""Input normalisation folded into the first layer, so that an exported network has a step less."""

from dataclasses import replace
from typing import Any

from torch import nn

from bhc.formats.quantised import Codes, QuantisedNetwork, with_numbers
from bhc.graph import INPUT, Graph, Step
from bhc.layers import Normalise, Select, conv_padding, is_product


def fold_normalisation(network: QuantisedNetwork) -> QuantisedNetwork:
    """``W (x - mean) / std + b = (W / std) x + (b - W mean / std)``: the same codes with another step.

    Left as it is where that does not hold: a padded convolution of inputs with a mean pads with zeros after
    the mean was taken off.
    """
    chain = _to_first_layer(network.graph)
    if chain is None:
        return network
    first, *_, layer = chain
    if first.module.mean.dim():  # type: ignore[operator]
        return network  # one number a channel; a step of codes is one for all
    mean, std = float(first.module.mean), float(first.module.std)  # type: ignore[arg-type]
    module: Any = layer.module
    if module.weight.dim() > 2 and any(conv_padding(module)) and mean != 0:
        return network
    numbers = {f"{layer.name}.weight": module.weight / std}
    if mean != 0:
        shift = mean * numbers[f"{layer.name}.weight"].flatten(1).sum(1)
        numbers[f"{layer.name}.bias"] = -shift if module.bias is None else module.bias - shift
    graph = _without_first(with_numbers(network.graph, numbers))
    weights = {key: Codes(c.codes, c.step / std) if key == layer.name else c for key, c in network.weights.items()}
    biases = {key: codes for key, codes in network.biases.items() if key != layer.name or mean == 0}
    return replace(network, graph=graph, weights=weights, biases=biases)


def _to_first_layer(graph: Graph) -> list[Step] | None:
    """The steps from the normalisation to the layer that alone reads it, where there is such a way."""
    way, name = [], INPUT
    steps = {step.name: step for step in graph.steps}
    while len(graph.readers[name]) == 1 and graph.readers[name][0] in steps:
        name = graph.readers[name][0]
        way.append(steps[name])
        if is_product(way[-1].module):
            break
    if len(way) < 2 or not isinstance(way[0].module, Normalise) or not is_product(way[-1].module):
        return None
    return way if all(isinstance(step.module, nn.Flatten | Select) for step in way[1:-1]) else None


def _without_first(graph: Graph) -> Graph:
    first, *rest = graph.steps
    instead = {first.name: INPUT}
    return Graph(Step(step.name, step.module, tuple(instead.get(name, name) for name in step.reads)) for step in rest)
