"""How exact the weights of an emitted network are: a choice that the caller passes in."""

from dataclasses import dataclass

from bhc.errors import BhcError
from bhc.posterior import Family

# Powers of two: a step 1.4 times as coarse each, and two bytes in a file. Finer ones cost bytes and gained nothing on
# validation data.
SCALES = tuple(2.0**power for power in range(-6, 4))

# For weights that go one by one: those that stay may be far more uncertain than they are large. Of groups hardly any
# are; finer steps are tried where the finest of the usual ones does harm.
FINER_SCALES = tuple(2.0**power for power in range(-12, -6))


def scales_for(family: Family) -> tuple[float, ...]:
    """The scales to try first on networks of a family, in ascending order."""
    return (*FINER_SCALES, *SCALES) if family.cuts_weights else SCALES


@dataclass(frozen=True)
class Float32:
    """32-bit floats: pruning alone."""


@dataclass(frozen=True)
class VarianceBits:
    """Steps from the posterior's variance; ``scale`` None has their common scale searched on validation data."""

    scale: float | None = None

    def __post_init__(self) -> None:
        if self.scale is not None and not 1e-6 <= self.scale <= 1e6:
            raise BhcError(f"the scale of the steps must lie between 1e-6 and 1e6, given {self.scale}")


Precision = Float32 | VarianceBits
