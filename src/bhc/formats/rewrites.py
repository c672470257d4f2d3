"""Networks made ready for a runtime: normalisation folded into the first layer, pools unrolled.

Runtimes copy the input once for every place a filter is applied at; with few filters that copy takes most of the
time. Here each filter appears four times, shifted over the pooling window in a kernel larger by one: a quarter of
the places, some 1.4 times the multiplications, less than half the time.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.formats.quantised import Codes, QuantisedNetwork, with_numbers
from bhc.graph import INPUT, Graph, Step, calls_of_layers
from bhc.layers import Normalise, Select, Shape, conv_padding, has_kind, is_product, kind_of, pair, side_by_side


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
    _, *rest = with_numbers(network.graph, numbers).steps
    graph = Graph(step.rewired({first.name: INPUT}) for step in rest)
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
    if len(calls_of_layers(graph).get(way[-1].name, ())) != 1:  # other calls of the layer read other values
        return None
    return way if all(isinstance(step.module, nn.Flatten | Select) for step in way[1:-1]) else None


POOL = 2
COPIES = POOL * POOL
MOST_FILTERS = 16  # with more, the multiplications weigh more than the copies


class PooledConvolution(nn.Module):
    """``activation(largest of four shifted convolutions)``; kernels (4 O, I, height + 1, width + 1)."""

    def __init__(self, convolution: nn.Conv2d, activation: nn.Module) -> None:
        super().__init__()
        filters, channels, height, width = convolution.weight.shape
        grown = torch.zeros(POOL, POOL, filters, channels, height + POOL - 1, width + POOL - 1)
        for down in range(POOL):
            for across in range(POOL):
                grown[down, across, :, :, down : down + height, across : across + width] = convolution.weight
        self.weight = grown.flatten(0, 2)
        self.bias = None if convolution.bias is None else convolution.bias.repeat(COPIES)
        self.padding = conv_padding(convolution)[:2]
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        copies = F.conv2d(x, self.weight, self.bias, stride=POOL, padding=self.padding)
        return self.activation(copies.unflatten(1, (COPIES, -1)).amax(1))

    def output_shape(self, shape: Shape) -> Shape:
        """Of one example."""
        sizes = zip(shape[1:], self.padding, self.weight.shape[2:], strict=True)
        return (len(self.weight) // COPIES, *((size + 2 * pad - kernel) // POOL + 1 for size, pad, kernel in sizes))


def is_rising(activation: nn.Module) -> bool:
    """Whether it never swaps the order of two values, so that the largest value stays the largest."""
    rises = has_kind(activation) and kind_of(activation).rises
    return rises and getattr(activation, "alpha", 1.0) >= 0  # an ELU can be made to fall


def unrolled(graph: Graph) -> Graph:
    """The same function with every convolution, activation and 2 x 2 maximum that allow it taken together."""
    if not any(isinstance(module, nn.Conv2d) for module in graph.children()):
        return graph
    steps = {step.name: step for step in graph.steps}
    instead: dict[str, str] = {}
    for step in graph.steps:
        following = _only_readers(graph, step.name)
        if isinstance(step.module, nn.Conv2d) and _can_unroll(step.module, [steps[name].module for name in following]):
            activation, pool = following
            pooled = PooledConvolution(step.module, steps[activation].module)
            steps[step.name] = Step(step.name, pooled, step.reads)
            instead[pool] = step.name
            del steps[activation], steps[pool]
    return Graph(step.rewired(instead) for step in steps.values()) if instead else graph


def _only_readers(graph: Graph, name: str) -> list[str]:
    """The two steps after this one, where each is the only one to read the one before."""
    following: list[str] = []
    while len(following) < 2:
        match graph.readers[following[-1] if following else name]:
            case [reader] if reader != INPUT:
                following.append(reader)
            case _:
                return following
    return following


def _can_unroll(convolution: nn.Conv2d, following: Sequence[nn.Module]) -> bool:
    top, left, bottom, right = conv_padding(convolution)
    match following:
        case [activation, nn.MaxPool2d() as pool]:
            return (
                convolution.out_channels <= MOST_FILTERS
                and convolution.groups == 1
                and pair(convolution.stride) == pair(convolution.dilation) == (1, 1)
                and (top, left) == (bottom, right)
                and is_rising(activation)
                and side_by_side(pool)
                and pair(pool.kernel_size) == (POOL, POOL)
            )
    return False
