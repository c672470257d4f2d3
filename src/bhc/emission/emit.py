"""From a request to a runnable network, its file and its report: one, or many at once.

Every emitted network passes one check. As the last act, what is about to be handed out is held against every limit by
the real thing: the bytes of its file, the FLOPs counted on it, its wrong answers, its latency measured anew. Where
nothing passes, the refusal names figures of networks that were really made, and only after the same check has passed a
network that was asked for with just these figures.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import ceil, inf

from bhc.contexts import Context
from bhc.emission.candidate import Candidate, CandidateFactory, has_at_most, report_of, sizes_without_multiples
from bhc.emission.compressed import Compressed, Limits, Request
from bhc.emission.cut import Cutter
from bhc.emission.guarantee import MORE_IMAGES, Calibration, Guarantee
from bhc.emission.report import Report
from bhc.emission.search import Search
from bhc.errors import BhcError, warn
from bhc.training import TrainedModel

CHUNK = 256  # contexts whose scales are in memory at once
UNITS = {
    "max_bytes": "bytes",
    "max_weights": "weights",
    "max_flops": "FLOPs",
    "max_ram_bytes": "bytes in its C form",
    "max_error": "% error",
    "max_latency_ms": "ms latency",
}
LATENCY_MARGIN = 1.5  # times vary: what is named as reachable has to be reached again
TRIES = 6  # at figures that hang on each other, such as a guarantee and the bytes that it takes

Figures = dict[str, float]  # by the names of their limits


class ThresholdWarning(UserWarning):
    """A network was emitted at a threshold that consolidation did not cover."""


class DomainWarning(UserWarning):
    """A network was emitted for a domain far from all that training has seen."""


def emit(model: TrainedModel, request: Request, *, cutter: Cutter | None = None) -> Compressed:
    """The network for a context that keeps the limits: scales, cut, only the kept weights, steps, file.

    With ``alarm_samples`` it flags inputs outside the context. ``cutter`` is one of the context, if there is one.
    """
    context, limits = request.context, request.limits
    began = time.perf_counter()
    cutter = (cutter or Cutter(model.network, context)).rounded_to(request.multiples)
    factory = CandidateFactory(model, cutter, request.alarm_samples)
    try:
        candidate = admitted(Search(factory, limits, request.quantisation))
        report = report_of(candidate)
        report = replace(
            report,
            emit_ms=1e3 * (time.perf_counter() - began),
            latency_ms=None if limits.max_latency_ms is None else factory.latency_ms(candidate),
            domain_distance=None if model.domains is None else model.domains.distance(context, model.network.space),
            without_multiples=sizes_without_multiples(candidate),
        )
    finally:
        # The factory and its judge may wait for the garbage collector: nothing large may wait with them.
        if factory.judge is not None:
            factory.judge.let_go()
    for note, kind in ((report.threshold_note, ThresholdWarning), (report.domain_note, DomainWarning)):
        if note is not None:
            warn(note, kind)
    return Compressed(candidate.finished, report, candidate.content)


def as_floats(model: TrainedModel, context: Context, report: Report) -> Compressed:
    """The network of a report before its weights were rounded."""
    factory = CandidateFactory(model, Cutter(model.network, context))
    candidate = factory.at(report.threshold, factory.origin(report.origin))
    return Compressed(candidate.finished, report_of(candidate), candidate.content)


def emit_many(
    model: TrainedModel, requests: Iterable[Request | BhcError], *, chunk: int = CHUNK
) -> Iterator[Compressed | BhcError]:
    """For each request, in order, the network that ``emit`` gives for it, or why there is none.

    A request that was already found to be wrong stands as its error. Not more than ``chunk`` requests are taken before
    their networks are handed out.
    """
    if chunk < 1:
        raise BhcError(f"a chunk has at least one context, given {chunk}")
    waiting = iter(requests)
    while part := list(islice(waiting, chunk)):
        sound = [request for request in part if isinstance(request, Request)]
        cutters = iter(Cutter.many(model.network, [request.context for request in sound]))
        for request in part:
            yield request if isinstance(request, BhcError) else _outcome(model, request, next(cutters))


def _outcome(model: TrainedModel, request: Request, cutter: Cutter) -> Compressed | BhcError:
    try:
        return emit(model, request, cutter=cutter)
    except BhcError as error:
        return error


def admitted(search: Search) -> Candidate:
    """The network to hand out, or an error that says how near to the limits one can come."""
    found = _first_admitted(search)
    if found is None:
        raise (_refusal if search.limits.confidence is None else _unproved)(search)
    return found


def _first_admitted(search: Search) -> Candidate | None:
    limits = search.limits
    proposals = search.proposals() if limits.confidence is None else _proved(search)
    return next((candidate for candidate in proposals if not limits.broken_by(_final_figures(candidate, limits))), None)


def _final_figures(candidate: Candidate, limits: Limits) -> Figures:
    """What is limited, of the network as it is about to be handed out."""
    assert (candidate.guarantee is None) == (limits.confidence is None)
    candidate.factory.forget(candidate)
    if limits.max_latency_ms is not None:
        candidate.factory.latency_ms(candidate, anew=True)
    return {name: candidate.figure(name) for name in limits.promised}


def in_order(search: Search, longest: Guarantee) -> Iterator[Candidate]:
    """From the largest network to the smallest, those that keep every limit but the error, with harmless steps.

    Calibration images are not looked at, so the order is fixed for them. A file must have room for ``longest``.
    """
    for floats in search.front():
        if floats.cut.num_flops <= (search.limits.max_flops or inf):
            candidate = search.rounding.harmless(floats)
            if search.keeps(candidate.rounded(candidate.scale, longest)):
                yield candidate


def _calibration(search: Search) -> Calibration:
    model, context, limits = search.factory.model, search.factory.cutter.context, search.limits
    assert limits.max_error is not None
    assert limits.confidence is not None
    return Calibration.of(model, context, max_error=float(limits.max_error), confidence=float(limits.confidence))


def _proved(search: Search) -> Iterator[Candidate]:
    """The smallest network that keeps the error on new data, as far as calibration images can tell, if there is one."""
    calibration = _calibration(search)
    if calibration.proves(0):
        order = in_order(search, calibration.longest)
        found = calibration.last_proved(order, lambda candidate: candidate.network.graph)
        if found is not None:
            yield found[0].rounded(found[0].scale, found[1])


def _smallest(search: Search, calibration: Calibration) -> Candidate:
    """The last of the order, with room for the longest guarantee."""
    *_, floats = search.front()
    last = search.rounding.harmless(floats)
    return last.rounded(last.scale, calibration.longest)


def _refusal(search: Search) -> BhcError:
    """Name the limit that cannot be kept beside the others, and the nearest figure that can."""
    limits, context = search.limits, search.factory.cutter.context
    whose = f"no network for {context}" + ("" if limits.threshold is None else f" at threshold {limits.threshold:g}")
    multiples = search.factory.cutter.multiples
    whose += "" if multiples is None else f" with channels in multiples {multiples}"
    singles = [relaxed for relaxed in _single_relaxations(search) if _holds(search, relaxed)]
    if singles:
        (name, figure), *_ = singles[0].items()
        lowest = "lowest" if name == "max_error" else "smallest"
        within = " within the other limits" if len(limits.promised) > 1 else ""
        margin = f", {LATENCY_MARGIN:g} times what was measured, as times vary" if name == "max_latency_ms" else ""
        return BhcError(
            f"{whose} has at most {_list({name: limits.promised[name]})}{within}; the {lowest} that can be reached is"
            f" {_number(name, figure)}{' %' if name == 'max_error' else ''}{margin}",
            hint=f"ask for {' or more, or for '.join(map(_as_request, singles))} or more",
        )
    nearest = next((relaxed for relaxed in _joint_relaxations(search) if _holds(search, relaxed)), None)
    busy = ", or try again when the machine is less busy" if "max_latency_ms" in limits.promised else ""
    if nearest is None:
        return BhcError(f"{whose} keeps all limits at once", hint=f"loosen some of them{busy}")
    return BhcError(
        f"{whose} keeps all limits at once; the nearest has {_list(nearest)}",
        hint=f"ask for {_as_request(nearest)} or more{busy}",
    )


def _single_relaxations(search: Search) -> Iterator[Figures]:
    """One figure each, that of a network which keeps all other limits: the lowest there is."""
    lowest: Figures = {}
    for candidate in search.everything():
        broken = list(islice((name for name in search.limits.promised if search.breaks(candidate, name)), 2))
        if len(broken) == 1 and _is_lower(candidate, broken[0], lowest):
            lowest[broken[0]] = candidate.figure(broken[0])
    yield from ({name: _rounded(name, lowest[name])} for name in UNITS if name in lowest)


def _is_lower(candidate: Candidate, name: str, lowest: Figures) -> bool:
    """Whether a figure is under the lowest so far; a quick look spares most networks from being finished for it."""
    if name not in lowest:
        return True
    if name == "max_bytes" and not has_at_most(candidate, int(lowest[name]) - 1):
        return False
    return candidate.figure(name) < lowest[name]


def _joint_relaxations(search: Search) -> Iterator[Figures]:
    """What is over the limits of networks with the coarsest steps, the nearest to all limits first."""
    limits = search.limits
    broken: list[Figures] = []
    for floats in search.cuts():
        candidate = floats.rounded(search.rounding.scales[-1])
        over = limits.broken_by({name: candidate.figure(name) for name in limits.promised})
        broken += [{name: _rounded(name, figure) for name, figure in over.items()}] if over else []
    return iter(sorted(broken, key=lambda over: max(over[name] / limits.promised[name] for name in over)))


def _holds(search: Search, relaxed: Figures) -> bool:
    """Whether a network passes with these figures in the place of their limits."""
    return _first_admitted(search.under(replace(search.limits, **relaxed))) is not None  # type: ignore[arg-type]


def _unproved(search: Search) -> BhcError:
    """Why nothing is proved, and what can be."""
    calibration, context = _calibration(search), search.factory.cutter.context
    largest = next(in_order(search, calibration.longest), None)
    relaxed = _provable(search)
    asking = "" if relaxed is None else f"ask for {_as_request(relaxed)} or more"
    if not calibration.proves(0):
        return BhcError(
            f"{calibration.guarantee(0).promise} takes {calibration.images_needed:,} calibration images of {context}"
            f" without a mistake, and there are {calibration.judge.num_images:,}",
            hint="; ".join(filter(None, (MORE_IMAGES, asking))),
        )
    if largest is None:
        smallest = _smallest(search, calibration)
        sizes = {name: smallest.figure(name) for name in UNITS if name in {*search.limits.promised} - {"max_error"}}
        return BhcError(
            f"no network for {context} keeps the other limits with weights that are rounded without harm; the"
            f" smallest has {_list(sizes)}",
            hint="a guarantee is given for such networks alone: "
            + (asking or "loosen the other limits")
            + ", or leave confidence out",
        )
    wrong, images = calibration.wrong_of(largest.network.graph), calibration.judge.num_images
    said = f"answers {wrong:,} of {images:,} calibration images wrong"
    if not calibration.judge.task.counts_mistakes:
        said = f"has {100 * wrong / images:.4g} % error on {images:,} calibration examples"
    return BhcError(
        f"the largest network {said}, which does not prove {calibration.guarantee(wrong).promise}",
        hint=f"{asking}, or {MORE_IMAGES}" if asking else MORE_IMAGES,
    )


def _provable(search: Search) -> Figures | None:
    """Limits in the place of those given under which something is proved.

    A guarantee takes bytes of its file, and which error can be proved hangs on which networks fit: it is tried until
    both agree.
    """
    limits = search.limits
    for _ in range(TRIES):
        trying = search.under(limits)
        if _first_admitted(trying) is not None:
            given = search.limits.promised
            return {name: figure for name, figure in limits.promised.items() if figure != given[name]}
        calibration = _calibration(trying)
        largest = next(in_order(trying, calibration.longest), None)
        if largest is None:
            smallest = _smallest(trying, calibration)
            over = limits.broken_by({name: smallest.figure(name) for name in limits.promised})
        else:
            error = calibration.lowest_error(calibration.wrong_of(largest.network.graph))
            over = {} if error is None else {"max_error": error}
        if not over:
            return None
        limits = replace(limits, **{name: _rounded(name, figure) for name, figure in over.items()})  # type: ignore[arg-type]
    return None


def _rounded(name: str, figure: float) -> float:
    """As it is named: errors and times to three decimals, upwards, for what is named has to be reached again."""
    if name not in ("max_error", "max_latency_ms"):
        return figure
    figure *= LATENCY_MARGIN if name == "max_latency_ms" else 1
    thousandths = ceil(figure * 1e3)
    return (thousandths if thousandths / 1e3 >= figure else thousandths + 1) / 1e3


def _number(name: str, figure: float) -> str:
    return f"{figure:g}" if name == "max_error" else f"{figure:,}"


def _list(figures: Figures) -> str:
    return _joined([f"{_number(name, figure)} {UNITS[name]}" for name, figure in figures.items()])


def _as_request(figures: Figures) -> str:
    return _joined(
        [f"{name}={figure:g}" if name == "max_error" else f"{name}={figure}" for name, figure in figures.items()]
    )


def _joined(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
