"""Table 1: ratios and errors, the paper's and ours."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .curves import ALL, pareto, read_on_test
from .equal_error import quotients, quotients_text
from .load import Results, Run
from .markdown import bullets, document, table
from .methods import TABLE_METHODS, TITLES
from .numbers import (
    NOT_RUN,
    NOTHING,
    Text,
    error_text,
    mean_of,
    measure,
    ratio_text,
    whole_text,
    with_spread,
)
from .paper import Paper
from .verdicts import against_target, beside_paper, target_text

HEADER = [
    "method",
    "seeds",
    "original error",
    "paper: pruning (error)",
    "ours: pruning, mean (error)",
    "harmonic (smallest)",
    "ten outputs, mean",
    "paper: with bits (error)",
    "ours: with bits, mean (error)",
    "with bits, harmonic",
    "file bytes, mean (largest)",
    "file ratio (error)",
    "worst context's error",
]
VERDICTS = [
    "method",
    "test pairs (contexts)",
    "pruning beside the paper",
    "with bits beside the paper",
    "target: pruning",
    "pruning against it",
    "target: with bits",
    "with bits against it",
]
INPUT_OUTPUT = ("bc-io-gnj", "bc-gnj")  # scales on inputs and outputs against scales on one side
RULES = (
    "Ratios are times smaller. Pruning: weights of the original over weights kept, where a layer keeps its kept inputs"
    " times its kept outputs (times the kernel); biases are not counted.",
    "With bits: 32 bits for each weight of the original, over the bits of the weights kept at their layer's width.",
    "A file's bytes are everything in it; its ratio is the float32 weights and biases of the original over them, and"
    " its error is that of the file read back.",
    "With several contexts each ratio is worked out per context. The mean over contexts is what the paper reports and"
    " is flattered by easy contexts; the harmonic mean is all weights in over all weights out. Both are given, with the"
    " smallest; every context has its row in [contexts.md](contexts.md).",
    "Where a context names classes, the output layer is cut to them. The paper counts ten outputs, so that count stands"
    " beside ours.",
    "Errors are test errors in percent, pooled over pairs of context and image. The worst context is the one whose file"
    " errs most, over all seeds; the largest file likewise.",
    "Thresholds and rounding steps were chosen on validation data held out of the training set, never on test data.",
    "± is half the range over the seeds (largest less smallest, halved); one seed has none. Verdicts are on the mean"
    " over seeds.",
    '"larger" is a larger ratio; "better" needs one of ratio and error to be better and the other no worse, at the'
    " precision the paper prints.",
)


def table1(results: Results, paper: Paper) -> str:
    models = [_model(results, paper, model) for model in paper.models]
    title = f"# Table 1: compression on {paper.dataset}"
    return document(title, *models, "## How to read it", bullets((*RULES, *paper.notes("table1"))))


def _model(results: Results, paper: Paper, model: str) -> str:
    methods = paper.methods(model, TABLE_METHODS)
    rows = [_row(results.of(model, method), paper, model, method) for method in methods]
    verdicts = [_verdicts(results.of(model, method), paper, model, method) for method in methods]
    return document(
        f"## {paper.title(model)}",
        _original(paper, model),
        table(HEADER, rows),
        table(VERDICTS, verdicts),
        _input_output_line(results, model) if set(INPUT_OUTPUT) <= set(methods) else "",
        bullets(_choices(results, model, methods)),
    ).rstrip()


def _original(paper: Paper, model: str) -> str:
    error = paper.model(model).get("original_error")
    return "Not in the paper." if error is None else f"The paper's original network errs on {error} %."


def printed(paper: Paper, model: str, method: str, column: str) -> tuple[float, float] | None:
    """The paper's ratio and error in a column, where it has them."""
    row = paper.row(model, method)
    return None if row is None else (row[f"{column}_ratio"], row[f"{column}_error"])


def printed_text(paper: Paper, model: str, method: str, column: str) -> str:
    numbers = printed(paper, model, method, column)
    return NOTHING if numbers is None else f"{numbers[0]:,} ({numbers[1]})"


