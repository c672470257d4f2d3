"""Ours beside the paper's number, and beside the target."""

from collections.abc import Mapping, Sequence

from .load import Run
from .numbers import NOT_RECORDED, NOTHING, error_text, measure, ratio_text

TOLERANCE = 1e-9  # 1.8 + 0.1 is not 1.9 in binary
RISE = "_rise"  # ends the name of an error that is counted from the full network's


def beside_paper(ratio: float | None, error: float | None, printed: tuple[float, float] | None) -> str:
    """Better or worse only where ratio and error agree on it; otherwise what each of them says.

    Both are compared at the precision the paper prints: whole ratios, tenths of a percent.
    """
    if printed is None:
        return NOTHING
    if ratio is None or error is None:
        return NOT_RECORDED
    size = _sign(round(ratio) - printed[0])
    accuracy = _sign(printed[1] - round(error, 1))
    word = _WORDS[size, accuracy]
    return f"{word}: {ratio_text(ratio / printed[0])} x its ratio, error {error - printed[1]:+.2f}"


def _sign(difference: float) -> int:
    return 0 if abs(difference) < TOLERANCE else 1 if difference > 0 else -1


_WORDS = {
    (1, 1): "better",
    (1, 0): "better",
    (0, 1): "better",
    (0, 0): "same",
    (-1, -1): "worse",
    (-1, 0): "worse",
    (0, -1): "worse",
    (1, -1): "larger, less accurate",
    (-1, 1): "smaller, more accurate",
}


def target_text(target: Mapping[str, float]) -> str:
    """What was to be reached."""
    return ", ".join(_wanted(key, value) for key, value in target.items()) or "none set"


def against_target(runs: Sequence[Run], target: Mapping[str, float]) -> str:
    """Reached or missed by the mean over seeds, by how much, and how many seeds reach it alone."""
    if not target:
        return NOTHING
    means = {key: measure(_value(run, key) for run in runs) for key in target}
    if any(mean is None for mean in means.values()):
        return NOT_RECORDED
    misses = [_miss(key, mean.mean, target[key]) for key, mean in means.items() if mean is not None]
    misses = [miss for miss in misses if miss]
    verdict = f"**missed**: {'; '.join(misses)}" if misses else "reached"
    if len(runs) > 1:
        verdict += f" ({sum(_reached(run, target) for run in runs)} of {len(runs)} seeds alone)"
    return verdict


def _reached(run: Run, target: Mapping[str, float]) -> bool:
    values = {key: _value(run, key) for key in target}
    return all(value is not None and not _miss(key, value, target[key]) for key, value in values.items())


def _value(run: Run, key: str) -> float | None:
    """An entry of the summary, or how far an error of it lies over that of the full network."""
    if not key.endswith(RISE):
        return run.summary(key)
    error, original = run.summary(key.removesuffix(RISE)), run.data.get("original_error")
    return None if error is None or original is None else error - original


def _error_name(key: str) -> str | None:
    """What an error or its rise is called; nothing for ratios."""
    if key.endswith(RISE):
        return "rise of the error"
    return "error" if key.endswith("_error") else None


def _ratio_name(key: str) -> str:
    return key.rsplit("_", 1)[1]


def _wanted(key: str, value: float) -> str:
    name = _error_name(key)
    return f"{_ratio_name(key)} {ratio_text(value)}" if name is None else f"{name} at most {error_text(value)}"


def _miss(key: str, got: float, wanted: float) -> str:
    """By how much; empty where it was reached."""
    if name := _error_name(key):
        return f"{name} {got:.3f} is {got - wanted:.3f} over" if got > wanted + TOLERANCE else ""
    if got >= wanted - TOLERANCE:
        return ""
    return f"{_ratio_name(key)} {ratio_text(got)} is {100 * (1 - got / wanted):.1f} % short of {ratio_text(wanted)}"
