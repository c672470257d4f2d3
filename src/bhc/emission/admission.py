"""The one door that every emitted network goes through, and what is said where none may.

As the last act, what is about to be handed out is held against every limit by the real thing: the bytes of its file,
the FLOPs counted on it, its wrong answers, its latency measured anew. Where nothing may pass, the refusal names
figures of networks that were really made, and it names them only after the same door has let a network through that
was asked for with just these figures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from bhc.emission.guarantee import MORE_IMAGES
from bhc.emission.limits import Limits
from bhc.emission.search import Search
from bhc.emission.trial import Trial
from bhc.errors import BhcError

UNITS = {
    "max_bytes": "bytes",
    "max_flops": "FLOPs",
    "max_ram_bytes": "bytes in its C form",
    "max_error": "% error",
    "max_latency_ms": "ms latency",
}
LATENCY_MARGIN = 1.5  # times vary: what is named as reachable has to be reached again
TRIES = 6  # at figures that hang on each other, such as a guarantee and the bytes that it takes

Figures = dict[str, float]  # by the names of their limits


def admitted(search: Search) -> Trial:
    """The network to hand out, or an error that says how near to the limits one can come."""
    found = _first_admitted(search)
    if found is None:
        raise (_refusal if search.limits.confidence is None else _unproved)(search)
    return found


def _first_admitted(search: Search) -> Trial | None:
    limits = search.limits
    return next((trial for trial in search.proposals() if not limits.broken_by(_final_figures(trial, limits))), None)


def _final_figures(trial: Trial, limits: Limits) -> Figures:
    """What is limited, of the network as it is about to be handed out."""
    assert (trial.guarantee is None) == (limits.confidence is None)
    trial.forget()
    if limits.max_latency_ms is not None:
        trial.stock.measure_latency()
    return {name: trial.figure(name) for name in limits.promised}


def _refusal(search: Search) -> BhcError:
    """Name the limit that cannot be kept beside the others, and the nearest figure that can."""
    limits, whose = search.limits, _whose(search)
    singles = [relaxed for relaxed in _single_relaxations(search) if _holds(search, relaxed)]
    if singles:
        (name, figure), *_ = singles[0].items()
        lowest = "lowest" if name == "max_error" else "smallest"
        within = " within the other limits" if len(limits.promised) > 1 else ""
        margin = f", {LATENCY_MARGIN:g} times what was measured, as times vary" if name == "max_latency_ms" else ""
        return BhcError(
            f"{whose} has at most {_amount(limits, name)}{within}; the {lowest} that can be reached is"
            f" {_number(name, figure)}{' %' if name == 'max_error' else ''}{margin}",
            hint=f"ask for {' or more, or for '.join(map(_as_asked, singles))} or more",
        )
    nearest = next((relaxed for relaxed in _joint_relaxations(search) if _holds(search, relaxed)), None)
    busy = ", or try again when the machine is less busy" if "max_latency_ms" in limits.promised else ""
    if nearest is None:
        return BhcError(f"{whose} keeps all limits at once", hint=f"loosen some of them{busy}")
    return BhcError(
        f"{whose} keeps all limits at once; the nearest has {_list(nearest)}",
        hint=f"ask for {_as_asked(nearest)} or more{busy}",
    )


def _single_relaxations(search: Search) -> Iterator[Figures]:
    """One figure each, that of a network which keeps all other limits: the lowest there is."""
    lowest: Figures = {}
    for trial in search.everything():
        broken = _first_two_broken(search, trial)
        if len(broken) == 1 and _is_lower(trial, broken[0], lowest):
            lowest[broken[0]] = trial.figure(broken[0])
    yield from ({name: _rounded(name, lowest[name])} for name in UNITS if name in lowest)


def _first_two_broken(search: Search, trial: Trial) -> list[str]:
    broken: list[str] = []
    for name in search.limits.promised:
        if search.breaks(trial, name):
            broken.append(name)
        if len(broken) == 2:
            break
    return broken


def _is_lower(trial: Trial, name: str, lowest: Figures) -> bool:
    """Whether a figure is under the lowest so far; a quick look spares most networks from being finished for it."""
    if name not in lowest:
        return True
    if name == "max_bytes" and not trial.has_at_most(int(lowest[name]) - 1):
        return False
    return trial.figure(name) < lowest[name]


def _joint_relaxations(search: Search) -> Iterator[Figures]:
    """What is over the limits of networks with the coarsest steps, the nearest to all limits first."""
    limits = search.limits
    broken: list[Figures] = []
    for stock in search.stocks():
        trial = stock.trial(search.rounding.scales[-1])
        over = limits.broken_by({name: trial.figure(name) for name in limits.promised})
        broken += [{name: _rounded(name, figure) for name, figure in over.items()}] if over else []
    return iter(sorted(broken, key=lambda over: max(over[name] / limits.promised[name] for name in over)))


def _holds(search: Search, relaxed: Figures) -> bool:
    """Whether these figures in the place of their limits get a network through the door."""
    return _first_admitted(search.under(replace(search.limits, **relaxed))) is not None  # type: ignore[arg-type]


def _unproved(search: Search) -> BhcError:
    """Why nothing is proved, and what can be."""
    calibration, context = search.calibration(), search.workshop.cutter.context
    largest = next(search.in_order(calibration.longest), None)
    relaxed = _provable(search)
    asking = "" if relaxed is None else f"ask for {_as_asked(relaxed)} or more"
    if not calibration.proves(0):
        return BhcError(
            f"{calibration.guarantee(0).promise} takes {calibration.images_needed:,} calibration images of {context}"
            f" without a mistake, and there are {calibration.judge.num_images:,}",
            hint="; ".join(filter(None, (MORE_IMAGES, asking))),
        )
    if largest is None:
        smallest = replace(
            search.rounding.harmless(search.workshop.stock(search.order[-1])), guarantee=calibration.longest
        )
        sizes = {
            name: smallest.figure(name) for name in UNITS if name in search.limits.promised and name != "max_error"
        }
        return BhcError(
            f"no network for {context} keeps the other limits with weights that are rounded without harm; the"
            f" smallest has {_list(sizes)}",
            hint="a guarantee is given for such networks alone: "
            + (asking or "loosen the other limits")
            + ", or leave confidence out",
        )
    wrong = calibration.wrong_of(largest.network.graph)
    return BhcError(
        f"the largest network answers {wrong:,} of {calibration.judge.num_images:,} calibration images wrong, which"
        f" does not prove {calibration.guarantee(wrong).promise}",
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
            return {
                name: limits.promised[name]
                for name in limits.promised
                if limits.promised[name] != search.limits.promised[name]
            }
        calibration = trying.calibration()
        largest = next(trying.in_order(calibration.longest), None)
        if largest is None:
            smallest = trying.rounding.harmless(trying.workshop.stock(trying.order[-1]))
            finished = replace(smallest, guarantee=calibration.longest)
            over = limits.broken_by({name: finished.figure(name) for name in limits.promised})
        else:
            error = calibration.lowest_error(calibration.wrong_of(largest.network.graph))
            over = {} if error is None else {"max_error": error}
        if not over:
            return None
        limits = replace(limits, **{name: _rounded(name, figure) for name, figure in over.items()})  # type: ignore[arg-type]
    return None


def _whose(search: Search) -> str:
    threshold = search.limits.threshold
    return f"no network for {search.workshop.cutter.context}" + (
        "" if threshold is None else f" at threshold {threshold:g}"
    )


def _rounded(name: str, figure: float) -> float:
    """As it is named: errors and times to three decimals, upwards, for what is named has to be reached again."""
    if name not in ("max_error", "max_latency_ms"):
        return figure
    if name == "max_latency_ms":
        figure *= LATENCY_MARGIN
    thousandths = ceil(figure * 1e3)
    return (thousandths if thousandths / 1e3 >= figure else thousandths + 1) / 1e3


def _number(name: str, figure: float) -> str:
    return f"{figure:g}" if name == "max_error" else f"{figure:,}"


def _amount(limits: Limits, name: str) -> str:
    return f"{_number(name, limits.promised[name])} {UNITS[name]}"


def _list(figures: Figures) -> str:
    return _joined([f"{_number(name, figure)} {UNITS[name]}" for name, figure in figures.items()])


def _as_asked(figures: Figures) -> str:
    return _joined(
        [f"{name}={figure:g}" if name == "max_error" else f"{name}={figure}" for name, figure in figures.items()]
    )


def _joined(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