def _row(runs: Sequence[Run], paper: Paper, model: str, method: str) -> list[str]:
    pruning, bits = (printed_text(paper, model, method, column) for column in ("pruning", "bits"))
    if not runs:
        return [TITLES[method], NOT_RUN, NOTHING, pruning, NOT_RUN, *[NOTHING] * 2, bits, NOT_RUN, *[NOTHING] * 4]
    return [
        TITLES[method],
        str(len(runs)),
        with_spread(measure(run.data.get("original_error") for run in runs), error_text),
        pruning,
        _pair(runs, "pruning_ratio_mean", "pruning_error"),
        f"{over_seeds(runs, 'pruning_ratio_harmonic')} ({ratio_text(_extreme(runs, 'pruning_ratio_min', min))})",
        over_seeds(runs, "pruning_ratio_ten_outputs_mean"),
        bits,
        _pair(runs, "bits_ratio_mean", "bits_error"),
        over_seeds(runs, "bits_ratio_harmonic"),
        f"{over_seeds(runs, 'file_bytes_mean', whole_text)} ({whole_text(_extreme(runs, 'file_bytes_max', max))})",
        _pair(runs, "file_ratio_mean", "file_error"),
        error_text(_extreme(runs, "error_max", max)),
    ]


def over_seeds(runs: Sequence[Run], key: str, text: Text = ratio_text) -> str:
    return with_spread(measure(run.summary(key) for run in runs), text)


def _pair(runs: Sequence[Run], ratio: str, error: str) -> str:
    return f"{over_seeds(runs, ratio)} ({over_seeds(runs, error, error_text)})"


def _extreme(runs: Sequence[Run], key: str, pick: Callable[..., float | None]) -> float | None:
    return pick((value for run in runs if (value := run.summary(key)) is not None), default=None)


def _verdicts(runs: Sequence[Run], paper: Paper, model: str, method: str) -> list[str]:
    targets = [paper.target(model, method, column) for column in ("pruning", "bits")]
    if not runs:
        pruning, bits = map(target_text, targets)
        return [TITLES[method], NOT_RUN, NOTHING, NOTHING, pruning, NOT_RUN, bits, NOT_RUN]
    pairs = {(sum(context.get("test_images", 0) for context in run.contexts), len(run.contexts)) for run in runs}
    return [
        TITLES[method],
        "; ".join(f"{images:,} ({contexts})" for images, contexts in sorted(pairs)),
        *(_beside(runs, printed(paper, model, method, column), column) for column in ("pruning", "bits")),
        *(text for target in targets for text in (target_text(target), against_target(runs, target))),
    ]


def _beside(runs: Sequence[Run], numbers: tuple[float, float] | None, column: str) -> str:
    ratio, error = (measure(run.summary(f"{column}_{key}") for run in runs) for key in ("ratio_mean", "error"))
    return beside_paper(mean_of(ratio), mean_of(error), numbers)


def _input_output_line(results: Results, model: str) -> str:
    """The paper's footnote: scales on inputs and outputs beat scales on inputs alone."""
    question = "BC-IO-GNJ against BC-GNJ, pruning ratios at equal test error"
    fronts = []
    for method in INPUT_OUTPUT:
        curves = [run.trade_off(ALL) for run in results.of(model, method)]
        fronts.append([pareto(read_on_test(curve)) for curve in curves if curve])
    if not all(fronts):
        return f"{question}: {NOT_RUN}."
    return f"{question}: {quotients_text(quotients(*fronts, ratio='ratio_mean'))}."


def _choices(results: Results, model: str, methods: Sequence[str]) -> list[str]:
    """How each method's threshold and step were chosen, one line a rule."""
    rules: dict[str, list[str]] = {}
    for method in methods:
        chosen = [run.data["choice"] for run in results.of(model, method) if "rule" in run.data.get("choice", {})]
        for rule in dict.fromkeys(choice["rule"] for choice in chosen):
            found = [_choice(choice) for choice in chosen if choice["rule"] == rule]
            rules.setdefault(rule, []).append(f"{TITLES[method]}: {', '.join(dict.fromkeys(found))}")
    return [f"Threshold and scale of the steps: {rule}. {'; '.join(found)}." for rule, found in rules.items()]


def _choice(choice: Mapping[str, Any]) -> str:
    known = [value for value in (choice.get("threshold"), choice.get("scale")) if value is not None]
    return " and ".join(f"{value:.3g}" for value in known)
