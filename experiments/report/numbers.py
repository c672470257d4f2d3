"""Numbers over seeds, and how numbers are written."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

Text = Callable[[float | None], str]
NOT_RUN, NOT_RECORDED, NOTHING = "not run", "not recorded", "-"
FEW_LAYERS = 8  # of more, ranges between the means would hide the architecture


@dataclass(frozen=True)
class Measured:
    """A quantity over seeds: its mean, and half the range between the smallest and the largest."""

    mean: float
    spread: float
    seeds: int


def measure(values: Iterable[float | None]) -> Measured | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Measured(fmean(known), (max(known) - min(known)) / 2, len(known))


def mean_of(measured: Measured | None) -> float | None:
    return None if measured is None else measured.mean


def ratio_text(value: float | None) -> str:
    """Three digits or all whole ones: 9.25, 53.8, 1,304."""
    if value is None:
        return NOT_RECORDED
    return f"{value:,.{_digits(value)}f}"


def _digits(value: float) -> int:
    return 0 if value >= 99.95 else 1 if value >= 9.995 else 2


def error_text(value: float | None) -> str:
    return NOT_RECORDED if value is None else f"{value:.2f}"


def whole_text(value: float | None) -> str:
    return NOT_RECORDED if value is None else f"{value:,.0f}"


def with_spread(measured: Measured | None, text: Text = ratio_text) -> str:
    """The mean, and with several seeds the spread."""
    if measured is None:
        return NOT_RECORDED
    if measured.seeds == 1:
        return text(measured.mean)
    # A spread has no more digits than its mean.
    spread = f"{measured.spread:,.{_digits(measured.mean)}f}" if text is ratio_text else text(measured.spread)
    return f"{text(measured.mean)} ± {spread}"


def dashes(values: Iterable[object]) -> str:
    return "-".join(map(str, values))


def layers_text(layers: Sequence[Sequence[float]]) -> str:
    """Layer by layer the rounded mean, and in brackets the smallest and the largest where they differ."""
    if len(layers) <= FEW_LAYERS:
        return " - ".join(_with_range(*map(_whole, (fmean(layer), min(layer), max(layer)))) for layer in layers)
    return _with_range(*(dashes(_whole(pick(layer)) for layer in layers) for pick in (fmean, min, max)))


def _with_range(mean: str, low: str, high: str) -> str:
    return mean if low == high else f"{mean} ({low} to {high})"


def _whole(value: float) -> str:
    return f"{value:,.0f}"
