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

from bhc.emission.candidate import Candidate, CandidateFactory, has_at_most
from bhc.emission.compressed import FINER_SCALES, Float32, Limits, Quantisation, scales_for
from bhc.emission.judge import Judge, Margin
from bhc.emission.origins import Origin, brief
from bhc.errors import BhcError
from bhc.posterior import Family

THRESHOLDS = 13  # tried across the range of an origin
ORDERED_THRESHOLDS = 33  # the same where the first network that is not proved ends it
HALVINGS = 4  # between the smallest network that does not fit and the largest that does
STEPS_COMPARED = 2  # at each threshold: the finest that fits, and as errors do not always grow, the next
UNJUDGED_SCALE = 2.0**-4  # without labelled data: coarser steps are taken only if nothing else fits
SLACK = 0.001  # wrong answers that rounding may add, as a part of all images
GRAVE = 0.01  # so many more, and finer steps than are usual are worth their bytes

Scale = float | None  # None: floats


class Thresholds:
    """Where one context's networks of one origin are cut under given limits, from the largest to the smallest."""

    def __init__(self, factory: CandidateFactory, limits: Limits, origin: Origin) -> None:
        self.factory, self.limits, self.origin = factory, limits, origin

    def inside(self, count: int = THRESHOLDS) -> list[float]:
        """Those of use."""
        return self.origin.inside(count)

    def below(self) -> list[float]:
        return self.origin.below()

    @property
    def tested(self) -> list[float]:
        """Those that are tested where something is to be proved."""
        given = self.limits.threshold
        return self.inside(ORDERED_THRESHOLDS) if given is None else [given]

    def at(self, threshold: float) -> Candidate:
        return self.factory.at(threshold, self.origin)

    def distinct(self, thresholds: Sequence[float]) -> Iterator[Candidate]:
        """What stays at falling thresholds, the same cut only once."""
        known: set[tuple[int, ...]] = set()
        for floats in map(self.at, thresholds):
            if floats.cut.counts not in known:
                known.add(floats.cut.counts)
                yield floats

    def cuts(self) -> Iterator[Candidate]:
        """Every cut that there is, whatever the limits but that on the threshold."""
        if self.limits.threshold is not None:
            return self.distinct([self.limits.threshold])
        return chain(self.distinct(self.inside()), self.distinct(self.below() if self.limits.bound_size else []))


class Rounding:
    """The scales of steps that may be tried, and what is known of their harm."""

    def __init__(self, quantisation: Quantisation, family: Family, judge: Judge | None) -> None:
        self.judge = judge
        self.scales: tuple[Scale, ...] = (None,)
        if not isinstance(quantisation, Float32):
            self.scales = scales_for(family) if quantisation.scale is None else (quantisation.scale,)

    def usual(self, floats: Candidate) -> list[Candidate]:
        """A cut with every usual step, the finest first."""
        return [floats.rounded(scale) for scale in self.scales]

    def finer(self, floats: Candidate) -> list[Candidate]:
        """With finer steps than are usual, the coarsest of them first: for networks that those do harm to."""
        if len(self.scales) == 1:
            return []
        return [floats.rounded(scale) for scale in reversed(FINER_SCALES) if scale < (self.scales[0] or 0.0)]

    def coarsest_first(self, floats: Candidate) -> Iterator[Candidate]:
        """With every step there is."""
        yield from reversed(self.usual(floats))
        yield from self.finer(floats)

    def harmless(self, floats: Candidate) -> Candidate:
        """The coarsest step, of those that are usual, that costs next to nothing against floats; or a finer one."""
        candidates = self.usual(floats)
        if len(candidates) == 1:
            return candidates[0]
        candidates = [candidate for candidate in candidates if (candidate.scale or 0.0) <= floats.origin.coarsest]
        if self.judge is None:
            return candidates[0]  # without labelled data nothing is known to be harmless: the finest
        allowed = floats.wrong_on_hard + self.slack()
        chosen = _last(candidates, lambda candidate: candidate.wrong_on_hard <= allowed) or candidates[0]
        # The hard examples are a quick look; what they let pass is looked at on all.
        while chosen is not candidates[0] and not self._costs_at_most(SLACK, chosen):
            chosen = candidates[candidates.index(chosen) - 1]
        if not self.gravely_harms(chosen):
            return chosen
        finer = self.finer(floats)
        harmless = next((candidate for candidate in finer if self._costs_at_most(SLACK, candidate)), None)
        return harmless or min([chosen, *finer], key=lambda candidate: candidate.error or 0.0)

    def gravely_harms(self, candidate: Candidate) -> bool:
        """Whether rounding costs more than bytes are worth; harm mostly shows on the hard examples, at a quick look."""
        if self.judge is None or candidate.wrong_on_hard <= candidate.floats.wrong_on_hard + self.slack():
            return False
        return not self._costs_at_most(GRAVE, candidate)

    def slack(self, part: float = SLACK) -> int:
        """Wrong answers that rounding may add, given as a part of all images."""
        return 0 if self.judge is None else round(part * self.judge.num_images)

    def _costs_at_most(self, part: float, candidate: Candidate) -> bool:
        """Whether rounding makes at most so large a part of the whole sample wrong that floats have right."""
        floats, slack = candidate.floats, self.slack(part)
        if candidate.verdict is None:
            return True
        if candidate.verdict.wrong <= floats.wrong_on_hard + slack:
            return True  # floats make no fewer errors on all than on the hard examples: they need no full look
        return floats.verdict is None or candidate.verdict.wrong <= floats.verdict.wrong + slack


