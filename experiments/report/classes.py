"""Error class by class, before and after: who pays for compression."""

from collections.abc import Sequence
from statistics import fmean

from .load import Results, Run
from .markdown import bullets, document, table
from .methods import TITLES
from .numbers import NOT_RECORDED, NOT_RUN, NOTHING, error_text
from .paper import Paper

STATES = {"original_error": "original", "pruning_error": "pruned", "file_error": "file"}
RULES = (
    "Test errors in percent, means over seeds. With contexts of several classes a class's images are judged in every"
    " context that has it, among that context's classes.",
    "The spread is the largest class error less the smallest. The class that loses most is the one whose error rises"
    " most from the original to the file.",
    "The paper's motive is that compression falls on some classes more than on others; where the spread grows from"
    " original to file, it did here.",
)


def classes(results: Results, paper: Paper) -> str:
    models = [_model(results, paper, model) for model in paper.models]
    title = f"# Error by class on {paper.dataset}, before and after"
    return document(title, *models, "## How to read it", bullets(RULES))


def _model(results: Results, paper: Paper, model: str) -> str:
    runs = {method: results.of(model, method) for method in paper.methods(model)}
    errors = {method: class_errors(some) for method, some in runs.items()}
    labels = sorted({label for found in errors.values() for label in found["original_error"]})
    rows = [row for method in runs for row in _rows(method, errors[method], labels)]
    return document(
        f"## {paper.title(model)}",
        table(
            ["method", "class that loses most", *(f"spread, {name}" for name in STATES.values())],
            [_verdict(method, runs[method], errors[method]) for method in runs],
        ),
        table(["method", "network", *map(str, labels)], rows) if rows else "",
    ).rstrip()


Errors = dict[str, dict[int, float]]  # state -> class -> percent


def class_errors(runs: Sequence[Run]) -> Errors:
    """Each class's error in each state, the mean over seeds."""
    found: dict[str, dict[int, list[float]]] = {state: {} for state in STATES}
    for run in runs:
        for entry in run.data.get("per_class", []):
            for state in STATES:
                if entry.get(state) is not None:
                    found[state].setdefault(entry["class"], []).append(entry[state])
    return {state: {label: fmean(values) for label, values in by.items()} for state, by in found.items()}


def _rows(method: str, errors: Errors, labels: Sequence[int]) -> list[list[str]]:
    return [
        [TITLES[method], name, *(_cell(errors[state].get(label)) for label in labels)]
        for state, name in STATES.items()
        if errors[state]
    ]


def _cell(error: float | None) -> str:
    return NOTHING if error is None else error_text(error)


def _verdict(method: str, runs: Sequence[Run], errors: Errors) -> list[str]:
    if not errors["file_error"]:
        return [TITLES[method], NOT_RECORDED if runs else NOT_RUN, *[NOTHING] * len(STATES)]
    before, after = errors["original_error"], errors["file_error"]
    rise = {label: after[label] - before[label] for label in sorted(after) if label in before}
    worst = max(rise, key=lambda label: rise[label])
    return [TITLES[method], f"{worst} ({rise[worst]:+.2f})", *(error_text(_spread(errors[state])) for state in STATES)]


def _spread(errors: dict[int, float]) -> float | None:
    return max(errors.values()) - min(errors.values()) if errors else None
