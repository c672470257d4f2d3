"""Pieces of C that several kinds of layers write."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from bhc.layers.asked import CWriter
from bhc.layers.shapes import Shape


def literal(value: float) -> str:
    """A float constant that reads back to the same single-precision number."""
    text = f"{np.float32(value):.9g}"
    return f"{text}f" if any(mark in text for mark in ".en") else f"{text}.0f"


def number(module: Any, attribute: str) -> str:
    """A number of a module's as a constant."""
    return literal(float(getattr(module, attribute)))


def each_number(writer: CWriter, name: str, shape: Shape, expression: str, *, math: bool = False) -> None:
    """Change each value on its own; ``v`` in the expression is the value."""
    target = writer.writable(prod(shape))
    loop = [
        "int i;",
        f"for (i = 0; i < {prod(shape)}; i++) {{",
        f"    const float v = {writer.source}[i];",
        f"    {target}[i] = {expression};",
        "}",
    ]
    writer.lines(name, loop)
    writer.source = target
    writer.uses_math = writer.uses_math or math


Expression = Callable[[Any], str]
