"""Networks for a part of the vocabulary, against the full network on texts within it."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ..markdown import bullets, document, table
from ..numbers import error_text, ratio_text, whole_text
from .answers import Answers, Case
from .checks import Judgement, at_least, at_most
from .page import page

HEADER = [
    "seed",
    "contexts",
    "words",
    "rows",
    "embedding bytes, before",
    "after",
    "in the file",
    "ratio of the embedding",
    "test error",
    "error of the file",
    "full network",
    "texts",
]
RULES = (
    "A context is the words of training questions, drawn at random until they are the asked part of the vocabulary. It"
    " is tried on the test questions all of whose words are there; a word that the vocabulary has not is unknown before"
    " and after. Errors are pooled over contexts.",
    "Bytes of an embedding are those of 32-bit floats, rows times columns, and what the packed file takes for it. The"
    " threshold is chosen on validation questions and other contexts.",
)
Rows = Sequence[Mapping[str, Any]]


def vocabulary(answers: Answers) -> str:
    return page("A part of the vocabulary", answers.of("vocabulary"), _section, RULES)


def target(case: Case) -> str:
    wanted = case.targets
    return (
        f"embedding at least {wanted['embedding_ratio']:g} x smaller at most {wanted['error_over']:g} points"
        " over the full network"
    )


def judge(case: Case) -> Judgement:
    rows = [row for answer in case.values for row in answer["contexts"]]
    ratio, error, full = _ratio(rows), _error(rows, "wrong"), _error(rows, "full_wrong")
    found = f"embedding {ratio_text(ratio)} x smaller at {error:.2f} % against {full:.2f} %"
    return Judgement(
        found,
        (
            at_least("ratio", ratio, case.targets["embedding_ratio"]),
            at_most("error over the full network's", error - full, case.targets["error_over"], error_text, " points"),
        ),
    )


def _ratio(rows: Rows) -> float:
    return sum(row["embedding_bytes_before"] for row in rows) / sum(row["embedding_bytes"] for row in rows)


def _error(rows: Rows, key: str) -> float:
    return 100 * sum(row[key] for row in rows) / sum(row["images"] for row in rows)


def _section(case: Case) -> str:
    judgement = judge(case)
    lines = [judgement.found, f"{target(case)}: {judgement.verdict}"]
    return document(
        table(HEADER, [_cells(answer.seed, answer.value["contexts"]) for answer in case.answers]), bullets(lines)
    ).rstrip()


def _cells(seed: int, rows: Rows) -> list[str]:
    def mean_of(key: str) -> str:
        return whole_text(fmean(row[key] for row in rows))

    return [
        str(seed),
        str(len(rows)),
        mean_of("words"),
        mean_of("rows"),
        mean_of("embedding_bytes_before"),
        mean_of("embedding_bytes"),
        mean_of("embedding_bytes_in_file"),
        ratio_text(_ratio(rows)),
        error_text(_error(rows, "wrong")),
        error_text(_error(rows, "file_wrong")),
        error_text(_error(rows, "full_wrong")),
        whole_text(sum(row["images"] for row in rows)),
    ]
