"""One row for every emitted network of the conditional methods."""

from collections.abc import Mapping
from typing import Any

from .load import Results, Run
from .markdown import document, table
from .methods import CONDITIONAL, TITLES
from .numbers import NOT_RUN, NOTHING, dashes, error_text, ratio_text, whole_text
from .paper import Paper

HEADER = [
    "context",
    "threshold",
    "architecture",
    "bits",
    "pruning",
    "ten outputs",
    "with bits",
    "file bytes",
    "original error",
    "pruned error",
    "file error",
    "images",
]


def contexts(results: Results, paper: Paper) -> str:
    blocks = [
        _method(results, paper, model, method) for model in paper.models for method in paper.methods(model, CONDITIONAL)
    ]
    intro = "Every emitted network. Ratios are times smaller, errors are test errors in percent."
    return document(f"# {paper.dataset}, context by context", intro, *blocks)


def _method(results: Results, paper: Paper, model: str, method: str) -> str:
    runs = results.of(model, method)
    title = f"## {paper.title(model)}, {TITLES[method]}"
    return document(title, *(map(_run, runs) if runs else [NOT_RUN])).rstrip()


def _run(run: Run) -> str:
    trained = f", trained on {run.data['trained_on']}" if run.data.get("trained_on") else ""
    return document(f"Seed {run.seed}{trained}.", table(HEADER, map(_row, run.contexts))).rstrip()


def _row(context: Mapping[str, Any]) -> list[str]:
    return [
        context.get("label") or str(context["context"]),
        f"{context['threshold']:g}",
        dashes(context["architecture"]),
        dashes(context["bits"]) if context.get("bits") else NOTHING,
        *(ratio_text(context.get(key)) for key in ("pruning_ratio", "pruning_ratio_ten_outputs", "bits_ratio")),
        whole_text(context.get("file_bytes")),
        *(error_text(context.get(key)) for key in ("original_error", "pruning_error", "file_error")),
        whole_text(context.get("test_images")),
    ]
