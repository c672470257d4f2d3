"""How an exported file holds the weights."""

from enum import Enum


class WeightForm(Enum):
    """Floats run everywhere; integers are smaller; bit-packed ones smaller still and slower to read."""

    FLOATS = "floats"
    INTEGERS = "integers"
    BIT_PACKED = "bit-packed"
