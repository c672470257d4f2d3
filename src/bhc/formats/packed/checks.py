"""What the values in a file's header may be; everything else is a ValueError that says what was found."""

from math import prod
from typing import Any

from bhc.formats.packed.cbor import brief
from bhc.formats.packed.layout import (
    CARD,
    FROM,
    INPUT_SHAPE,
    LABELS,
    LARGEST_ACTIVATION,
    MOST_STEPS,
    STEPS,
    TEMPERATURE,
)
from bhc.layers import kind_tagged

LARGEST_LABEL = (1 << 31) - 1
# Within these no product of a code, a step and a normalisation leaves the range of a 32-bit float.
SMALLEST_STEP, SMALLEST_NUMBER, LARGEST_NUMBER = 1e-37, 1e-15, 1e15


def check_header(header: Any) -> dict[int, Any]:
    """The header, if its parts have the types and sizes they must have."""
    if not isinstance(header, dict) or list(header) != [INPUT_SHAPE, STEPS, LABELS, TEMPERATURE, CARD]:
        raise ValueError("its header is not that of a network")
    shape, labels, steps = header[INPUT_SHAPE], header[LABELS], header[STEPS]
    if not _whole(shape, 1, LARGEST_ACTIVATION) or len(shape) > 4 or prod(shape) > LARGEST_ACTIVATION:
        raise ValueError(f"inputs of shape {brief(shape)}")
    if not _whole(labels, 0, LARGEST_LABEL) or len(set(labels)) < len(labels):
        raise ValueError("its labels are not different whole numbers")
    if not isinstance(steps, list) or len(steps) > MOST_STEPS or not isinstance(header[CARD], dict):
        raise ValueError("its header is not that of a network")
    positive(header[TEMPERATURE])
    return header


def inner(step: Any) -> Any:
    """The step without where it reads from."""
    return step[2] if isinstance(step, list) and len(step) == 3 and step[0] == FROM else step


def name_of(step: Any) -> str | None:
    """The name that a step has in the file; None for those that get one when they are read."""
    if not (isinstance(step, list) and len(step) > 1 and isinstance(step[1], str)):
        return None
    try:
        return step[1] if kind_tagged(step[0]).keeps_name else None
    except ValueError:
        return None


def _whole(numbers: Any, lowest: int, highest: int) -> bool:
    return isinstance(numbers, list) and all(type(n) is int and lowest <= n <= highest for n in numbers)


def moderate(number: Any) -> float:
    if type(number) is not float or not abs(number) <= LARGEST_NUMBER:
        raise ValueError(f"{brief(number)} in the place of a finite number")
    return number


def positive(number: Any, smallest: float = SMALLEST_NUMBER) -> float:
    """A number that a single-precision float can hold and divide by."""
    if moderate(number) < smallest:
        raise ValueError(f"{brief(number)} in the place of a positive number")
    return number
