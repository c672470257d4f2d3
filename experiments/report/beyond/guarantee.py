"""How often a promised error was exceeded."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ..markdown import bullets, document, table
from ..numbers import NOTHING, dashes, error_text, ratio_text, whole_text
from .answers import Answer, Answers, Case
from .checks import Judgement, at_most
from .page import page

HEADER = [
    "seed",
    "contexts",
    "refused",
    "exceeded",
    "surely exceeded",
    "allowed",
    "harmonic ratio",
    "file bytes, mean",
    "mean error",
    "largest error",
]
WORST = 5  # rows
RULES = (
    "Each context asked for a network that errs on no more than the promised share of its images, at a confidence; the"
    " promise rests on calibration images that no training met. A context that nothing can be promised for is refused.",
    "Exceeded: the test error lies over the promise, however little. Surely exceeded: its lower 95 % bound does too."
    " A test error is itself an estimate, so some of the first are none; the second are held against the target.",
    "Allowed is the target's share of all contexts asked. Means and ratios are of what was emitted.",
)
Rows = Sequence[Mapping[str, Any]]


def guarantee(answers: Answers) -> str:
    return page("A promise on the error", answers.of("guarantee"), _section, RULES)


def target(case: Case) -> str:
    return f"surely exceeded in at most {case.targets['surely_exceeded']} of 100 contexts"


def judge(case: Case) -> Judgement:
    rows = [row for answer in case.answers for row in answer.value["contexts"]]
    count, sure = len(exceeded(rows)), len(surely_exceeded(rows))
    found = f"{count} of {len(rows)} exceeded, {sure} surely, {len(rows) - len(emitted(rows))} refused"
    return Judgement(found, (at_most("surely exceeded", sure, _allowed(case, rows), whole_text),))


def emitted(rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in rows if "refused" not in row]


def exceeded(rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in emitted(rows) if row["error"] > row["max_error"]]


def surely_exceeded(rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in emitted(rows) if row["lower_bound"] > row["max_error"]]


def _allowed(case: Case, rows: Rows) -> int:
    return int(case.targets["surely_exceeded"] * len(rows) / 100 + 1e-9)


def _section(case: Case) -> str:
    asked = case.config.asked
    kept = [row for answer in case.answers for row in emitted(answer.value["contexts"])]
    worst = sorted(kept, key=lambda row: row["max_error"] - row["error"])[:WORST]
    header = ["classes", "error", "lower bound", "promised", "wrong of images", "ratio", "file bytes"]
    return document(
        f"Promised: an error of at most {asked['max_error']:g} % at a confidence of {asked['confidence']:g}.",
        table(HEADER, [_row(case, answer) for answer in case.answers]),
        bullets([f"{target(case)}: {judge(case).verdict}"]),
        "The worst contexts:" if worst else "",
        table(header, map(_worst, worst)) if worst else "",
    ).rstrip()


def _row(case: Case, answer: Answer) -> list[str]:
    rows = answer.value["contexts"]
    kept = emitted(rows)
    counts = [len(rows), len(rows) - len(kept), len(exceeded(rows)), len(surely_exceeded(rows)), _allowed(case, rows)]
    cells = [str(answer.seed), *map(str, counts)]
    if not kept:
        return [*cells, *[NOTHING] * 4]
    return [
        *cells,
        ratio_text(1 / fmean(1 / row["ratio"] for row in kept)),
        whole_text(fmean(row["file_bytes"] for row in kept)),
        error_text(fmean(row["error"] for row in kept)),
        error_text(max(row["error"] for row in kept)),
    ]


def _worst(row: Mapping[str, Any]) -> list[str]:
    return [
        dashes(row["classes"]),
        error_text(row["error"]),
        error_text(row["lower_bound"]),
        error_text(row["max_error"]),
        f"{row['wrong']:,} of {row['images']:,}",
        ratio_text(row["ratio"]),
        whole_text(row["file_bytes"]),
    ]
