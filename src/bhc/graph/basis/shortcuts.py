"""Norms that stand on a stream, as BERT has them: their gain lies between a norm and the shortcut around what reads it.

A layer of its own on the shortcut takes it in, ``x + f(x) = D n + f(n)`` with ``x = D n``. Each norm then has a stream
of its own, which may be turned: the layer leads from the axes of one to those of the next.
"""

from collections.abc import Mapping

import torch
from torch import nn

from bhc.graph.basis.following import follow
from bhc.graph.basis.norm_folding import unused_name
from bhc.graph.graph import INPUT, Graph, Step
from bhc.layers import Shape
from bhc.layers.kind import fixed


def gains_on_streams(graph: Graph, input_shape: Shape) -> dict[str, str]:
    """The steps with gains that linear layers read, and others too; a name for the layer on the shortcut."""
    steps = {step.name: step.module for step in graph.steps}
    found = {}
    for gain in follow(graph, input_shape).gains:
        readers = graph.readers[gain.step]
        linear = [type(steps.get(name)) is nn.Linear for name in readers]
        if any(linear) and not all(linear) and INPUT not in readers:
            found[gain.step] = unused_name(graph, f"{gain.step}_shortcut")
    return found


def with_layers_on_shortcuts(graph: Graph, instead: Mapping[str, str]) -> Graph:
    """A layer that changes nothing, by the name given, between each of these steps and all that read it but are no
    linear layers."""
    made: list[Step] = []
    for step in graph.steps:
        made.append(step if type(step.module) is nn.Linear else step.rewired(instead))
        if step.name in instead:
            made.append(Step(instead[step.name], _identity(_width(graph, step)), (step.name,)))
    return Graph(made)


def _width(graph: Graph, step: Step) -> int:
    steps = {each.name: each.module for each in graph.steps}
    layers = (steps[name] for name in graph.readers[step.name] if name in steps)
    return next(layer.in_features for layer in layers if isinstance(layer, nn.Linear))


def _identity(width: int) -> nn.Linear:
    layer = nn.Linear(width, width, bias=False, device="meta")
    layer.weight = fixed(torch.eye(width))
    return layer
