"""Which steps the weights of a cut network are rounded with, by the harm that it does on the validation sample."""

from collections.abc import Callable, Iterator, Sequence

from bhc.emission.judge import Judge
from bhc.emission.quantisation import FINER_SCALES, Float32, Quantisation, scales_for
from bhc.emission.trial import Stock, Trial
from bhc.posterior import Family

SLACK = 0.001  # wrong answers that rounding may add, as a part of all images
GRAVE = 0.01  # so many more, and finer steps than are usual are worth their bytes
COARSEST_USUAL = 2.0**-1  # most often six scales from 2^-6: three looks find the right one

Scale = float | None  # None: floats


class Rounding:
    """The scales of steps that may be tried, and what is known of their harm."""

    def __init__(self, quantisation: Quantisation, family: Family, judge: Judge | None) -> None:
        self.judge = judge
        self.scales: tuple[Scale, ...] = (None,)
        if not isinstance(quantisation, Float32):
            self.scales = scales_for(family) if quantisation.scale is None else (quantisation.scale,)

    def usual(self, stock: Stock) -> list[Trial]:
        """A cut with every usual step, the finest first."""
        return [stock.trial(scale) for scale in self.scales]

    def finer(self, stock: Stock) -> list[Trial]:
        """With finer steps than are usual, the coarsest of them first: for networks that those do harm to."""
        if len(self.scales) == 1:
            return []
        return [stock.trial(scale) for scale in reversed(FINER_SCALES) if scale < (self.scales[0] or 0.0)]

    def coarsest_first(self, stock: Stock) -> Iterator[Trial]:
        """With every step there is."""
        yield from reversed(self.usual(stock))
        yield from self.finer(stock)

    def harmless(self, stock: Stock) -> Trial:
        """The coarsest step, of those that are usual, that costs next to nothing against floats; or a finer one."""
        trials = self.usual(stock)
        if len(trials) == 1:
            return trials[0]
        trials = [trial for trial in trials if (trial.scale or 0.0) <= COARSEST_USUAL]
        if self.judge is None:
            return trials[0]  # without labelled data nothing is known to be harmless: the finest
        allowed = stock.floats.wrong_on_hard + self.slack()
        chosen = _last(trials, lambda trial: trial.wrong_on_hard <= allowed) or trials[0]
        # The hard examples are a quick look; what they let pass is looked at on all.
        while chosen is not trials[0] and not self._costs_at_most(SLACK, chosen):
            chosen = trials[trials.index(chosen) - 1]
        if not self.gravely_harms(chosen):
            return chosen
        finer = self.finer(stock)
        harmless = next((trial for trial in finer if self._costs_at_most(SLACK, trial)), None)
        return harmless or min([chosen, *finer], key=lambda trial: trial.error or 0.0)

    def gravely_harms(self, trial: Trial) -> bool:
        """Whether rounding costs more than bytes are worth; harm mostly shows on the hard examples, at a quick look."""
        if self.judge is None or trial.wrong_on_hard <= trial.stock.floats.wrong_on_hard + self.slack():
            return False
        return not self._costs_at_most(GRAVE, trial)

    def slack(self, part: float = SLACK) -> int:
        """Wrong answers that rounding may add, given as a part of all images."""
        return 0 if self.judge is None else round(part * self.judge.num_images)

    def _costs_at_most(self, part: float, trial: Trial) -> bool:
        """Whether rounding makes at most so large a part of the whole sample wrong that floats have right."""
        floats, slack = trial.stock.floats, self.slack(part)
        if trial.verdict is None:
            return True
        if trial.verdict.wrong <= floats.wrong_on_hard + slack:
            return True  # floats make no fewer errors on all than on the hard examples: they need no full look
        return floats.verdict is None or trial.verdict.wrong <= floats.verdict.wrong + slack


def _last(trials: Sequence[Trial], good: Callable[[Trial], bool]) -> Trial | None:
    """The last good one, where all before a good one are good; None if there is none."""
    low, high = -1, len(trials) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(trials[middle]) else (low, middle - 1)
    return trials[low] if low >= 0 else None
