"""Several conditions at once."""

from collections.abc import Mapping
from typing import Any

from torch import Generator, Tensor

from bhc.contexts.classes import ClassSubsets
from bhc.contexts.context import ContextBatch
from bhc.contexts.likelihoods import Likelihood
from bhc.contexts.space import ContextSpace
from bhc.errors import BhcError


class Joint(ContextSpace):
    """``Joint(ClassSubsets(10), Budgets())``: each part is validated, sampled and encoded by its own space.

    With classes and an input domain together, a training domain is the mean of images of the drawn classes.
    """

    spaces: tuple[ContextSpace, ...]

    def __init__(self, *given: ContextSpace) -> None:
        nested = [space.spaces if isinstance(space, Joint) else (space,) for space in given]
        spaces = tuple(space for group in nested for space in group)
        if len(spaces) < 2:
            raise BhcError("Joint takes two or more context spaces", hint="use the single space as it is")
        if any(not space.conditions for space in spaces):
            raise BhcError(
                "a single context cannot be joined with others: there is nothing to ask", hint="leave it out"
            )
        names = [name for space in spaces for name in space.conditions]
        if len(set(names)) < len(names):
            raise BhcError(f"Joint takes one space of each kind, given {', '.join(names)}")
        self.spaces = spaces

    @property
    def conditions(self) -> tuple[str, ...]:
        return tuple(name for space in self.spaces for name in space.conditions)

    def check_network(self, num_classes: int) -> None:
        for space in self.spaces:
            space.check_network(num_classes)

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for space in self.spaces for name, value in space.resolve_parts(request).items()}

    def refine(self, batch: ContextBatch, *, generator: Generator) -> ContextBatch:
        # Classes last: they settle which examples are drawn.
        for space in sorted(self.spaces, key=lambda space: isinstance(space, ClassSubsets)):
            batch = space.refine(batch, generator=generator)
        return batch

    def observe(self, batch: ContextBatch, x: Tensor) -> ContextBatch:
        for space in self.spaces:
            batch = space.observe(batch, x)
        return batch

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        return tuple(part for space in self.spaces for part in space.encode(batch))

    def likelihoods(self) -> tuple[Likelihood, ...]:
        return tuple(part for space in self.spaces for part in space.likelihoods())

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "joint", "spaces": [space.to_dict() for space in self.spaces]}
