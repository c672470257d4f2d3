"""Trade-off curves: fronts of what is worth having, and reading between their points."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Any

Point = Mapping[str, Any]  # threshold, ratio_mean, ratio_harmonic, error, ...
ALL = "all contexts"


def pareto(points: Sequence[Point], ratio: str = "ratio_mean") -> list[Point]:
    """The points that no other equals or beats in both ratio and error; by rising ratio, and so by rising error."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (-point[ratio], point["error"], point["threshold"])):
        if not front or point["error"] < front[-1]["error"]:
            front.append(point)
    return front[::-1]


def read_on_test(trade_off: Mapping[str, Any]) -> list[Point]:
    """The test points at the thresholds of the validation front: the choice has not seen the test data."""
    test = {point["threshold"]: point for point in trade_off["test"]}
    chosen = [test[point["threshold"]] for point in pareto(trade_off["validation"]) if point["threshold"] in test]
    return sorted(chosen, key=lambda point: point["ratio_mean"])


def accuracy_at(front: Sequence[Point], rate: float) -> float | None:
    """Percent right at a compression rate or more; linear in the logarithm of the rate between points."""
    rates = [log(point["ratio_mean"]) for point in front]
    return interpolate(rates, [100 - point["error"] for point in front], log(rate))


def ratio_at(front: Sequence[Point], error: float, ratio: str) -> float | None:
    """The ratio at an error on the front; between points the logarithm of the ratio is linear in the error."""
    errors = [point["error"] for point in front]
    if not errors or error < errors[0]:
        return None
    value = interpolate(errors, [log(point[ratio]) for point in front], error)
    return None if value is None else exp(value)


def interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    """Linear between points; left of the first its value, right of the last nothing."""
    if not xs or x > xs[-1] + 1e-12:
        return None
    right = min(bisect_left(xs, x), len(xs) - 1)
    if right == 0 or xs[right] == xs[right - 1]:
        return ys[right]
    part = min((x - xs[right - 1]) / (xs[right] - xs[right - 1]), 1.0)
    return ys[right - 1] + part * (ys[right] - ys[right - 1])
