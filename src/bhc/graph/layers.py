"""The layers that hold weights, and which units they read and write."""

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, TypeVar

import torch
from torch import Tensor

from bhc.errors import BhcError
from bhc.graph.graph import Graph
from bhc.graph.shapes import passages
from bhc.graph.units import Units
from bhc.layers import Shape, Weighted, is_weighted, weighted_kind

Count = TypeVar("Count", int, Tensor)


@dataclass(frozen=True)
class Layer:
    """One weighted layer: its sizes, what it costs, and the units at its two ends."""

    name: str
    module: Any
    reads: Tensor  # (channels that arrive,) the unit of each; after a flatten many have the same
    writes: Tensor  # (O,)
    output_area: int  # places its weights are multiplied at: 1 for a linear layer, none for rows that are picked

    @property
    def kind(self) -> Weighted:
        return weighted_kind(self.module)

    @property
    def has_kernel(self) -> bool:
        """Whether its weights slide over places: one scale then covers all of its input."""
        return len(self.weight_shape) > 2

    @property
    def groups(self) -> int:
        return getattr(self.module, "groups", 1)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(O, I) or (O, I of one group, *kernel)."""
        return tuple(self.module.weight.shape)

    @property
    def num_inputs(self) -> int:
        """Of each output: those of its group."""
        return self.weight_shape[1]

    @property
    def num_outputs(self) -> int:
        return self.weight_shape[0]

    @property
    def kernel_area(self) -> int:
        return prod(self.weight_shape[2:])

    @property
    def num_weights(self) -> int:
        return prod(self.weight_shape)

    @property
    def weight_size(self) -> float:
        """The root mean square of its weights."""
        norm = torch.linalg.vector_norm(self.module.weight.detach(), dtype=torch.float64)
        return float(norm) / sqrt(self.num_weights)

    @property
    def num_flops(self) -> int:
        """Two operations a weight and place it is applied at."""
        return 2 * self.num_weights * self.output_area

    @property
    def width(self) -> int:
        """The layer's number in an architecture: filters of a convolution, inputs of a linear layer."""
        return self.kind.width(self.module)

    def kept_weights(self, inputs: Count, outputs: Count) -> Count:
        """How many weights stay where so many of its inputs and outputs do; a group that stays is whole."""
        return outputs * (self.num_inputs if self.groups > 1 else inputs) * self.kernel_area


def find_layers(graph: Graph, input_shape: Shape, units: Units) -> tuple[Layer, ...]:
    """Every weighted layer, in the order they run."""
    layers = []
    for passage in passages(graph, input_shape):
        if is_weighted(passage.module):
            name = passage.name
            reads, writes = torch.tensor(units.reads[name]), torch.tensor(units.writes[name])
            places = passage.num_flops // (2 * passage.module.weight.numel())  # type: ignore[operator]
            layers.append(Layer(name, passage.module, reads, writes, places))
    if not layers:
        raise BhcError(
            "the network has no linear or convolution layer, so there is nothing to compress",
            hint="weights of linear layers, convolutions and embeddings are what is compressed; one that several share"
            " stays whole",
        )
    return tuple(layers)


def check_outputs(graph: Graph, input_shape: Shape, units: Units) -> None:
    """Raise where contexts are to decide which outputs there are, and the network has none that can be cut."""
    if not units.outputs_are_free:
        *_, last = passages(graph, input_shape)
        raise BhcError(
            f"the network gives values of shape {last.leaving[1:]}, and not one number a class",
            hint="it must end in a layer, most often a linear one, with one output of its own for each class",
        )
