"""Which of the networks that a context could get: thresholds and steps are tried until the limits hold.

Everything that can be limited, but the error, mostly shrinks as the threshold falls and the step grows. So the search
walks down the thresholds, finds at each the finest steps that fit, and compares errors. "Mostly" is not always: a
coarser step now and then takes a byte more, and a promise must not rest on it. What the quick way proposes is held
against every limit before it is handed out, and only when each network there is was looked at is there none.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import inf

import numpy as np

from bhc.emission.guarantee import Calibration, Guarantee
from bhc.emission.limits import Limits
from bhc.emission.quantisation import Quantisation
from bhc.emission.rounding import Rounding, Scale
from bhc.emission.trial import Stock, Trial, Workshop
from bhc.errors import BhcError

THRESHOLDS = 13  # tried across the consolidated range
ORDERED_THRESHOLDS = 33  # the same where the first network that is not proved ends it
UNCONSOLIDATED = (-2.0, 2.0)  # the range for a model that was not consolidated
BELOW = (0.5, 1.0, 2.0, 4.0, 8.0, 1e5)  # how far under it to look when nothing inside it fits
LARGEST_HALF = 65_504.0  # of 16-bit floats
HALVINGS = 4  # between the smallest network that does not fit and the largest that does
STEPS_COMPARED = 2  # at each threshold: the finest that fits, and as errors do not always grow, the next
UNJUDGED_SCALE = 2.0**-4  # without labelled data: coarser steps are taken only if nothing else fits


class Search:
    """One context, one set of limits."""

    def __init__(self, workshop: Workshop, limits: Limits, quantisation: Quantisation) -> None:
        self.workshop, self.limits, self.quantisation = workshop, limits, quantisation
        self.rounding = Rounding(quantisation, workshop.cutter.network.hypernet.family, workshop.judge)
        if limits.max_error is not None and limits.confidence is None and workshop.judge is None:
            raise BhcError(
                "max_error needs labelled validation data for this context, and the run has none",
                hint="leave max_error out; for a domain, the run's labelled sample says nothing",
            )

    def under(self, limits: Limits) -> "Search":
        """The same for other limits."""
        return Search(self.workshop, limits, self.quantisation)

    def proposals(self) -> Iterator[Trial]:
        """Networks to hand out, the preferred first; who asks for another has refused the one before."""
        if self.limits.confidence is not None:
            proved = self._proved()
            if proved is not None:
                yield proved
            return
        best, refused = self._preferred(), set[tuple[object, ...]]()
        while True:
            if best is not None:
                yield best
                refused.add(best.name)
            others = (trial for trial in self.everything() if trial.name not in refused and self.keeps(trial))
            best = min(others, key=self._rank, default=None)
            if best is None:
                return

    def everything(self) -> Iterator[Trial]:
        """Every network that there is under a threshold that may be given, whatever the other limits."""
        for stock in self.stocks():
            yield from self.rounding.coarsest_first(stock)

    def stocks(self) -> Iterator[Stock]:
        """Every cut of them."""
        if self.limits.threshold is not None:
            return self._distinct([self.limits.threshold])
        return chain(self._distinct(self._inside()), self._distinct(self._below() if self.limits.bound_size else []))

    def keeps(self, trial: Trial) -> bool:
        """Whether all limits hold, the cheapest to check first."""
        return not any(self.breaks(trial, name) for name in self.limits.promised)

    def breaks(self, trial: Trial, name: str) -> bool:
        """Whether the limit of that name does not hold; decided without the figure where that is quicker."""
        limit = self.limits.promised[name]
        if name == "max_bytes":
            return not trial.has_at_most(int(limit))
        if name == "max_flops" and trial.stock.plan.num_flops > limit:
            return True
        if name == "max_error" and trial.guarantee is None:
            judge = self.workshop.judge
            if judge is None or 100 * trial.wrong_on_hard / judge.num_images > limit:
                return True  # the hard examples alone are too many; most are told by this quick look
        return not trial.figure(name) <= limit

    def in_order(self, longest: Guarantee) -> Iterator[Trial]:
        """From the largest network to the smallest, those that keep every limit but the error, with harmless steps.

        Calibration images are not looked at, so the order is fixed for them. A file must have room for ``longest``.
        """
        for stock in self._distinct(self.order):
            if stock.plan.num_flops <= (self.limits.max_flops or inf):
                trial = self.rounding.harmless(stock)
                if self.keeps(replace(trial, guarantee=longest)):
                    yield trial

    @property
    def order(self) -> list[float]:
        """The thresholds that are tested where something is to be proved, from the largest network to the smallest."""
        given = self.limits.threshold
        return self._inside(ORDERED_THRESHOLDS) if given is None else [given]

    def calibration(self) -> Calibration:
        """What proofs rest on."""
        limits = self.limits
        assert limits.max_error is not None
        assert limits.confidence is not None
        context = self.workshop.cutter.context
        return Calibration.of(
            self.workshop.model, context, max_error=float(limits.max_error), confidence=float(limits.confidence)
        )

    def _proved(self) -> Trial | None:
        """The smallest network that keeps the error on new data, as far as calibration images can tell."""
        calibration = self.calibration()
        if not calibration.proves(0):
            return None
        found = calibration.last_proved(self.in_order(calibration.longest), lambda trial: trial.network.graph)
        return None if found is None else replace(found[0], guarantee=found[1])

    def _preferred(self) -> Trial | None:
        """The best of those that a quick look finds; None if it finds none that fits."""
        limits = self.limits
        if not limits.searched:
            fixed = self.workshop.model.default_threshold if limits.threshold is None else limits.threshold
            return self._best_of([fixed])
        chosen = self._best_of(self._inside())
        if limits.bound_size and self._hurts(chosen):
            below = self._best_of(self._below())
            return min(filter(None, (chosen, below)), key=self._rank, default=None)
        return chosen

    def _hurts(self, trial: Trial | None) -> bool:
        """Whether the limits are so tight that a cut below the consolidated range might do better."""
        if trial is None:
            return True
        if trial.verdict is None:
            return (trial.scale or 0.0) > UNJUDGED_SCALE
        smallest = self.workshop.stock(self._inside()[-1]).floats
        return smallest.verdict is not None and trial.verdict.wrong > smallest.verdict.wrong + self.rounding.slack()

    def _inside(self, count: int = THRESHOLDS) -> list[float]:
        """Thresholds of the consolidated range, from the largest network to the smallest."""
        low, high = self.workshop.model.thresholds or UNCONSOLIDATED
        return [min(max(_brief(threshold), low), high) for threshold in np.linspace(high, low, count).tolist()]

    def _below(self) -> list[float]:
        return [_brief(self._inside()[-1] - far) for far in BELOW]

    def _distinct(self, thresholds: Sequence[float]) -> Iterator[Stock]:
        """What stays at falling thresholds, the same cut only once."""
        widths: set[tuple[int, ...]] = set()
        for stock in map(self.workshop.stock, thresholds):
            if stock.plan.widths not in widths:  # what stays only ever shrinks, so its widths tell
                widths.add(stock.plan.widths)
                yield stock

    def _best_of(self, thresholds: Sequence[float]) -> Trial | None:
        """The best trial that fits; ``thresholds`` fall, so a step that fitted one network mostly fits the next."""
        trials: list[Trial] = []
        known: Scale = None
        too_large = fitting = None
        for stock in self._distinct(thresholds):
            offers = self._offers(stock, known=known)
            known = offers[0].scale if offers else None
            too_large, fitting = (too_large, fitting or stock) if trials or offers else (stock, None)
            trials += offers
        best = self._best(trials)
        if best is None or too_large is None or fitting is None or not self.limits.bound_size:
            return best
        # Only where one of the thresholds will do: what they cannot keep is refused, with figures of theirs.
        return self._best([best, *self._between(too_large, fitting)])

    def _best(self, trials: Sequence[Trial]) -> Trial | None:
        """The first in rank that keeps all limits.

        Errors on the hard examples bound those on all from below, so not all trials need the full look.
        """
        best: Trial | None = None
        judged = self.workshop.judge is not None and not self._smallest_wins
        for trial in sorted(trials, key=lambda trial: trial.wrong_on_hard) if judged else trials:
            if judged and best is not None and best.verdict is not None and trial.wrong_on_hard > best.verdict.wrong:
                break
            if (best is None or self._rank(trial) < self._rank(best)) and self.keeps(trial):
                best = trial
        return best

    def _between(self, too_large: Stock, fitting: Stock) -> list[Trial]:
        """What fits of the cuts between two thresholds, ever nearer to the limit: room that is there is used."""
        trials: list[Trial] = []
        for _ in range(HALVINGS):
            middle = self.workshop.stock(_brief((too_large.plan.threshold + fitting.plan.threshold) / 2))
            if middle.plan.widths == fitting.plan.widths:
                fitting = middle
            elif middle.plan.widths != too_large.plan.widths and (offers := self._offers(middle, known=None)):
                trials += offers
                fitting = middle
            else:
                too_large = middle
        return trials

    @property
    def _smallest_wins(self) -> bool:
        """With nothing but the error limited: of networks that are right enough, nobody wants a larger one."""
        return self.limits.max_error is not None and not self.limits.bound_size

    def _rank(self, trial: Trial) -> tuple[float, ...]:
        if self._smallest_wins:
            return (trial.file_bytes,)
        if trial.verdict is None:
            # Nothing is known of its errors: no coarser than is usual first, then as large as can be.
            return (max(trial.scale or 0.0, UNJUDGED_SCALE), -trial.stock.plan.threshold)
        return (trial.verdict.wrong, trial.verdict.loss)

    def _offers(self, stock: Stock, *, known: Scale) -> list[Trial]:
        """The networks at one threshold with the steps that suit the limits; ``known`` fitted a larger one."""
        limits, rounding = self.limits, self.rounding
        if stock.plan.num_flops > (limits.max_flops or inf):
            return []
        if self._smallest_wins:
            # One by one: errors need not grow with the step, and the coarsest that will do is wanted. Steps finer than
            # are usual may do where floats do.
            finer = () if self.breaks(stock.floats, "max_error") else rounding.finer(stock)
            return list(islice(filter(self.keeps, chain(reversed(rounding.usual(stock)), finer)), 1))
        if limits.max_bytes is None and limits.max_ram_bytes is None:
            return [rounding.harmless(stock)]
        trials = rounding.usual(stock)
        coarser = 0 if known is None else sum((scale or 0.0) > known for scale in rounding.scales)
        finest = _first(trials, self._fits, likely=min(coarser, len(trials) - 1))
        if finest is None:
            return []
        if limits.max_bytes is None:
            # The C form rounds widths up to whole bytes, so finer steps are often free there, and of no use.
            chosen = rounding.harmless(stock)
            return [chosen if self._fits(chosen) else trials[finest]]
        # A coarser step has mostly, not always, the smaller file: the next one may not fit where this one does.
        compared = [trials[finest], *filter(self._fits, trials[finest + 1 : finest + STEPS_COMPARED])]
        finer = rounding.finer(stock) if finest == 0 and rounding.gravely_harms(trials[0]) else ()
        return [*compared, *filter(self._fits, finer)]

    def _fits(self, trial: Trial) -> bool:
        """Whether its file and its memory are within their limits."""
        return not any(
            self.breaks(trial, name) for name in ("max_bytes", "max_ram_bytes") if name in self.limits.promised
        )


def _brief(threshold: float) -> float:
    """A number next to it that takes few bytes in a file."""
    return float(np.float16(threshold)) if abs(threshold) <= LARGEST_HALF else threshold


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
