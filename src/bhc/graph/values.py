"""What is known of the nodes of a captured program: fixed numbers, values that steps give, sizes that may change."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from bhc.errors import BhcError
from bhc.layers import Shape
from bhc.layers.aten import SizeOf, operator


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


def concrete(size: Any) -> int:
    """A size for the batch that was captured."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    if size.node.hint is None:
        raise BhcError(
            "the size of a value depends on the numbers in another",
            hint="sizes may depend on the batch alone: no x[mask], nonzero or unique",
        )
    return int(size.node.hint)


class Sizes:
    """Finds what a symbolic size is in terms of the values that a step reads."""

    def __init__(self, symbols: Mapping[Any, tuple[int, int]]) -> None:
        self.symbols = symbols  # with the place of the input and the axis that each stands for

    def of(
        self, size: torch.SymInt, reads: list[Any], symbolic: Mapping[str, Sequence[Any]], inputs: Sequence[Any]
    ) -> int | SizeOf:
        """Of a value that is among ``reads``; where there is none, of one of ``inputs``, which then is."""
        expression = sympy.sympify(size.node.expr)
        if expression.is_number:
            return int(expression)
        for place, read in enumerate(reads):
            for axis, other in enumerate(symbolic[read.name]):
                if isinstance(other, torch.SymInt):
                    ratio = sympy.nsimplify(expression / other.node.expr)
                    if ratio.is_Rational:
                        return SizeOf(((place, axis),), int(ratio.p), int(ratio.q))
        return self._of_inputs(expression, reads, inputs)

    def _of_inputs(self, expression: Any, reads: list[Any], inputs: Sequence[Any]) -> SizeOf:
        """A product of sizes of inputs, which the step then reads too."""
        factor, rest = expression.as_coeff_Mul()
        powers = rest.as_powers_dict()
        sizes = [
            self.symbols[symbol]
            for symbol, power in powers.items()
            for _ in range(int(power))
            if symbol in self.symbols
        ]
        known = all(symbol in self.symbols and power.is_Integer and power > 0 for symbol, power in powers.items())
        if not known or not factor.is_Rational:
            raise BhcError(
                f"a size of {expression} cannot be written down",
                hint="sizes must be products of the batch's size and of whole numbers",
            )
        for place, _ in sizes:
            if inputs[place] not in reads:
                reads.append(inputs[place])
        return SizeOf(tuple((reads.index(inputs[place]), axis) for place, axis in sizes), int(factor.p), int(factor.q))
