"""One line a question: what was to be reached, and what was."""

from types import ModuleType

from ..markdown import document, table
from ..numbers import NOT_RUN, NOTHING
from . import ablations, appearance, budgets, class_pairs, features, guarantee, joint, speakers, subsets, vocabulary
from .answers import Answers, Case
from .checks import Judgement

HEADER = ["question", "network", "seeds", "target", "found", "verdict"]
QUESTIONS: dict[str, tuple[str, ModuleType]] = {
    "subsets": ("What is lost on [subsets that training never met](subsets.md)?", subsets),
    "joint": ("What does [one model for classes and budgets](joint.md) lose?", joint),
    "budgets": ("Does [the budget](budgets.md) work as a dial?", budgets),
    "features": ("Are networks for [missing inputs](features.md) better than zeros?", features),
    "guarantee": ("Does [a promise on the error](guarantee.md) hold?", guarantee),
    "appearance": ("Does it pay to say [how often classes appear](appearance.md)?", appearance),
    "ablations": ("What is [each part](ablations.md) worth?", ablations),
    "pairs": ("How small are networks for [two classes of sounds and texts](pairs.md)?", class_pairs),
    "speakers": ("Does a network for [a new speaker](speakers.md) suit them?", speakers),
    "vocabulary": ("What does [a part of the vocabulary](vocabulary.md) cost?", vocabulary),
}


def short(answers: Answers) -> str:
    rows = [row for question in QUESTIONS for row in _rows(answers, question)]
    note = "Ratios are times smaller, errors test errors in percent. Each page says how its numbers are worked out."
    return document("# Questions beyond the paper", table(HEADER, rows), note)


def _rows(answers: Answers, question: str) -> list[list[str]]:
    cases = answers.of(question)
    return [_row(case) for case in cases] or [[QUESTIONS[question][0], *[NOTHING] * 4, f"{NOT_RUN}: no configuration"]]


def _row(case: Case) -> list[str]:
    text, question = QUESTIONS[case.config.question]
    start = [text, case.title, str(len(case.answers)), question.target(case)]
    if not case.answers:
        return [*start, NOTHING, case.not_run]
    judgement: Judgement = question.judge(case)
    return [*start, judgement.found, judgement.verdict]
