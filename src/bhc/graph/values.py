"""What is known of the nodes of a captured program: numbers that are fixed, and values that steps give."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from bhc.layers import Shape
from bhc.layers.aten import operator


@dataclass(frozen=True)
class Constant:
    """A tensor that does not depend on what the network is given."""

    numbers: Tensor
    name: str | None = None  # of the parameter that it is; None for what was made of several, or never learned
    learned: bool = False
    sources: frozenset[str] = frozenset()  # the parameters that it was made of


@dataclass(frozen=True)
class Value:
    """What a step gives, or the input."""

    name: str


@dataclass(frozen=True)
class Several:
    """What an operator gives that has more results than one."""

    node: fx.Node


Known = Constant | Value | Several | tuple[Constant, ...]


@dataclass
class Call:
    """A call as the kinds of layers see it (``layers.asked.Captured``)."""

    target: str
    arguments: dict[str, Any]  # by the operator's names: values, constants, plain data
    arriving: tuple[Shape, ...]
    leaving: Shape
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def plain(self, name: str) -> Any:
        return self.arguments.get(name, self.defaults.get(name))

    def constant(self, name: str) -> Tensor | None:
        argument = self.arguments.get(name)
        if isinstance(argument, list):
            argument = next((part for part in argument if isinstance(part, Constant)), None)
        return argument.numbers if isinstance(argument, Constant) else None

    def is_value(self, name: str) -> bool:
        return isinstance(self.arguments.get(name), Value)


def flat(parts: Any) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, list | tuple):
            yield from flat(part)
        else:
            yield part


def numbers_of(argument: Any) -> Any:
    if isinstance(argument, Constant):
        return argument.numbers
    if isinstance(argument, list | tuple):
        return [numbers_of(part) for part in argument]
    return argument


def schema_of(target: str) -> Any:
    """The arguments of one of torch's operators, by name and in order."""
    return operator(target)._schema  # type: ignore[attr-defined]


def argument_names(target: str) -> list[str]:
    return [argument.name for argument in schema_of(target).arguments]


def defaults_of(target: str) -> dict[str, Any]:
    return {a.name: a.default_value for a in schema_of(target).arguments if a.has_default_value()}
