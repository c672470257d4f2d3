"""Whether it pays to say how often classes appear."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ..bootstrap import RESAMPLES, estimate, mean
from ..markdown import bullets, document, table
from ..numbers import error_text, whole_text
from .answers import Answers, Case
from .checks import NONE_SET, Judgement
from .page import page

RULES = (
    "Of two classes one appears nine times as often as the other, or as the configuration says. Told: the request says"
    " so. Untold: it names the two classes only. Both within the same limit on bytes.",
    "The expected error weighs each class's test error by how often it appears. Better is a lower one at no more bytes"
    " than untold.",
    "Differences are told less untold; in brackets 95 % intervals by the bootstrap over pairs,"
    f" {RESAMPLES:,} resamples.",
)
HEADER = ["pairs", "number", "told: error", "untold", "difference, points", "told: bytes", "untold"]
Pairs = Sequence[Mapping[str, Any]]


def appearance(answers: Answers) -> str:
    return page("Classes that appear unequally often", answers.of("appearance"), _section, RULES)


def target(case: Case) -> str:
    return NONE_SET


def judge(case: Case) -> Judgement:
    pairs = pairs_of(case)
    return Judgement(f"{len(better(pairs))} of {len(pairs)} pairs better; error {_difference(pairs)} points")


def pairs_of(case: Case) -> list[dict[str, Any]]:
    """Every ordered pair of classes, its numbers the means over seeds."""
    found: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for value in case.values:
        for row in value["pairs"]:
            found.setdefault((row["frequent"], row["rare"]), []).append(row)
    return [{key: fmean(row[key] for row in rows) for key in rows[0]} for rows in found.values()]


def better(pairs: Pairs) -> list[Mapping[str, Any]]:
    return [pair for pair in no_larger(pairs) if pair["told_error"] < pair["untold_error"]]


def no_larger(pairs: Pairs) -> list[Mapping[str, Any]]:
    return [pair for pair in pairs if pair["told_bytes"] <= pair["untold_bytes"]]


def _difference(pairs: Pairs) -> str:
    return estimate(mean, [pair["told_error"] - pair["untold_error"] for pair in pairs]).text(_signed)


def _section(case: Case) -> str:
    pairs, asked = pairs_of(case), case.config.asked
    fair = no_larger(pairs)
    groups: dict[str, Pairs] = {"all": pairs, "told takes no more bytes": fair, "and errs less": better(pairs)}
    lines = [f"{len(better(pairs))} of {len(pairs)} pairs have a lower expected error told, at no more bytes"]
    same = sum(pair["told_error"] == pair["untold_error"] for pair in pairs)
    lines.append(f"{same} of {len(pairs)} pairs have the same expected error")
    worst = max(pairs, key=lambda pair: pair["told_error"] - pair["untold_error"])
    lines.append(
        f"at worst: {worst['frequent']:.0f} often and {worst['rare']:.0f} rarely,"
        f" {worst['told_error']:.2f} % told against {worst['untold_error']:.2f} %"
    )
    return document(
        f"The frequent class is {100 * asked['often']:g} % of the images; at most {asked['max_bytes']:,} bytes.",
        table(HEADER, [_row(name, own) for name, own in groups.items()]),
        bullets(lines),
    ).rstrip()


def _row(name: str, pairs: Pairs) -> list[str]:
    if not pairs:
        return [name, "0", *["-"] * 5]
    told, untold, told_bytes, untold_bytes = (
        fmean(pair[key] for pair in pairs) for key in ("told_error", "untold_error", "told_bytes", "untold_bytes")
    )
    return [
        name,
        str(len(pairs)),
        error_text(told),
        error_text(untold),
        _difference(pairs),
        whole_text(told_bytes),
        whole_text(untold_bytes),
    ]


def _signed(value: float | None) -> str:
    return f"{value:+.3f}"
