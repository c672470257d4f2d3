"""Networks for two classes each, against the full network on the same pairs."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ..markdown import bullets, document, table
from ..numbers import dashes, error_text, measure, ratio_text, whole_text, with_spread
from .answers import Answers, Case
from .checks import Check, Judgement, at_least, at_most
from .page import page

HEADER = ["classes", "ratio", "test error", "full network", "file bytes", "error of the file", "architecture"]
RULES = (
    "One model for pairs of classes, one threshold for all of them: the most accurate on validation data among those"
    " that are small enough. All weights count, those of an embedding included.",
    "The full network answers the same pairs with its other outputs ignored. Errors are pooled over pairs; the ratio of"
    " all is harmonic: weights of all full networks over weights of all small ones.",
    "Log-mel energies are fixed and have no weights.",
)
Rows = Sequence[Mapping[str, Any]]


def class_pairs(answers: Answers) -> str:
    return page("Pairs of classes, in sounds and texts", answers.of("pairs"), _section, RULES)


def target(case: Case) -> str:
    wanted = case.targets
    return (
        f"full network at most {wanted['full_error']:g} % error; pairs at least {wanted['ratio']:g} x"
        f" at most {wanted['error_over']:g} points over it"
    )


def judge(case: Case) -> Judgement:
    full, ratio, error, beside = (
        fmean(values)
        for values in zip(*((answer["full_error"], *_overall(answer["pairs"])) for answer in case.values), strict=True)
    )
    checks = (
        at_most("error of the full network", full, case.targets["full_error"], error_text, " %"),
        at_least("ratio", ratio, case.targets["ratio"]),
        at_most("error over the full network's", error - beside, case.targets["error_over"], error_text, " points"),
    )
    found = f"full network {full:.2f} %; pairs {ratio_text(ratio)} x at {error:.2f} % against {beside:.2f} %"
    return Judgement(found, checks)


def _overall(rows: Rows) -> tuple[float, float, float]:
    """Harmonic ratio, pooled error and that of the full network."""
    images = sum(row["images"] for row in rows)
    pooled = [100 * sum(row[key] for row in rows) / images for key in ("wrong", "full_wrong")]
    return len(rows) / sum(1 / row["ratio"] for row in rows), pooled[0], pooled[1]


def _section(case: Case) -> str:
    rows = [_cells(own) for own in zip(*(answer["pairs"] for answer in case.values), strict=True)]
    judgement = judge(case)
    checks: Sequence[Check] = judgement.checks
    lines = [judgement.found, *(f"{check.wanted}: {check.miss or 'reached'}" for check in checks)]
    return document(table(HEADER, rows), bullets(lines)).rstrip()


def _cells(rows: Rows) -> list[str]:
    first = rows[0]
    return [
        ", ".join(map(str, first["classes"])),
        with_spread(measure(row["ratio"] for row in rows)),
        *(
            with_spread(measure(100 * row[key] / row["images"] for row in rows), error_text)
            for key in ("wrong", "full_wrong")
        ),
        whole_text(fmean(row["file_bytes"] for row in rows)),
        with_spread(measure(100 * row["file_wrong"] / row["images"] for row in rows), error_text),
        dashes(first["architecture"]),
    ]
