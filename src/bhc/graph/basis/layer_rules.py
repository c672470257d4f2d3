"""How coordinates go through layers, and through steps that move numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from bhc.graph.basis.coordinates import Marked, Search, mixed
from bhc.graph.graph import Step, output_shape
from bhc.layers import Shape, weighted_kind
from bhc.layers.aten import AtenCall, Own, Read

INDICES = ("index", "indices")  # numbers of a step's own that are moved nowhere


@dataclass(frozen=True)
class Visit:
    """A step with what it reads."""

    search: Search
    step: Step
    values: Sequence[Marked]
    shared: frozenset[int]  # parameters that other steps have too

    @property
    def module(self) -> Any:
        return self.step.module

    @property
    def shape(self) -> Shape:
        """Of what the step gives."""
        return output_shape(self.module, *[value.shape for value in self.values])

    def fixed(self) -> Marked:
        return self.search.fixed(self.shape)

    def operands(self, *arguments: str) -> list[Marked] | None:
        """Tensors among the arguments of a call, by the operator's names; None where one of them is no tensor."""
        return self.tensors([self.module.argument(argument) for argument in arguments])

    def tensors(self, arguments: Sequence[Any]) -> list[Marked] | None:
        found = [self._operand(argument) for argument in arguments]
        given = [value for value in found if value is not None]
        return given if len(given) == len(found) else None

    def _operand(self, argument: Any) -> Marked | None:
        match argument:
            case Read():
                return self.values[argument.place]
            case Own():
                return self.constant(argument.name)
        return None

    def constant(self, name: str) -> Marked:
        """A tensor of the step's own."""
        numbers = getattr(self.module, name)
        if id(numbers) in self.shared or not numbers.is_floating_point():
            return self.search.fixed(numbers.shape)
        coordinates = self.search.write(self.step.name, ((name, 0),), numbers.shape, is_constant=True)
        return Marked(coordinates, torch.zeros_like(coordinates), constant=True)

    def written(self, line: Tensor, axis: int) -> Marked:
        """New coordinates along an axis of what the step gives, which is full of new vectors."""
        shape = self.shape
        axis %= len(shape)
        places = [1 if place == axis else size for place, size in enumerate(shape)]
        marks = mixed(torch.arange(prod(places)) + mixed(line[0])).reshape(places)
        along = [-1 if place == axis else 1 for place in range(len(shape))]
        return Marked(line.reshape(along).expand(shape), marks.expand(shape))


Rule = Callable[[Visit], Marked | None]  # None: all that is read stays as it is


def written(visit: Visit) -> Marked | None:
    """What a layer reads stays; what it writes are new coordinates."""
    visit.search.stay(*visit.values)
    return _outputs(visit)


def linear(visit: Visit) -> Marked | None:
    visit.search.read(visit.step.name, visit.step.reads[0], visit.values[0])
    return _outputs(visit)


def _outputs(visit: Visit) -> Marked | None:
    module, axis = visit.module, weighted_kind(visit.module).out_axis
    if getattr(module, "groups", 1) > 1:
        return None
    tensors = (("weight", 0),) if module.bias is None else (("weight", 0), ("bias", 0))
    line = visit.search.write(visit.step.name, tensors, (len(module.weight),), axis=axis)
    return visit.written(line, axis)


def moved(visit: Visit) -> Marked:
    """Coordinates and marks are moved by the operator itself."""
    module: AtenCall = visit.module
    own = {name: visit.constant(name) for name, argument in module.owned() if argument not in INDICES}

    def move(part: str) -> Tensor:
        twin = module.with_arguments()
        for name, value in own.items():
            twin._parameters.pop(name, None)
            twin._buffers[name] = getattr(value, part)
        return twin(*[getattr(value, part) for value in visit.values])

    return Marked.of(visit.values, move("coordinates"), move("vectors"), unchanged=True)


def rearranged(visit: Visit) -> Marked:
    """The same for modules without numbers of their own."""
    coordinates = visit.module(*[value.coordinates for value in visit.values])
    vectors = visit.module(*[value.vectors for value in visit.values])
    return Marked.of(visit.values, coordinates, vectors, unchanged=True)


def repeated(visit: Visit) -> Marked | None:
    axis, times = visit.module.argument("dim"), visit.module.argument("repeats")
    if not isinstance(axis, int) or not isinstance(times, int):
        return None
    return visit.values[0].moved(lambda part: part.repeat_interleave(times, axis))
