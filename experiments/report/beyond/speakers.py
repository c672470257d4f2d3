"""A speaker left out of all training, against a network of the same size for everybody."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ..markdown import bullets, document, table
from ..numbers import error_text, ratio_text
from .answers import Answers, Case
from .checks import Judgement, at_most
from .page import page

HEADER = ["speaker", "ratio", "test error", "ratio, for everybody", "test error, for everybody", "uncut", "distance"]
RULES = (
    "Each speaker in turn is left out of pretraining, training and validation. A network is emitted from a few of the"
    " speaker's recordings, without their labels, and tried on all the others; means over five draws.",
    "For everybody: a model without conditions, trained alike on the same speakers, cut to the smallest network that is"
    " no smaller. Thresholds of told networks are chosen on validation recordings of the known speakers.",
    "Uncut is the model for everybody with all of its units. Distance: from the voices of training, where 1 is usual.",
)
Draws = Sequence[Mapping[str, Any]]


def speakers(answers: Answers) -> str:
    return page("A new speaker", answers.of("speakers"), _section, RULES)


def target(case: Case) -> str:
    return f"error at most {case.targets['error_over']:g} points over that of a network for everybody of the same size"


def judge(case: Case) -> Judgement:
    draws = [draw for answer in case.values for speaker in answer["speakers"] for draw in speaker["draws"]]
    own, beside = (_error(draws, key) for key in ("wrong", "untold_wrong"))
    found = f"{own:.2f} % against {beside:.2f} % at {ratio_text(fmean(draw['ratio'] for draw in draws))} x"
    return Judgement(
        found,
        (at_most("error over that for everybody", own - beside, case.targets["error_over"], error_text, " points"),),
    )


def _error(draws: Draws, key: str) -> float:
    return 100 * sum(draw[key] for draw in draws) / sum(draw["images"] for draw in draws)


def _section(case: Case) -> str:
    rows = [_cells(own) for own in zip(*(answer["speakers"] for answer in case.values), strict=True)]
    judgement = judge(case)
    lines = [judgement.found, f"{target(case)}: {judgement.verdict}"]
    return document(table(HEADER, rows), bullets(lines)).rstrip()


def _cells(speakers: Sequence[Mapping[str, Any]]) -> list[str]:
    draws = [draw for speaker in speakers for draw in speaker["draws"]]
    distances = [draw["distance"] for draw in draws if draw["distance"] is not None]
    return [
        speakers[0]["speaker"],
        ratio_text(fmean(draw["ratio"] for draw in draws)),
        error_text(_error(draws, "wrong")),
        ratio_text(fmean(draw["untold_ratio"] for draw in draws)),
        error_text(_error(draws, "untold_wrong")),
        error_text(_error(draws, "uncut_wrong")),
        ratio_text(fmean(distances) if distances else None),
    ]
