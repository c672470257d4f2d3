"""From a request to a runnable network, its file and its report: one, or many at once."""

import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from bhc.contexts import Context
from bhc.emission.admission import admitted
from bhc.emission.compressed import Compressed
from bhc.emission.limits import Limits
from bhc.emission.plan import Cutter
from bhc.emission.quantisation import Quantisation, VarianceBits
from bhc.emission.search import Search
from bhc.emission.trial import Workshop
from bhc.emission.watch import Watch
from bhc.errors import BhcError
from bhc.training import TrainedModel

CHUNK = 256  # contexts whose scales are in memory at once


class ThresholdWarning(UserWarning):
    """A network was emitted at a threshold that consolidation did not cover."""


class DomainWarning(UserWarning):
    """A network was emitted for a domain far from all that training has seen."""


@dataclass(frozen=True)
class Request:
    """A network that is asked for."""

    context: Context
    limits: Limits = field(default_factory=Limits)
    quantisation: Quantisation = field(default_factory=VarianceBits)
    watch: Watch | None = None


def emit(model: TrainedModel, request: Request, *, cutter: Cutter | None = None) -> Compressed:
    """The network for a context that keeps the limits: scales, cut, only the kept weights, steps, file.

    With a ``watch`` it flags inputs outside the context. ``cutter`` is that of the context, where there is one already.
    """
    context, limits = request.context, request.limits
    began = time.perf_counter()
    workshop = Workshop(model, cutter or Cutter(model.network, context), request.watch)
    try:
        trial = admitted(Search(workshop, limits, request.quantisation))
        report = replace(
            trial.report,
            file_bytes=trial.file_bytes,
            ece_before=trial.ece_before,
            ece=trial.ece,
            flag_outside=None if trial.alarm is None else trial.alarm.rate,
            outside_auroc=trial.outside_auroc,
            emit_ms=1e3 * (time.perf_counter() - began),
            latency_ms=None if limits.max_latency_ms is None else trial.stock.latency_ms,
            domain_distance=None if model.domains is None else model.domains.distance(context, model.network.space),
        )
    finally:
        # Cuts and their roundings refer to each other: nothing large may wait with them for the garbage collector.
        if workshop.judge is not None:
            workshop.judge.let_go()
    for note, kind in ((report.threshold_note, ThresholdWarning), (report.domain_note, DomainWarning)):
        if note is not None:
            warnings.warn(note, kind, stacklevel=3)
    return Compressed(trial.finished, report, trial.content)


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
