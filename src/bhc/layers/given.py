"""One of the inputs of a network that takes several, or one whose sizes are not all fixed."""

import keyword
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bhc.layers.arguments import Argument, brief, unknown
from bhc.layers.asked import FileReader, FileWriter, OnnxWriter, UnitSearch
from bhc.layers.aten import DTYPES
from bhc.layers.kind import Example, LayerKind, spread
from bhc.layers.modules import own_copy
from bhc.layers.shapes import EXAMPLES, Kept, Shape, bounded, does_not_take, expect

MOST_INPUTS, MOST_AXES, LONGEST_NAME = 64, 6, 100
CHANNELS = 1  # their axis in an input


class Given(nn.Module):
    """The input at ``place``, (N, *shape): floats as they come, whole numbers in the dtype that they were captured in.

    ``called`` is its name for those who give it, as the network's forward pass has it; a step's may differ. Along the
    ``dynamic`` axes, of which 0 would be the batch, a batch may have another size than ``shape`` says.
    """

    def __init__(
        self, called: str, place: int, shape: Shape, dtype: str = "float32", dynamic: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.called, self.place, self.shape = called, place, tuple(shape)
        self.dtype, self.dynamic = dtype, tuple(dynamic)

    def forward(self, inputs: Tensor | Sequence[Tensor]) -> Tensor:
        x = inputs if isinstance(inputs, Tensor) else inputs[self.place]
        wanted: torch.dtype = getattr(torch, self.dtype)
        return x if wanted.is_floating_point and x.is_floating_point() else x.to(wanted)

    def extra_repr(self) -> str:
        free = f", dynamic={self.dynamic}" if self.dynamic else ""
        return f"{self.called}, {self.place}, {self.shape}, {self.dtype}{free}"


class GivenKind(LayerKind):
    """``Given``: reads the network's input, the only step that may where there are several."""

    name, module, number, keeps_inputs_apart = "given", Given, 41, True
    arguments: ClassVar[Mapping[str, Argument]] = dict.fromkeys(
        ("called", "place", "shape", "dtype", "dynamic"), Argument()
    )

    def output_shape(self, module: Given, *arriving: Shape) -> Shape:
        (shape,) = arriving
        expect(shape[1:] in ((), module.shape), does_not_take(module, shape))
        return (EXAMPLES, *module.shape)

    def follow(self, module: Given, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        """A unit a channel, so that a layer may read some; none of them goes."""
        if len(leaving) <= CHANNELS:
            return search.whole(leaving)
        return spread(search.new(leaving[CHANNELS]), leaving, CHANNELS)

    def narrowed(self, module: Given, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        return own_copy(module)

    def check(self, described: Mapping[str, Any]) -> None:
        called, place, shape, dtype, dynamic = (described[name] for name in self.arguments)
        # It becomes a parameter of a function that torch writes.
        word = isinstance(called, str) and called.isascii() and called.isidentifier() and len(called) <= LONGEST_NAME
        expect(word and not keyword.iskeyword(called) and called != "self", f"an input called {brief(called)}")
        expect(type(place) is int and 0 <= place < MOST_INPUTS, f"input {place!r}")
        expect(isinstance(shape, tuple) and len(shape) < MOST_AXES, f"an input of shape {shape!r}")
        bounded(*shape)
        expect(isinstance(dtype, str) and dtype in DTYPES, f"an input of dtype {dtype!r}")
        axes = list(range(1, 1 + len(shape)))
        rises = isinstance(dynamic, tuple) and list(dynamic) == sorted(set(dynamic))
        expect(rises and all(type(axis) is int and axis in axes for axis in dynamic), f"dynamic axes {dynamic!r}")

    def write(self, module: Given, name: str, arriving: Shape, file: FileWriter) -> list[Any]:
        return [self.tag, module.called, module.place, list(module.shape), module.dtype, list(module.dynamic)]

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        match entry:
            case [_, called, place, list(shape), dtype, list(dynamic)]:
                values = (called, place, tuple(shape), dtype, tuple(dynamic))
                file.add(self.name, self.build(dict(zip(self.arguments, values, strict=True))))
            case _:
                raise unknown(entry)

    def to_onnx(self, module: Given, name: str, writer: OnnxWriter) -> None:
        writer.value = module.called  # an input of the model

    def c_obstacle(self, module: Given, arriving: Shape) -> str | None:
        return "is one of several inputs, or has a size that is not fixed, and a header's function takes one array"

    def examples(self) -> Sequence[Example]:
        shape = (3, 4)
        return [(Given("x", 0, shape, dynamic=axes), ((EXAMPLES, *shape),)) for axes in ((), (2,))]


KINDS = (GivenKind,)
