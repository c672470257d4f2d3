"""Which of the networks that a context could get: thresholds and steps are tried until the limits hold.

Everything that can be limited, but the error, shrinks as the threshold falls and the step grows. So the search walks
down the thresholds, finds at each the finest step that fits, and compares errors. When nothing fits, the smallest
network of all says what can be reached.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf

import numpy as np

from bhc.emission.limits import Limits
from bhc.emission.precision import SCALES, Float32, Precision
from bhc.emission.trial import Stock, Trial, Workshop
from bhc.errors import BhcError

THRESHOLDS = 13  # tried across the consolidated range
UNCONSOLIDATED = (-2.0, 2.0)  # the range for a model that was not consolidated
BELOW = (0.5, 1.0, 2.0, 4.0, 8.0, 1e5)  # how far under it to look when nothing inside it fits
SLACK = 0.001  # wrong answers that rounding may add, as a part of all images
USUAL = slice(3, 10)  # seven scales, from 2^-7 to 2^-1: three looks find the right one
UNJUDGED_SCALE = 2.0**-6  # without labelled data: a step that cost nothing wherever there was some

Scale = float | None  # None: floats


class Search:
    """One context, one set of limits."""

    def __init__(self, workshop: Workshop, limits: Limits, precision: Precision) -> None:
        self.workshop, self.limits = workshop, limits
        self.scales = _scales(precision)
        if limits.max_error is not None and workshop.judge is None:
            raise BhcError(
                "max_error needs labelled validation data for this context, and the run has none",
                hint="leave max_error out; for a domain, the run's labelled sample says nothing",
            )

    def best(self) -> Trial:
        """The network to emit, or an error that says how near to the limits one can come."""
        limits, stock = self.limits, self.workshop.stock
        if not limits.searched:
            fixed = self.workshop.model.default_threshold if limits.threshold is None else limits.threshold
            chosen = self._best_of([stock(fixed)])
        else:
            chosen = self._best_of(map(stock, self._inside()))
            if limits.bound_size and self._hurts(chosen):
                below = self._best_of(map(stock, self._below()))
                chosen = min(filter(None, (chosen, below)), key=self._rank, default=None)
        if chosen is None and limits.max_error is not None:
            # Errors do not always grow with the step; before giving up, look at everything.
            right = filter(self._right_enough, self._all_fitting())
            chosen = min(right, key=self._rank, default=None)
        if chosen is None:
            raise self._failure()
        return chosen

    def _hurts(self, trial: Trial | None) -> bool:
        """Whether the limits are so tight that a cut below the consolidated range might do better."""
        judge = self.workshop.judge
        if trial is None or trial.verdict is None or judge is None:
            return trial is None
        smallest = self.workshop.stock(self._inside()[-1]).trial(None)
        return smallest.verdict is not None and trial.verdict.wrong > smallest.verdict.wrong + self._slack

    @property
    def _slack(self) -> int:
        """Wrong answers that rounding may add."""
        return 0 if self.workshop.judge is None else round(SLACK * self.workshop.judge.num_images)

    def _all_fitting(self) -> list[Trial]:
        """Every threshold with every step that fits, the error aside."""
        limits, stock = self.limits, self.workshop.stock
        below = self._below() if limits.bound_size else []
        thresholds = [*self._inside(), *below] if limits.threshold is None else [limits.threshold]
        trials = [trial for stock in map(stock, thresholds) for trial in map(stock.trial, self.scales)]
        flops, latency = limits.max_flops or inf, limits.max_latency_ms
        return [
            trial
            for trial in trials
            if trial.stock.plan.num_flops <= flops
            and self._fits(trial)
            and (latency is None or trial.stock.latency_ms <= latency)
        ]

    def _inside(self) -> list[float]:
        """Thresholds of the consolidated range, from the largest network to the smallest."""
        low, high = self.workshop.model.thresholds or UNCONSOLIDATED
        return np.linspace(high, low, THRESHOLDS).tolist()

    def _below(self) -> list[float]:
        return [self._inside()[-1] - far for far in BELOW]

    def _best_of(self, stocks: Iterable[Stock]) -> Trial | None:
        """The best trial that fits: of the lowest error, or, where only the error is limited, the smallest.

        ``stocks`` come from large to small, so the step that fitted one fits the next, and a finer one may.
        """
        trials: list[Trial] = []
        widths: set[tuple[int, ...]] = set()
        for stock in stocks:
            if stock.plan.widths in widths:
                continue  # the same cut: what stays only ever shrinks
            widths.add(stock.plan.widths)
            trial = self._try(stock, at_most=trials[-1].scale if trials else None)
            if trial is not None:
                trials.append(trial)
        limit = self.limits.max_latency_ms
        right = filter(self._right_enough, sorted(trials, key=self._rank))
        return next((trial for trial in right if limit is None or trial.stock.latency_ms <= limit), None)

    def _rank(self, trial: Trial) -> tuple[float, ...]:
        if self.limits.max_error is not None and not self.limits.bound_size:
            return (trial.file_bytes,)
        if trial.verdict is None:
            return (-trial.stock.plan.threshold,)
        return (trial.verdict.wrong, trial.verdict.loss)

    def _try(self, stock: Stock, *, at_most: Scale = None) -> Trial | None:
        """The network at one threshold with the step that suits the limits; None if none does."""
        limits = self.limits
        if limits.max_flops is not None and stock.plan.num_flops > limits.max_flops:
            return None
        trials = [stock.trial(scale) for scale in self.scales]
        if limits.max_bytes is not None or limits.max_ram_bytes is not None:
            known = trials if at_most is None else trials[: self.scales.index(at_most) + 1]
            finest = _first(known, self._fits) or _first(trials, self._fits)
            if finest is None or limits.max_bytes is not None:
                return finest
            # The C form rounds widths up to whole bytes, so finer steps are often free there, and of no use.
            harmless = self._as_coarse_as_harmless(stock, trials)
            return max(finest, harmless, key=lambda trial: trial.scale or 0)
        if limits.max_error is not None and not limits.bound_size:
            return _last(trials, self._right_enough)
        return self._as_coarse_as_harmless(stock, trials)

    def _fits(self, trial: Trial) -> bool:
        limits = self.limits
        if limits.max_ram_bytes is not None and trial.ram_bytes > limits.max_ram_bytes:
            return False
        return limits.max_bytes is None or trial.has_at_most(limits.max_bytes)

    def _right_enough(self, trial: Trial) -> bool:
        return self.limits.max_error is None or (trial.error is not None and trial.error <= self.limits.max_error)

    def _as_coarse_as_harmless(self, stock: Stock, trials: Sequence[Trial]) -> Trial:
        """The coarsest step, of those that are usual, that costs next to nothing against floats."""
        if len(trials) == 1:
            return trials[0]
        trials = trials[USUAL]
        if self.workshop.judge is None:
            return min(trials, key=lambda trial: abs((trial.scale or 0) - UNJUDGED_SCALE))
        allowed = stock.trial(None).wrong_on_hard + self._slack
        return _last(trials, lambda trial: trial.wrong_on_hard <= allowed) or trials[0]

    def _failure(self) -> BhcError:
        """Name the limit that cannot be met, and the nearest figure that can."""
        limits, workshop = self.limits, self.workshop
        thresholds = [limits.threshold] if limits.threshold is not None else [*self._inside(), *self._below()]
        smallest = workshop.stock(thresholds[-1]).trial(self.scales[-1])
        where = "" if limits.threshold is None else f" at threshold {limits.threshold:g}"
        whose = f"no network for {smallest.stock.plan.context}{where} has at most"
        for name, limit, unit, figure in (
            ("max_bytes", limits.max_bytes, "bytes", lambda: smallest.file_bytes),
            ("max_flops", limits.max_flops, "FLOPs", lambda: smallest.stock.plan.num_flops),
            ("max_ram_bytes", limits.max_ram_bytes, "bytes in its C form", lambda: smallest.ram_bytes),
            ("max_latency_ms", limits.max_latency_ms, "ms latency", lambda: _round_up(smallest.stock.latency_ms)),
        ):
            if limit is not None and figure() > limit:
                return BhcError(
                    f"{whose} {limit:,} {unit}; the smallest that can be reached is {figure():,}",
                    hint=f"ask for {name}={figure()} or more",
                )
        errors = [trial.error for trial in self._all_fitting() if trial.error is not None]
        if limits.max_error is None or not errors:  # times vary: a latency was over the limit, and now is not
            return BhcError(
                f"{whose} {limits.max_latency_ms:,} ms latency each time it is measured",
                hint="ask for a higher max_latency_ms, or when the machine is less busy",
            )
        within = " within the other limits" if limits.bound_size else ""
        return BhcError(
            f"{whose} {limits.max_error:g} % error{within}; the lowest that can be reached is"
            f" {_round_up(min(errors)):g} %",
            hint="allow a higher max_error" + (", or more room" if limits.bound_size else ""),
        )


def _scales(precision: Precision) -> tuple[Scale, ...]:
    if isinstance(precision, Float32):
        return (None,)
    return SCALES if precision.scale is None else (precision.scale,)


def _first(trials: Sequence[Trial], good: Callable[[Trial], bool]) -> Trial | None:
    """The first good one, where all after a good one are good; None if there is none.

    From the end, in steps that double: where to look is mostly known.
    """
    if not good(trials[-1]):
        return None
    low, high, jump = 0, len(trials) - 1, 1
    while high > 0 and good(trials[max(high - jump, 0)]):
        high, jump = max(high - jump, 0), 2 * jump
    low = max(high - jump + 1, 0) if high else 0
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if good(trials[middle]) else (middle + 1, high)
    return trials[high]


def _last(trials: Sequence[Trial], good: Callable[[Trial], bool]) -> Trial | None:
    """The last good one, where all before a good one are good; None if there is none."""
    low, high = -1, len(trials) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(trials[middle]) else (low, middle - 1)
    return trials[low] if low >= 0 else None


def _round_up(figure: float) -> float:
    """To three decimals: what is named as reachable has to be."""
    return float(np.ceil(figure * 1e3) / 1e3)
