"""The layers of a chain that hold weights, and how the units of one feed the next."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from bhc.errors import BhcError


@dataclass(frozen=True)
class Layer:
    """One weighted layer: its place in the chain, its sizes and what it costs."""

    name: str
    step: int  # position in the chain
    module: nn.Linear | nn.Conv2d
    positions: int  # inputs of this layer that one unit of the layer before feeds: 16 after a 4 x 4 map
    output_area: int  # places a filter is applied at; 1 for a linear layer

    @property
    def is_convolution(self) -> bool:
        return isinstance(self.module, nn.Conv2d)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(O, I) or (O, I, height, width)."""
        return tuple(self.module.weight.shape)

    @property
    def num_inputs(self) -> int:
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
    def num_flops(self) -> int:
        """Two operations a weight and place it is applied at."""
        return 2 * self.num_weights * self.output_area

    @property
    def width(self) -> int:
        """The layer's number in an architecture: filters of a convolution, inputs of a linear layer."""
        return self.num_outputs if self.is_convolution else self.num_inputs


def find_layers(chain: nn.Sequential, example_input: Tensor) -> tuple[Layer, ...]:
    """Walk the chain once and note every weighted layer with the shapes it meets."""
    layers: list[Layer] = []
    value = example_input
    units = prod(example_input.shape[1:])
    with torch.no_grad():
        for step, (name, module) in enumerate(chain.named_children()):
            width = value.shape[1]
            value = module(value)
            if isinstance(module, nn.Linear | nn.Conv2d):
                expected = 2 if isinstance(module, nn.Linear) else 4
                if value.dim() != expected:
                    raise BhcError(
                        f"layer {name!r} works on {value.dim()}-dimensional batches, {expected} are supported",
                        hint="flatten before a linear layer, and keep the batch dimension",
                    )
                positions = 1 if not layers else width // units
                layers.append(Layer(name, step, module, positions, prod(value.shape[2:])))
                units = module.weight.shape[0]
    if not layers:
        raise BhcError("the network has no linear or convolution layer, so there is nothing to compress")
    if layers[-1].is_convolution or value.dim() != 2:
        raise BhcError("the network must end in a linear layer with one output a class")
    return tuple(layers)
