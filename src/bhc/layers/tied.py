"""A layer's weights used the other way round, as an output layer tied to an embedding uses them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.layers.arguments import Kept, Shape, must_fit
from bhc.layers.kind import Example, LayerKind, spread
from bhc.layers.protocols import OnnxWriter, UnitSearch


class Tied(nn.Module):
    """``y = W^T x`` with the weights (O, I) of another layer: (N, ..., O) -> (N, ..., I)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer: Any = layer

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.layer.weight


class TiedKind(LayerKind):
    """A further call of a layer: what that reads lives and dies with what this gives, and the other way round.

    Its numbers are the layer's, and so are its counts, its beliefs and its place in files.
    """

    name, module, number = "tied", Tied, 43
    axis = -1  # of what it reads, and of what it gives

    def output_shape(self, module: Tied, *arriving: Shape) -> Shape:
        (shape,) = arriving
        outputs, inputs = module.layer.weight.shape
        must_fit(len(shape) > 1 and shape[-1] == outputs, module, shape)
        return (*shape[:-1], inputs)

    def follow(self, module: Tied, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        search.has_ends(search.along(arriving[0], self.axis), written := search.new(leaving[-1]), fed_back=False)
        return spread(written, leaving, self.axis)

    def num_flops(self, module: Tied, arriving: Sequence[Shape], leaving: Shape) -> int:
        return 2 * module.layer.weight.numel() * int(np.prod(leaving[:-1]))

    def narrowed(self, module: Tied, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        raise BhcError("a layer is cut together with its transpose")

    def to_onnx(self, module: Tied, name: str, writer: OnnxWriter) -> None:
        writer.node("MatMul", name, writer.weight(name, module.layer))

    def examples(self) -> Sequence[Example]:
        return []  # it is nothing without the layer


KINDS = (TiedKind,)
