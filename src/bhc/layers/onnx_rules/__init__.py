"""Calls of torch's operators as ONNX nodes: a table of rules, one small function for each operator.

A rule takes a ``NodeCall`` and returns the name of the value that is the call's result. What it cannot say raises
``NoForm``, and torch's exporter writes the network. The modules here are imported for what they add to the table.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bhc.layers.arguments import Shape
from bhc.layers.aten import AtenCall, Own, Read, SizeOf, flat, traced
from bhc.layers.kind import NoForm
from bhc.layers.protocols import ELEMENTS, OnnxWriter, wide

BEYOND = np.iinfo(np.int64).max  # every size

Rule = Callable[["NodeCall"], str]
RULES: dict[str, Rule] = {}  # by the full names of operators


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Make a function the rule of some operators, each named with its overload where that is not the default one."""

    def register(function: Rule) -> Rule:
        for name in operators:
            RULES[f"aten.{name}" if "." in name else f"aten.{name}.default"] = function
        return function

    return register


def write_call(module: AtenCall, name: str, writer: OnnxWriter) -> None:
    """Nodes that do what a call does; NoForm where there is no rule."""
    if module.target not in RULES:
        raise NoForm(f"step {name!r} calls {module.target}")
    call = NodeCall(module, name, writer)
    other = [dtype for dtype in (call.result.dtype, *(value.dtype for value in writer.reads)) if dtype not in ELEMENTS]
    if other:
        raise call.no_form(f"computes with {other[0]}")
    writer.value = RULES[module.target](call)


class CallArguments:
    """The arguments of a call, by the operator's own names, or as they stand in a list."""

    def __init__(self, module: AtenCall, name: str, writer: OnnxWriter) -> None:
        self.module, self.name, self.writer = module, name, writer

    def argument(self, which: Any) -> Any:
        return self.module.argument(which) if isinstance(which, str) else which

    def plain(self, name: str) -> Any:
        """An argument that is plain data; NoForm where it is a value or depends on sizes."""
        argument = self.argument(name)
        if any(isinstance(part, Read | Own | SizeOf) for part in flat([argument])):
            raise self.no_form(f"its {name} is not fixed")
        return argument

    def own(self, which: Any) -> Tensor | None:
        """The numbers of an argument that is a tensor of the step's own."""
        argument = self.argument(which)
        return getattr(self.module, argument.name).detach() if isinstance(argument, Own) else None

    def like(self, which: Any) -> Tensor:
        """An argument without its data: for shape and dtype."""
        match self.argument(which):
            case Read(place):
                value = self.writer.reads[place]
                return torch.empty(value.shape, dtype=value.dtype, device="meta")
            case Own(name):
                return torch.empty_like(getattr(self.module, name), device="meta")
            case SizeOf():
                return torch.empty((), dtype=torch.int64, device="meta")
            case number:
                return torch.tensor(number, device="meta")

    def shape(self, which: Any) -> Shape:
        return tuple(self.like(which).shape)

    def axis(self, which: Any, dim: str = "dim") -> int:
        """The axis that an argument names, counted from the first."""
        return self.plain(dim) % max(len(self.shape(which)), 1)

    def size(self, which: Any, axis: int) -> int | SizeOf:
        """Of a value along an axis: a number where it is fixed."""
        argument, shape = self.argument(which), self.shape(which)
        if isinstance(argument, Read) and self.writer.varies(argument.place, axis % len(shape)):
            return SizeOf(((argument.place, axis % len(shape)),))
        return shape[axis]

    def fixed_size(self, which: Any, axis: int) -> int:
        """NoForm where it is not fixed."""
        size = self.size(which, axis)
        if isinstance(size, SizeOf):
            raise self.no_form(f"the size of axis {axis} is not fixed")
        return size

    def no_form(self, why: str) -> NoForm:
        return NoForm(f"step {self.name!r} calls {self.module.target}, and {why}")


