"""Which of the networks that a context could get: thresholds and steps are tried until the limits hold.

Everything that can be limited, but the error, shrinks as the threshold falls and the step grows. So the search walks
down the thresholds, finds at each the finest steps that fit, and compares errors. When nothing fits, the smallest
network of all says what can be reached.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from math import inf

import numpy as np

from bhc.emission.guarantee import Calibration, Guarantee
from bhc.emission.limits import Limits
from bhc.emission.precision import FINER_SCALES, Float32, Precision, scales_for
from bhc.emission.trial import Stock, Trial, Workshop
from bhc.errors import BhcError
from bhc.posterior import Family

THRESHOLDS = 13  # tried across the consolidated range
ORDERED_THRESHOLDS = 33  # the same where the first network that is not proved ends it
UNCONSOLIDATED = (-2.0, 2.0)  # the range for a model that was not consolidated
BELOW = (0.5, 1.0, 2.0, 4.0, 8.0, 1e5)  # how far under it to look when nothing inside it fits
SLACK = 0.001  # wrong answers that rounding may add, as a part of all images
GRAVE = 0.01  # so many more, and finer steps than are usual are worth their bytes
STEPS_COMPARED = 2  # at each threshold: the finest that fits, and as errors do not always grow, the next
COARSEST_USUAL = 2.0**-1  # most often six scales from 2^-6: three looks find the right one
UNJUDGED_SCALE = 2.0**-4  # without labelled data: coarser steps are taken only if nothing else fits
LATENCY_MARGIN = 1.5  # times vary: what is named as reachable has to be reached again

Scale = float | None  # None: floats


class Search:
    """One context, one set of limits."""

    def __init__(self, workshop: Workshop, limits: Limits, precision: Precision) -> None:
        self.workshop, self.limits = workshop, limits
        self.scales = _scales(precision, workshop.cutter.network.hypernet.family)
        if limits.max_error is not None and limits.confidence is None and workshop.judge is None:
            raise BhcError(
                "max_error needs labelled validation data for this context, and the run has none",
                hint="leave max_error out; for a domain, the run's labelled sample says nothing",
            )

    def best(self) -> Trial:
        """The network to emit, or an error that says how near to the limits one can come."""
        limits = self.limits
        if limits.confidence is not None and limits.max_error is not None:
            return self._proved(float(limits.max_error), float(limits.confidence))
        if not limits.searched:
            fixed = self.workshop.model.default_threshold if limits.threshold is None else limits.threshold
            chosen = self._best_of([fixed])
        else:
            chosen = self._best_of(self._inside())
            if limits.bound_size and self._hurts(chosen):
                below = self._best_of(self._below())
                chosen = min(filter(None, (chosen, below)), key=self._rank, default=None)
        if chosen is None and limits.max_error is not None:
            chosen = self._winner(self._all_fitting)  # before giving up, look at everything
        if chosen is None:
            raise self._failure()
        return chosen

    def _proved(self, max_error: float, confidence: float) -> Trial:
        """The smallest network that keeps the error on new data, as far as calibration images can tell."""
        workshop = self.workshop
        context = workshop.cutter.context
        calibration = Calibration.of(workshop.model, context, max_error=max_error, confidence=confidence)
        longest = calibration.guarantee(calibration.judge.num_images)
        found = calibration.last_proved(self.in_order(longest), lambda trial: trial.network.graph)
        if found is None:
            smallest = replace(self._harmlessly_rounded(workshop.stock(self._order[-1])), guarantee=longest)
            raise BhcError(
                f"no network for {context} keeps the other limits with weights that are rounded without harm; the"
                f" smallest has {smallest.file_bytes:,} bytes and {smallest.stock.plan.num_flops:,} FLOPs",
                hint="a guarantee is given for such networks alone: loosen the other limits, or leave confidence out",
            )
        trial, guarantee = found
        return replace(trial, guarantee=guarantee)

    @property
    def _order(self) -> list[float]:
        """The thresholds that are tested, from the largest network to the smallest."""
        given = self.limits.threshold
        return self._inside(ORDERED_THRESHOLDS) if given is None else [given]

    def in_order(self, longest: Guarantee) -> Iterator[Trial]:
        """From the largest network to the smallest, those that keep every limit but the error, with harmless steps.

        Calibration images are not looked at, so the order is fixed for them. A file must have room for ``longest``.
        """
        for stock in self._stocks(self._order):
            if stock.plan.num_flops <= (self.limits.max_flops or inf):
                trial = self._harmlessly_rounded(stock)
                if self._fits(replace(trial, guarantee=longest)) and self._fast_enough(trial):
                    yield trial

    def _harmlessly_rounded(self, stock: Stock) -> Trial:
        return self._as_coarse_as_harmless(stock, [stock.trial(scale) for scale in self.scales])

    def _hurts(self, trial: Trial | None) -> bool:
        """Whether the limits are so tight that a cut below the consolidated range might do better."""
        judge = self.workshop.judge
        if trial is None:
            return True
        if trial.verdict is None or judge is None:
            return (trial.scale or 0.0) > UNJUDGED_SCALE
        smallest = self.workshop.stock(self._inside()[-1]).trial(None)
        return smallest.verdict is not None and trial.verdict.wrong > smallest.verdict.wrong + self._slack()

    def _slack(self, part: float = SLACK) -> int:
        """Wrong answers that rounding may add, given as a part of all images."""
        return 0 if self.workshop.judge is None else round(part * self.workshop.judge.num_images)

    @cached_property
    def _all_fitting(self) -> list[Trial]:
        """Every threshold with every step that fits, the error aside."""
        limits = self.limits
        trials = [
            trial for stock in self._all_stocks() for trial in (*map(stock.trial, self.scales), *self._finer(stock))
        ]
        flops, latency = limits.max_flops or inf, limits.max_latency_ms
        return [
            trial
            for trial in trials
            if trial.stock.plan.num_flops <= flops
            and self._fits(trial)
            and (latency is None or trial.stock.latency_ms <= latency)
        ]

    def _inside(self, count: int = THRESHOLDS) -> list[float]:
        """Thresholds of the consolidated range, from the largest network to the smallest."""
        low, high = self.workshop.model.thresholds or UNCONSOLIDATED
        return np.linspace(high, low, count).tolist()

    def _below(self) -> list[float]:
        return [self._inside()[-1] - far for far in BELOW]

    def _stocks(self, thresholds: Sequence[float]) -> Iterator[Stock]:
        """What stays at falling thresholds, the same cut only once."""
        widths: set[tuple[int, ...]] = set()
        for stock in map(self.workshop.stock, thresholds):
            if stock.plan.widths not in widths:  # what stays only ever shrinks, so its widths tell
                widths.add(stock.plan.widths)
                yield stock

    def _all_stocks(self) -> Iterator[Stock]:
        """Everything that can be tried under these limits."""
        if self.limits.threshold is not None:
            return self._stocks([self.limits.threshold])
        return chain(self._stocks(self._inside()), self._stocks(self._below() if self.limits.bound_size else []))

    def _best_of(self, thresholds: Sequence[float]) -> Trial | None:
        """The best trial that fits; ``thresholds`` fall, so a step that fitted one network fits the next."""
        trials: list[Trial] = []
        known: Scale = None
        for stock in self._stocks(thresholds):
            offers = self._offers(stock, known=known)
            known = offers[0].scale if offers else None
            trials += offers
        return self._winner(trials)

    def _winner(self, trials: Sequence[Trial]) -> Trial | None:
        """The first in rank that is right and fast enough.

        Errors on the hard examples bound those on all from below, so not all trials need the full look.
        """
        best: Trial | None = None
        judged = self.workshop.judge is not None and not self._smallest_wins
        for trial in sorted(trials, key=lambda trial: trial.wrong_on_hard) if judged else trials:
            if judged and best is not None and best.verdict is not None and trial.wrong_on_hard > best.verdict.wrong:
                break
            better = best is None or self._rank(trial) < self._rank(best)
            if better and self._right_enough(trial) and self._fast_enough(trial):
                best = trial
        return best

    @property
    def _smallest_wins(self) -> bool:
        """With nothing but the error limited: of networks that are right enough, nobody wants a larger one."""
        return self.limits.max_error is not None and not self.limits.bound_size

    def _fast_enough(self, trial: Trial) -> bool:
        return self.limits.max_latency_ms is None or trial.stock.latency_ms <= self.limits.max_latency_ms

    def _rank(self, trial: Trial) -> tuple[float, ...]:
        if self._smallest_wins:
            return (trial.file_bytes,)
        if trial.verdict is None:
            # Nothing is known of its errors: no coarser than is usual first, then as large as can be.
            return (max(trial.scale or 0.0, UNJUDGED_SCALE), -trial.stock.plan.threshold)
        return (trial.verdict.wrong, trial.verdict.loss)

    def _offers(self, stock: Stock, *, known: Scale) -> list[Trial]:
        """The networks at one threshold with the steps that suit the limits; ``known`` fitted a larger one."""
        limits = self.limits
        if limits.max_flops is not None and stock.plan.num_flops > limits.max_flops:
            return []
        trials = [stock.trial(scale) for scale in self.scales]
        if self._smallest_wins:
            # One by one: errors need not grow with the step, and the coarsest that will do is wanted.
            return list(islice(filter(self._right_enough, self._coarsest_first(stock, trials)), 1))
        harmless = self._as_coarse_as_harmless
        if limits.max_bytes is None and limits.max_ram_bytes is None:
            return [harmless(stock, trials)]
        coarser = 0 if known is None else sum((scale or 0.0) > known for scale in self.scales)
        finest = _first(trials, self._fits, likely=min(coarser, len(trials) - 1))
        if finest is None:
            return []
        if limits.max_bytes is None:
            # The C form rounds widths up to whole bytes, so finer steps are often free there, and of no use.
            chosen = harmless(stock, trials)
            return [chosen if self._fits(chosen) else trials[finest]]
        finer = filter(self._fits, self._finer(stock)) if finest == 0 and self._gravely_harmed(trials[0]) else ()
        return [*trials[finest : finest + STEPS_COMPARED], *finer]

    def _fits(self, trial: Trial) -> bool:
        limits = self.limits
        if limits.max_ram_bytes is not None and trial.ram_bytes > limits.max_ram_bytes:
            return False
        return limits.max_bytes is None or trial.has_at_most(limits.max_bytes)

    def _right_enough(self, trial: Trial) -> bool:
        limit, judge = self.limits.max_error, self.workshop.judge
        if limit is None or judge is None:
            return limit is None
        if 100 * trial.wrong_on_hard / judge.num_images > limit:
            return False  # those alone are too many; most are told by this quick look
        return trial.error is not None and trial.error <= limit

    def _as_coarse_as_harmless(self, stock: Stock, trials: Sequence[Trial]) -> Trial:
        """The coarsest step, of those that are usual, that costs next to nothing against floats; or a finer one."""
        if len(trials) == 1:
            return trials[0]
        trials = [trial for trial in trials if (trial.scale or 0.0) <= COARSEST_USUAL]
        if self.workshop.judge is None:
            return trials[0]  # without labelled data nothing is known to be harmless: the finest
        allowed = stock.floats.wrong_on_hard + self._slack()
        chosen = _last(trials, lambda trial: trial.wrong_on_hard <= allowed) or trials[0]
        # The hard examples are a quick look; what they let pass is looked at on all.
        while chosen is not trials[0] and not self._costs_at_most(SLACK, chosen):
            chosen = trials[trials.index(chosen) - 1]
        if not self._gravely_harmed(chosen):
            return chosen
        finer = self._finer(stock)
        harmless = next((trial for trial in finer if self._costs_at_most(SLACK, trial)), None)
        return harmless or min([chosen, *finer], key=lambda trial: trial.error or 0.0)

    def _coarsest_first(self, stock: Stock, trials: Sequence[Trial]) -> Iterator[Trial]:
        """All of them, and finer ones where floats are right enough, so that finer steps may be."""
        yield from reversed(trials)
        if self._right_enough(stock.floats):
            yield from self._finer(stock)

    def _finer(self, stock: Stock) -> list[Trial]:
        """With finer steps than are usual, the coarsest of them first: for networks that those do harm to."""
        if len(self.scales) == 1:
            return []
        return [stock.trial(scale) for scale in reversed(FINER_SCALES) if scale < (self.scales[0] or 0.0)]

    def _gravely_harmed(self, trial: Trial) -> bool:
        """Whether rounding costs more than bytes are worth; harm mostly shows on the hard examples, at a quick look."""
        if self.workshop.judge is None or trial.wrong_on_hard <= trial.stock.floats.wrong_on_hard + self._slack():
            return False
        return not self._costs_at_most(GRAVE, trial)

    def _costs_at_most(self, part: float, trial: Trial) -> bool:
        """Whether rounding makes at most so large a part of the whole sample wrong that floats have right."""
        floats, slack = trial.stock.floats, self._slack(part)
        if trial.verdict is None:
            return True
        if trial.verdict.wrong <= floats.wrong_on_hard + slack:
            return True  # floats make no fewer errors on all than on the hard examples: they need no full look
        return floats.verdict is None or trial.verdict.wrong <= floats.verdict.wrong + slack

    def _failure(self) -> BhcError:
        """Name the limit that cannot be met, and the nearest figure that can."""
        limits = self.limits
        coarsest = [stock.trial(self.scales[-1]) for stock in self._all_stocks()]
        where = "" if limits.threshold is None else f" at threshold {limits.threshold:g}"
        whose = f"no network for {self.workshop.cutter.context}{where} has at most"
        stocks = [trial.stock for trial in coarsest]
        fastest = LATENCY_MARGIN * stocks[-1].latency_ms if limits.max_latency_ms is not None else 0.0
        for name, limit, unit, figure in (
            ("max_bytes", limits.max_bytes, "bytes", lambda: min(trial.file_bytes for trial in coarsest)),
            ("max_flops", limits.max_flops, "FLOPs", lambda: min(stock.plan.num_flops for stock in stocks)),
            ("max_ram_bytes", limits.max_ram_bytes, "bytes in its C form", lambda: min(t.ram_bytes for t in coarsest)),
            ("max_latency_ms", limits.max_latency_ms, "ms latency", lambda: _round_up(fastest)),
        ):
            if limit is not None and figure() > limit:
                return BhcError(
                    f"{whose} {limit:,} {unit}; the smallest that can be reached is {figure():,}",
                    hint=f"ask for {name}={figure()} or more",
                )
        errors = [trial.error for trial in self._all_fitting if trial.error is not None]
        if limits.max_error is None or not errors:
            return BhcError(
                f"no network for {self.workshop.cutter.context}{where} keeps all limits at once; each alone can be",
                hint="loosen one of them"
                + (", or try again when the machine is less busy" if limits.max_latency_ms is not None else ""),
            )
        within = " within the other limits" if limits.bound_size else ""
        return BhcError(
            f"{whose} {limits.max_error:g} % error{within}; the lowest that can be reached is"
            f" {_round_up(min(errors)):g} %",
            hint="allow a higher max_error" + (", or more room" if limits.bound_size else ""),
        )


def _scales(precision: Precision, family: Family) -> tuple[Scale, ...]:
    if isinstance(precision, Float32):
        return (None,)
    return scales_for(family) if precision.scale is None else (precision.scale,)


def _first(trials: Sequence[Trial], good: Callable[[Trial], bool], *, likely: int) -> int | None:
    """The place of the first good one, where all after a good one are good; None if there is none.

    Looks at the place that is ``likely`` from the end first, and goes on from there in steps that double.
    """
    low, high = 0, len(trials) - 1
    start, jump = high - likely, 1
    if not good(trials[start]):
        if start == high or not good(trials[high]):
            return None
        low = start + 1
    else:
        high = start
        while high > low and good(trials[max(high - jump, low)]):
            high, jump = max(high - jump, low), 2 * jump
        low = max(high - jump + 1, low)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if good(trials[middle]) else (middle + 1, high)
    return high


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
