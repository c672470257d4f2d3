"""Sizes that depend on how large a batch is, as a captured program has them."""

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from bhc.errors import BhcError
from bhc.layers.aten import SizeOf


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
