"""Which layers read the network's input as it is given, and where each of its features arrives there."""

from math import prod

import torch
from torch import Tensor

from bhc.errors import BhcError
from bhc.graph.graph import INPUT, Graph
from bhc.graph.layers import Layer
from bhc.layers import Shape, kind_of


def find_features(
    graph: Graph, layers: tuple[Layer, ...], input_shape: Shape, features: Shape
) -> dict[str, Tensor]:  # (channels that arrive,) by layer: the feature that each carries
    """The layers that read features of a shape: every value of the input, or its channels; of texts, words."""
    if len(graph.given) > 1:
        raise BhcError(
            f"the network takes {len(graph.given)} inputs: {', '.join(graph.given)}",
            hint="contexts of features and words need a network that takes one",
        )
    by_name = {layer.name: layer for layer in layers}
    given, places = {INPUT}, {}
    for step in graph.steps:
        if not given & set(step.reads):
            continue
        if step.name in by_name:
            places[step.name] = _arriving(by_name[step.name], input_shape, features)
        elif kind_of(step.module).keeps_inputs_apart:
            given.add(step.name)
        else:
            raise BhcError(
                f"layer {step.name!r} ({type(step.module).__name__}) reads the input before any layer with weights, so"
                " no feature can be left out there",
                hint="wrap a network that begins with a linear layer, a convolution or an embedding",
            )
    return places


def _arriving(layer: Layer, input_shape: Shape, features: Shape) -> Tensor:
    words = layer.kind.words(layer.module)
    if words is not None:
        count, rows = words
        if features != (count,):
            raise BhcError(
                f"features of shape {features}, and layer {layer.name!r} reads words of {count:,}",
                hint=f"give VocabularySubsets({count})",
            )
        return rows.cpu()
    if features not in (input_shape, input_shape[:1]):
        raise BhcError(
            f"features of shape {features}, and the network takes inputs of shape {input_shape}",
            hint=f"give {input_shape}, every value, or {input_shape[:1]}, the channels",
        )
    if layer.has_kernel:
        if layer.groups > 1 or (features != input_shape[:1] and prod(input_shape[1:]) > 1):
            raise BhcError(
                f"layer {layer.name!r} is a convolution: it reads whole channels"
                + (", in groups" if layer.groups > 1 else ""),
                hint=f"give FeatureSubsets({input_shape[:1]}), or wrap a network that begins with a linear layer",
            )
        return torch.arange(input_shape[0])
    numbers = torch.arange(prod(features)).reshape(features)
    return numbers.reshape(*features, *[1] * (len(input_shape) - len(features))).expand(input_shape).flatten()