class Walk:
    """A search among the networks of one origin."""

    def __init__(self, search: "Search", thresholds: Thresholds) -> None:
        self.search, self.thresholds = search, thresholds
        self.limits, self.rounding = search.limits, search.rounding

    def preferred(self) -> Candidate | None:
        """The best of those that a quick look finds; None if it finds none that fits."""
        chosen = self.best_of(self.thresholds.inside())
        if self.limits.bound_size and self._hurts(chosen):
            below = self.best_of(self.thresholds.below())
            return min(filter(None, (chosen, below)), key=self.search.rank, default=None)
        return chosen

    def smallest_within(self, margin: Margin) -> Candidate | None:
        """The smallest that keeps it. Where rounding costs too much, steps are finer, or the network larger."""
        cuts = list(self.thresholds.distinct(self.thresholds.inside()))
        last = _last(cuts, lambda floats: margin.holds(floats.network.graph))
        for floats in reversed(cuts[: 0 if last is None else cuts.index(last) + 1]):
            for candidate in (self.rounding.harmless(floats), *self.rounding.usual(floats)[:1]):
                if margin.holds(candidate.network.graph):
                    return replace(candidate, margin=margin.points)
        return None

    def best_of(self, chosen: Sequence[float]) -> Candidate | None:
        """The best candidate that fits; ``chosen`` fall, so a step that fitted one network mostly fits the next."""
        if self._rounds_last:
            return self._rounded_best(chosen)
        candidates: list[Candidate] = []
        known: Scale = None
        too_large = fitting = None
        for floats in self.thresholds.distinct(chosen):
            offers = self.search.offers(floats, known=known)
            known = offers[0].scale if offers else None
            too_large, fitting = (too_large, fitting or floats) if candidates or offers else (floats, None)
            candidates += offers
        best = self.search.best(candidates)
        if best is None or too_large is None or fitting is None or not self.limits.bound_size or self.search.nested:
            return best
        # Only where one of the thresholds will do: what they cannot keep is refused, with figures of theirs.
        return self.search.best([best, *self._between(too_large, fitting)])

    @property
    def _rounds_last(self) -> bool:
        """Whether cuts are compared as floats and the best is rounded: each look at a large cut counts."""
        limits = self.limits
        return self.search.nested and limits.bound_size and limits.max_bytes is None and limits.max_ram_bytes is None

    def _rounded_best(self, chosen: Sequence[float]) -> Candidate | None:
        best = self.search.best([floats for floats in self.thresholds.distinct(chosen) if fits(floats, self.limits)])
        return None if best is None else self.search.best(self.search.offers(best, known=None))

    def _hurts(self, candidate: Candidate | None) -> bool:
        """Whether the limits are so tight that a cut below the range of an origin might do better."""
        if candidate is None:
            return True
        if candidate.verdict is None:
            return (candidate.scale or 0.0) > UNJUDGED_SCALE
        smallest = self.thresholds.at(self.thresholds.inside()[-1]).floats
        return smallest.verdict is not None and candidate.verdict.wrong > smallest.verdict.wrong + self.rounding.slack()

    def _between(self, too_large: Candidate, fitting: Candidate) -> list[Candidate]:
        """What fits of the cuts between two thresholds, ever nearer to the limit: room that is there is used."""
        candidates: list[Candidate] = []
        for _ in range(HALVINGS):
            middle = self.thresholds.at(brief((too_large.cut.threshold + fitting.cut.threshold) / 2))
            if middle.cut.counts == fitting.cut.counts:
                fitting = middle
            elif middle.cut.counts != too_large.cut.counts and (offers := self.search.offers(middle, known=None)):
                candidates += offers
                fitting = middle
            else:
                too_large = middle
        return candidates


