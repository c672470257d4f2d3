"""From a context to a runnable network, its file and its report."""

import time
import warnings
from dataclasses import replace

from bhc.contexts import Context
from bhc.emission.admission import admitted
from bhc.emission.compressed import Compressed
from bhc.emission.limits import Limits
from bhc.emission.plan import Cutter
from bhc.emission.precision import Precision, VarianceBits
from bhc.emission.search import Search
from bhc.emission.trial import Workshop
from bhc.emission.watch import Watch
from bhc.training import TrainedModel


class ThresholdWarning(UserWarning):
    """A network was emitted at a threshold that consolidation did not cover."""


class DomainWarning(UserWarning):
    """A network was emitted for a domain far from all that training has seen."""


def emit(
    model: TrainedModel,
    context: Context,
    *,
    limits: Limits | None = None,
    precision: Precision | None = None,
    watch: Watch | None = None,
    cutter: Cutter | None = None,
) -> Compressed:
    """The network for ``context`` that keeps the limits: scales, cut, only the kept weights, steps, file.

    With a ``watch`` it flags inputs outside the context. ``cutter`` is that of the context, where there is one already.
    """
    limits, precision = limits or Limits(), precision or VarianceBits()
    began = time.perf_counter()
    workshop = Workshop(model, cutter or Cutter(model.network, context), watch)
    try:
        trial = admitted(Search(workshop, limits, precision))
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
