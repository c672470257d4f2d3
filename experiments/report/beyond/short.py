"""One line a question: what was to be reached, and what was."""

from collections.abc import Callable

from ..markdown import document, table
from ..numbers import NOT_RUN, NOTHING
from . import ablations, appearance, budgets, features, guarantee, joint, subsets
from .answers import Answers, Case
from .checks import Judgement

HEADER = ["question", "network", "seeds", "target", "found", "verdict"]
QUESTIONS: dict[str, tuple[str, Callable[[Case], Judgement]]] = {
    "subsets": ("What is lost on [subsets that training never met](subsets.md)?", subsets.judge),
    "joint": ("What does [one model for classes and budgets](joint.md) lose?", joint.judge),
    "budgets": ("Does [the budget](budgets.md) work as a dial?", budgets.judge),
    "features": ("Are networks for [missing inputs](features.md) better than zeros?", features.judge),
    "guarantee": ("Does [a promise on the error](guarantee.md) hold?", guarantee.judge),
    "appearance": ("Does it pay to say [how often classes appear](appearance.md)?", appearance.judge),
    "ablations": ("What is [each part](ablations.md) worth?", ablations.judge),
}


def short(answers: Answers) -> str:
    rows = [row for question in QUESTIONS for row in _rows(answers, question)]
    note = "Ratios are times smaller, errors test errors in percent. Each page says how its numbers are worked out."
    return document("# Questions beyond the paper", table(HEADER, rows), note)


def _rows(answers: Answers, question: str) -> list[list[str]]:
    cases = answers.of(question)
    return [_row(case) for case in cases] or [[QUESTIONS[question][0], *[NOTHING] * 4, f"{NOT_RUN}: no configuration"]]


def _row(case: Case) -> list[str]:
    text, judge = QUESTIONS[case.config.question]
    if not case.answers:
        return [text, case.title, "0", NOTHING, NOTHING, case.not_run]
    found = judge(case)
    return [text, case.title, str(len(case.answers)), found.target, found.found, found.verdict]