class Search:
    """One context, one set of limits."""

    def __init__(self, factory: CandidateFactory, limits: Limits, quantisation: Quantisation) -> None:
        self.factory, self.limits, self.quantisation = factory, limits, quantisation
        # A threshold that is given is the hypernetwork's.
        origins = factory.origins if limits.threshold is None else (factory.generated,)
        self.thresholds = tuple(Thresholds(factory, limits, origin) for origin in origins)
        self.rounding = Rounding(quantisation, factory.cutter.network.hypernet.family, factory.judge)
        # In runs that know their curvature there are cuts enough: what fits a limit is compared under every looser one.
        self.nested = factory.model.curvature is not None and limits.threshold is None
        self.walks = tuple(Walk(self, thresholds) for thresholds in self.thresholds)
        if limits.max_error is not None and limits.confidence is None and factory.judge is None:
            raise BhcError(
                "max_error needs labelled validation data for this context, and the run has none",
                hint="leave max_error out; for a domain, the run's labelled sample says nothing",
            )

    def under(self, limits: Limits) -> "Search":
        return Search(self.factory, limits, self.quantisation)

    def proposals(self) -> Iterator[Candidate]:
        """Networks to hand out, the preferred first; who asks for another has refused the one before."""
        best, refused = self._preferred(), set[tuple[object, ...]]()
        while True:
            if best is not None:
                yield best
                refused.add(best.name)
            others = (each for each in self.everything() if each.name not in refused)
            best = min(filter(self.keeps, others), key=self.rank, default=None)
            if best is None:
                return

    def everything(self) -> Iterator[Candidate]:
        """Every network that there is under a threshold that may be given, whatever the other limits."""
        for floats in self.cuts():
            yield from self.rounding.coarsest_first(floats)

    def cuts(self) -> Iterator[Candidate]:
        """The same before rounding."""
        return chain.from_iterable(thresholds.cuts() for thresholds in self.thresholds)

    def front(self) -> list[Candidate]:
        """Cuts that are tested where something is to be proved, from the largest to the smallest: of all origins, but
        for those that a smaller one does better than on the validation sample.
        """
        cuts = [floats for own in self.thresholds for floats in own.distinct(own.tested)]
        if len(self.thresholds) == 1:
            return cuts
        best, kept = inf, list[Candidate]()
        for floats in sorted(cuts, key=lambda floats: floats.cut.num_weights):
            wrong = inf if floats.verdict is None else floats.verdict.wrong
            if wrong < best or not kept:
                best = min(best, wrong)
                kept.append(floats)
        return kept[::-1]

    def keeps(self, candidate: Candidate) -> bool:
        return not any(self.breaks(candidate, name) for name in self.limits.promised)

    def breaks(self, candidate: Candidate, name: str) -> bool:
        """Whether the limit of that name does not hold; decided without the figure where that is quicker."""
        limit = self.limits.promised[name]
        if name == "max_bytes":
            return not has_at_most(candidate, int(limit))
        if name == "max_weights":
            return candidate.cut.num_weights > limit
        if name == "max_flops" and candidate.cut.num_flops > limit:
            return True
        if name == "max_error" and candidate.guarantee is None:
            judge = self.factory.judge
            if judge is None or 100 * candidate.wrong_on_hard / judge.num_images > limit:
                return True  # the hard examples alone are too many; most are told by this quick look
        return not candidate.figure(name) <= limit

    def _preferred(self) -> Candidate | None:
        """The best of those that a quick look finds; None if it finds none that fits."""
        if self.limits.threshold is not None:
            return self.walks[0].best_of([self.limits.threshold])
        if not self.limits.searched:
            return self._default()
        return min(filter(None, (walk.preferred() for walk in self.walks)), key=self.rank, default=None)

    def _default(self) -> Candidate | None:
        """Where nothing is asked for: the smallest network that is as good as the original; the run's own threshold
        where a run knows no curvature, or nobody can tell.
        """
        judge, floats = self.factory.judge, self.thresholds[0].at(self.factory.model.default_threshold)
        if len(self.thresholds) == 1 or judge is None or judge.base_logits is None:
            return self.rounding.harmless(floats)
        margin = Margin.of(judge, self.limits.margin)
        if margin is None:
            return self.rounding.harmless(floats)
        found = [walk.smallest_within(margin) for walk in self.walks]
        return min(filter(None, found), key=lambda candidate: candidate.cut.num_weights, default=None)

    def best(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """The first in rank that keeps all limits.

        Errors on the hard examples bound those on all from below, so not all candidates need the full look.
        """
        best: Candidate | None = None
        judged = self.factory.judge is not None and not self._smallest_wins
        for candidate in sorted(candidates, key=lambda candidate: candidate.wrong_on_hard) if judged else candidates:
            most = inf if best is None or best.verdict is None else best.verdict.wrong
            if judged and candidate.wrong_on_hard > most:
                break
            if (best is None or self.rank(candidate) < self.rank(best)) and self.keeps(candidate):
                best = candidate
        return best

    @property
    def _smallest_wins(self) -> bool:
        """With nothing but the error limited: of networks that are right enough, nobody wants a larger one."""
        return self.limits.max_error is not None and not self.limits.bound_size

    def rank(self, candidate: Candidate) -> tuple[float, ...]:
        if self._smallest_wins:
            return (candidate.file_bytes,)
        if candidate.verdict is None:
            # Nothing is known of its errors: no coarser than is usual first, then as large as can be.
            return (max(candidate.scale or 0.0, UNJUDGED_SCALE), -candidate.cut.threshold)
        return (candidate.verdict.wrong, candidate.verdict.loss)

    def offers(self, floats: Candidate, *, known: Scale) -> list[Candidate]:
        """The networks at one threshold with the steps that suit the limits; ``known`` fitted a larger one."""
        limits, rounding = self.limits, self.rounding
        if not fits(floats, limits):
            return []
        if self._smallest_wins:
            # One by one: errors need not grow with the step, and the coarsest that will do is wanted. Steps finer than
            # are usual may do where floats do.
            finer = () if self.breaks(floats, "max_error") else rounding.finer(floats)
            return list(islice(filter(self.keeps, chain(reversed(rounding.usual(floats)), finer)), 1))
        if limits.max_bytes is None and limits.max_ram_bytes is None:
            return [rounding.harmless(floats)]
        candidates = rounding.usual(floats)
        coarser = 0 if known is None else sum((scale or 0.0) > known for scale in rounding.scales)
        finest = _first(candidates, self._fits, likely=min(coarser, len(candidates) - 1))
        if finest is None:
            return []
        if limits.max_bytes is None:
            # The C form rounds widths up to whole bytes, so finer steps are often free there, and of no use.
            chosen = rounding.harmless(floats)
            return [chosen if self._fits(chosen) else candidates[finest]]
        # A coarser step has mostly, not always, the smaller file: the next one may not fit where this one does.
        others = candidates[finest + 1 :] if self.nested else candidates[finest + 1 : finest + STEPS_COMPARED]
        compared = [candidates[finest], *filter(self._fits, others)]
        finer = rounding.finer(floats) if finest == 0 and rounding.gravely_harms(candidates[0]) else ()
        return [*compared, *filter(self._fits, finer)]

    def _fits(self, candidate: Candidate) -> bool:
        return not any(
            self.breaks(candidate, name) for name in ("max_bytes", "max_ram_bytes") if name in self.limits.promised
        )


def fits(floats: Candidate, limits: Limits) -> bool:
    """Whether a cut is small enough for what is limited of cuts."""
    cut = floats.cut
    return cut.num_flops <= (limits.max_flops or inf) and cut.num_weights <= (limits.max_weights or inf)


def _first(candidates: Sequence[Candidate], good: Callable[[Candidate], bool], *, likely: int) -> int | None:
    """The place of the first good one, where all after a good one are good; None if there is none.

    Looks at the place that is ``likely`` from the end first, and goes on from there in steps that double.
    """
    low, high = 0, len(candidates) - 1
    start, jump = high - likely, 1
    if not good(candidates[start]):
        if start == high or not good(candidates[high]):
            return None
        low = start + 1
    else:
        high = start
        while high > low and good(candidates[max(high - jump, low)]):
            high, jump = max(high - jump, low), 2 * jump
        low = max(high - jump + 1, low)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if good(candidates[middle]) else (middle + 1, high)
    return high


def _last(candidates: Sequence[Candidate], good: Callable[[Candidate], bool]) -> Candidate | None:
    """The last good one, where all before a good one are good; None if there is none."""
    low, high = -1, len(candidates) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(candidates[middle]) else (low, middle - 1)
    return candidates[low] if low >= 0 else None
