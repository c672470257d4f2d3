"""What instant emission costs: one hypernetwork against a network trained for each context alone."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from .curves import ALL, pareto, read_on_test
from .equal_error import AtError, quotients, quotients_text
from .load import Results, Run
from .markdown import bullets, document, table
from .methods import TITLES
from .numbers import NOT_RUN, error_text, measure, ratio_text, whole_text
from .paper import Paper
from .table1 import over_seeds

RATIOS = {"ratio_mean": "mean", "ratio_harmonic": "harmonic"}
OURS, ALONE = "bhc-cy", "per-context"
SUMMARY = {
    "pruning, mean": ("pruning_ratio_mean", ratio_text),
    "harmonic": ("pruning_ratio_harmonic", ratio_text),
    "pruned error": ("pruning_error", error_text),
    "with bits, mean": ("bits_ratio_mean", ratio_text),
    "its error": ("bits_error", error_text),
    "file bytes, mean": ("file_bytes_mean", whole_text),
    "file error": ("file_error", error_text),
}
RULES = (
    "Both trained on the same contexts. Errors are test errors in percent pooled over all contexts, one threshold for"
    " all contexts at a time.",
    "At equal error: of each curve the thresholds that no other beats on validation data, read on test data, and"
    " between two of them the logarithm of the ratio in proportion to the error. The same rule reads both curves. The"
    " grid holds the errors that lie on every curve, and our operating point where it does too.",
    "A quotient of 1 is the ratio of networks trained for their context alone; the smallest quotient counts.",
    "Time for a new context: from the context to the network, against training for that context alone. Training time is"
    " the steps of the configuration times the median of what one takes, without evaluation (`experiments/speed.py`).",
)


def per_context(results: Results, paper: Paper) -> str:
    models = [_model(results, paper, model) for model in paper.models_with(ALONE)]
    title = f"# One hypernetwork against training per context on {paper.dataset}"
    return document(title, *models, "## How to read it", bullets(RULES))


def _model(results: Results, paper: Paper, model: str) -> str:
    ours, alone = results.of(model, OURS), results.of(model, ALONE)
    missing = [TITLES[method] for method, runs in ((OURS, ours), (ALONE, alone)) if not runs]
    if missing:
        return document(f"## {paper.title(model)}", f"{NOT_RUN}: {', '.join(missing)}").rstrip()
    rows = {ratio: equal_error_rows(ours, alone, ratio) for ratio in RATIOS}
    limit = paper.limit("equal_error_quotient")
    return document(
        f"## {paper.title(model)}",
        "At the thresholds chosen on validation data:",
        table(["method", *SUMMARY], [_summary(OURS, ours), _summary(ALONE, alone)]),
        "At equal error:",
        _table(rows) if any(rows.values()) else "",
        bullets(f"{RATIOS[ratio]} ratios: {_verdict(found, limit)}" for ratio, found in rows.items()),
        "Time:",
        bullets(_times(results.speeds(model), paper.limit("time_factor"))),
    ).rstrip()


def _summary(method: str, runs: Sequence[Run]) -> list[str]:
    return [TITLES[method], *(over_seeds(runs, key, text) for key, text in SUMMARY.values())]


def equal_error_rows(ours: Sequence[Run], alone: Sequence[Run], ratio: str) -> list[AtError]:
    fronts = [
        [pareto(read_on_test(curves), ratio) for run in runs if (curves := run.trade_off(ALL))]
        for runs in (ours, alone)
    ]
    point = measure(run.summary("pruning_error") for run in ours)
    return quotients(*fronts, ratio=ratio, extra=[] if point is None else [round(point.mean, 2)])


def _table(rows: dict[str, list[AtError]]) -> str:
    header = ["error"]
    for name in RATIOS.values():
        header += [f"{TITLES[OURS]}, {name}", f"{TITLES[ALONE]}, {name}", "quotient"]
    found = {ratio: {row.error: row for row in some} for ratio, some in rows.items()}
    errors = sorted({row.error for some in rows.values() for row in some})
    cells = [[error_text(error), *(_cells(found, error))] for error in errors]
    return table(header, cells)


def _cells(found: dict[str, dict[float, AtError]], error: float) -> list[str]:
    cells = []
    for some in found.values():
        row = some.get(error)
        cells += ["-"] * 3 if row is None else [ratio_text(row.first), ratio_text(row.second), f"{row.quotient:.2f}"]
    return cells


def _verdict(rows: Sequence[AtError], limit: float) -> str:
    if not rows:
        return quotients_text(rows)
    reached = min(row.quotient for row in rows) >= limit - 1e-9
    return f"{'reached' if reached else '**missed**'}: {quotients_text(rows)}; to reach: {limit:g}"


def _times(speeds: Sequence[Mapping[str, Any]], factor: float) -> list[str]:
    """Emission against training, one line for each machine it was timed on."""
    return [line for speed in speeds for line in _timed(speed, factor)] or [f"emission or training time: {NOT_RUN}"]


def _timed(speed: Mapping[str, Any], factor: float) -> list[str]:
    reached = "reached" if speed["times_less"] >= factor else "**missed**"
    return [
        f"a new context, trained on {speed['train_device']}: {reached}: {speed['emit_network_ms']:.1f} ms"
        f" ({speed['emit_device']}) to the pruned network against {speed['context_train_seconds']:,.1f} s of training"
        f" is {whole_text(speed['times_less'])} times less; to reach: {factor:,}. To the bytes of the packed file:"
        f" {speed['emit_file_ms']:.1f} ms, {whole_text(speed['times_less_with_file'])} times less",
        f"break-even there: the hypernetwork's {speed['bhc_train_seconds']:,.1f} s of training are those of"
        f" {ceil(speed['break_even_contexts'] - 1e-9)} contexts trained alone",
    ]
