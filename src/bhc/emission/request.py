"""A network that is asked for: its context, limits on it, how exact its weights are, and which widths suit.

Limits never reach the hypernetwork; they choose among what it offers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from numbers import Real
from typing import Any

from bhc.contexts import Context
from bhc.emission.guarantee import AlarmSamples
from bhc.errors import BhcError
from bhc.posterior import Family, Multiples

LARGEST_THRESHOLD = 1_000_000  # no log dropout rate comes near it
WHOLE = {"max_bytes": "bytes", "max_flops": "operations", "max_ram_bytes": "bytes"}  # limits on counts
PROMISES = ("max_flops", "max_ram_bytes", "max_bytes", "max_error", "max_latency_ms")  # the cheapest to check first


@dataclass(frozen=True)
class Limits:
    """All None: the run's own threshold."""

    threshold: float | None = None  # cut exactly here
    max_bytes: int | None = None  # of the packed file, everything in it
    max_flops: int | None = None  # two a multiply-add, for one input
    max_error: float | None = None  # percent, on the run's validation sample
    max_ram_bytes: int | None = None  # constants and activations of the C form
    max_latency_ms: float | None = None  # onnxruntime here, batch 1, one thread, median
    confidence: float | None = None  # that max_error holds for new data, a part of 1

    def __post_init__(self) -> None:
        for each in fields(self):
            value: Any = getattr(self, each.name)
            if value is None:
                continue
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or not -inf < value < inf:
                raise BhcError(f"{each.name} must be a number, given {value!r}")
            if each.name not in ("threshold", "confidence") and value <= 0:
                raise BhcError(
                    f"{each.name} must be more than zero, given {value}",
                    hint="no sample can promise zero errors; ask for a small percentage such as 0.1"
                    if each.name == "max_error"
                    else "leave it out for no such limit",
                )
            if each.name in WHOLE:
                if value != int(value):
                    raise BhcError(
                        f"{each.name} is a whole number of {WHOLE[each.name]}, given {value}",
                        hint=f"{int(value)} is the next lower one",
                    )
                object.__setattr__(self, each.name, int(value))
        if self.threshold is not None and abs(self.threshold) > LARGEST_THRESHOLD:
            raise BhcError(f"the threshold must be a number within {LARGEST_THRESHOLD:,}, given {self.threshold}")
        if self.max_error is not None and self.max_error > 100:
            raise BhcError(f"max_error is in percent, given {self.max_error:g}", hint="1.5 means 1.5 %")
        if self.confidence is not None and not 0 < self.confidence < 1:
            raise BhcError(
                f"confidence must lie between 0 and 1, given {self.confidence:g}", hint="0.95 is the usual one: 95 %"
            )
        if self.confidence is not None and self.max_error is None:
            raise BhcError(
                "confidence is that of an error, and no max_error was given",
                hint="say which error must not be exceeded, such as max_error=1, or leave confidence out",
            )

    @property
    def promised(self) -> dict[str, float]:
        """The limits that a network can break, by name; a threshold is not one, it is where the cut is made."""
        return {name: getattr(self, name) for name in PROMISES if getattr(self, name) is not None}

    def broken_by(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Those of a network's figures, by the names of their limits, that are over them."""
        return {name: figure for name, figure in figures.items() if not figure <= self.promised[name]}

    @property
    def bound_size(self) -> bool:
        """Whether anything but the error is limited."""
        return bool(self.promised.keys() - {"max_error"})

    @property
    def searched(self) -> bool:
        """Whether a threshold has to be looked for."""
        return self.threshold is None and (self.bound_size or self.max_error is not None)


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


Quantisation = Float32 | VarianceBits


@dataclass(frozen=True)
class Request:
    context: Context
    limits: Limits = field(default_factory=Limits)
    quantisation: Quantisation = field(default_factory=VarianceBits)
    alarm_samples: AlarmSamples | None = None  # inputs outside the context are flagged by what these say
    multiples: Multiples | None = None  # of which the channels of layers are