class NodeCall(CallArguments):
    """A call that is being written.

    Values go by their names in the model. Among the inputs of a node, a number stands for a constant of the dtype that
    is computed with, a list for a vector of whole numbers, of which some may be sizes that are found when the model
    runs, and None for an input that is left out.
    """

    def __init__(self, module: AtenCall, name: str, writer: OnnxWriter) -> None:
        super().__init__(module, name, writer)
        self._made = 0

    @cached_property
    def result(self) -> Tensor:
        """What the call gives, without its data: for shape and dtype."""
        reads = self.writer.reads
        return traced(self.module, [value.shape for value in reads], [value.dtype for value in reads])

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype that is computed with: that of the result, or one that runtimes compute with."""
        return wide(self.result.dtype)

    def value(self, which: Any, dtype: torch.dtype | None = None) -> str:
        """An argument as it is, or cast."""
        argument = self.argument(which)
        match argument:
            case Read(place):
                value = self.writer.reads[place]
                return self.cast(value.name, value.dtype, dtype or value.dtype)
            case Own(name):
                return self._own_value(name, dtype)
            case SizeOf():
                return self.cast(self.node("Squeeze", [argument], [0]), torch.int64, dtype or torch.int64)
            case bool() | int() | float():
                return self.scalar(argument, dtype or self.dtype)
        raise self.no_form(f"has {argument!r} in the place of a value")

    def operand(self, which: Any) -> str:
        """An argument in the dtype that is computed with."""
        return self.value(which, self.dtype)

    def finished(self, name: str) -> str:
        """What was computed, in the dtype of the result."""
        return self.cast(name, self.dtype, self.result.dtype)

    def cast(self, name: str, given: torch.dtype, wanted: torch.dtype) -> str:
        return name if given == wanted else self.node("Cast", name, to=ELEMENTS[wanted])

    def scalar(self, number: float, dtype: torch.dtype) -> str:
        return self.writer.shared(torch.tensor(number, dtype=dtype).numpy())

    def node(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        return self.nodes(kind, 1, *inputs, **attributes)[0]

    def nodes(self, kind: str, count: int, *inputs: Any, **attributes: Any) -> list[str]:
        """A node with so many results."""
        given = list(inputs)
        while given and given[-1] is None:  # runtimes may not look whether it is there
            given.pop()
        named = [self._input(each) for each in given]
        outputs = [f"{self.name}.{self._made + place}" for place in range(count)]
        self._made += count
        self.writer.add(kind, named, outputs, **attributes)
        return outputs

    def _input(self, given: Any) -> str:
        match given:
            case None:
                return ""
            case str():
                return given
            case np.ndarray():
                return self.writer.shared(given)
            case list() | tuple():
                return self._vector(given)
        return self.scalar(given, self.dtype)

    def _own_value(self, name: str, dtype: torch.dtype | None) -> str:
        own = getattr(self.module, name)
        numbers = own.detach().to(dtype or own.dtype)
        if numbers.dtype not in ELEMENTS:
            raise self.no_form(f"computes with {numbers.dtype}")
        return self.writer.shared(numbers.numpy(), owner=own)

    def _vector(self, sizes: Sequence[int | SizeOf]) -> str:
        if not any(isinstance(size, SizeOf) for size in sizes):
            return self.writer.shared(np.array(sizes, dtype=np.int64))
        parts = [self._found(size) if isinstance(size, SizeOf) else self._vector([size]) for size in sizes]
        return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=0)

    def _found(self, size: SizeOf) -> str:
        """A vector of one number that is found when the model runs."""
        reads = self.writer.reads
        found = [self.writer.size(reads[place].name, axis) for place, axis in size.axes]
        product = reduce(lambda left, right: self.node("Mul", left, right), found)
        product = product if size.times == 1 else self.node("Mul", product, [size.times])
        return product if size.over == 1 else self.node("Div", product, [size.over])


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
