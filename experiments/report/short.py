"""The short table of the README."""

from collections.abc import Sequence

from .load import Results, Run
from .markdown import document, table
from .methods import TITLES
from .numbers import NOT_RUN, Text, error_text, mean_of, measure, ratio_text, whole_text
from .paper import Paper
from .table1 import printed_text

METHODS = ("sparsevd", "bc-gnj", "bc-ghs", "bc-io-gnj", "bhc-cx-domain", "bhc-cy")
HEADER = [
    "network",
    "method",
    "paper: pruning (error)",
    "ours: pruning, mean / harmonic (error)",
    "paper: with bits (error)",
    "ours: with bits (error)",
    "ours: file bytes (error)",
]


def short(results: Results, paper: Paper) -> str:
    rows = [_row(results, paper, model, method) for model in paper.models for method in paper.methods(model, METHODS)]
    note = "Times smaller, test error in percent, means over contexts and seeds. More in [table1.md](table1.md)."
    return document(table(HEADER, rows), note)


def _row(results: Results, paper: Paper, model: str, method: str) -> list[str]:
    runs = results.of(model, method)
    pruning, bits = (printed_text(paper, model, method, column) for column in ("pruning", "bits"))
    names = [paper.title(model), TITLES[method]]
    if not runs:
        return [*names, pruning, NOT_RUN, bits, NOT_RUN, NOT_RUN]
    kinds = ("pruning_ratio_mean", "pruning_ratio_harmonic", "bits_ratio_mean")
    ratios = [_mean(runs, key, ratio_text) for key in kinds]
    errors = [_mean(runs, key, error_text) for key in ("pruning_error", "bits_error", "file_error")]
    size = _mean(runs, "file_bytes_mean", whole_text)
    return [
        *names,
        pruning,
        f"{ratios[0]} / {ratios[1]} ({errors[0]})",
        bits,
        f"{ratios[2]} ({errors[1]})",
        f"{size} ({errors[2]})",
    ]


def _mean(runs: Sequence[Run], key: str, text: Text) -> str:
    return text(mean_of(measure(run.summary(key) for run in runs)))
