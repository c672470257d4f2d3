"""Networks for inputs of which some are missing, against the full network with zeros in their place."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ..bootstrap import estimate, mean
from ..markdown import bullets, document, table
from ..numbers import error_text, measure, ratio_text, whole_text, with_spread
from .answers import Answers, Case
from .checks import Check, Judgement, at_least, verdict
from .page import page

HEADER = ["mask", "features there", "ratio", "test error", "full network with zeros", "less, points", "verdict"]
COUNTED = {"weights": "", "bytes": " in bytes"}
RULES = (
    "For each mask the most accurate network that is small enough, chosen on validation data: it reads none of the"
    " missing features. Beside it the full network, which reads zeros in their place.",
    "Known masks: the three that are asked about are all that training met, as for those who know what will be missing."
    " Otherwise training drew masks of many kinds, and the three were new to it.",
    "Ratios count weights, or bytes where it says so: four for each number of the full network over those of the packed"
    " file, whose weights have bit widths from the posterior. Then errors are those of the file.",
    "Better is a lower test error at the ratio of the target or more. The drawn masks are new ones, drawn as training"
    " draws them; their difference has a 95 % interval by the bootstrap over masks.",
)


@dataclass(frozen=True)
class Row:
    """One mask, a number a seed."""

    mask: str
    features: int
    ratios: Sequence[float]
    errors: Sequence[float]
    zero_filled: Sequence[float]

    @property
    def error(self) -> float:
        return fmean(self.errors)

    @property
    def full_error(self) -> float:
        return fmean(self.zero_filled)

    def checks(self, ratio: float) -> list[Check]:
        over = self.error - self.full_error
        miss = "" if over < 0 else f"error {self.error:.2f} is not under {self.full_error:.2f}"
        return [Check("lower error", miss), at_least("ratio", fmean(self.ratios), ratio)]

    def better(self, ratio: float) -> bool:
        return not any(check.miss for check in self.checks(ratio))


def features(answers: Answers) -> str:
    return page("Inputs of which some are missing", answers.of("features"), _section, RULES, "features.png")


def target(case: Case) -> str:
    return f"lower error at {case.targets['ratio']:g} x{counted(case)} or more for {', '.join(case.targets['masks'])}"


def counted(case: Case) -> str:
    """What its ratios count: said where it is not weights."""
    return COUNTED[case.config.asked.get("counted", "weights")]


def judge(case: Case) -> Judgement:
    named, ratio = named_rows(case), case.targets["ratio"]
    misses = [f"{row.mask}: {check.miss}" for row in named for check in row.checks(ratio) if check.miss]
    misses += [f"{mask}: not recorded" for mask in _absent(case)]
    texts = [f"{row.mask} {error_text(row.error)} % against {error_text(row.full_error)} %" for row in named]
    if drawn_rows(case):
        texts.append(_drawn_count(case))
    return Judgement("; ".join(texts), (Check(target(case), "; ".join(misses)),))


def rows_of(case: Case) -> list[Row]:
    by_mask = [{row["mask"]: row for row in value["masks"]} for value in case.values]
    return [
        Row(
            mask,
            by_mask[0][mask]["features"],
            *([rows[mask][key] for rows in by_mask] for key in ("ratio", "error", "zero_filled_error")),
        )
        for mask in by_mask[0]
        if all(mask in rows for rows in by_mask)
    ]


def named_rows(case: Case) -> list[Row]:
    """Those that a target is set for."""
    return [row for row in rows_of(case) if row.mask in case.targets["masks"]]


def drawn_rows(case: Case) -> list[Row]:
    return [row for row in rows_of(case) if row.mask not in case.targets["masks"]]


def _absent(case: Case) -> list[str]:
    found = {row.mask for row in rows_of(case)}
    return [mask for mask in case.targets["masks"] if mask not in found]


def _drawn_count(case: Case) -> str:
    drawn = drawn_rows(case)
    return f"{sum(row.better(case.targets['ratio']) for row in drawn)} of {len(drawn)} drawn masks better"


def _section(case: Case) -> str:
    ratio = case.targets["ratio"]
    rows = [_cells(row, verdict(row.checks(ratio))) for row in named_rows(case)]
    rows += [_cells(row, "better" if row.better(ratio) else "not better") for row in drawn_rows(case)]
    lines = [f"{target(case)}: {judge(case).verdict}"]
    if drawn := drawn_rows(case):
        difference = estimate(mean, [row.error - row.full_error for row in drawn])
        lines.append(
            f"{_drawn_count(case)}: mean error {fmean(row.error for row in drawn):.2f} %"
            f" against {fmean(row.full_error for row in drawn):.2f} %, {difference.text(_signed)} points;"
            f" harmonic ratio {ratio_text(1 / fmean(1 / fmean(row.ratios) for row in drawn))}"
        )
    header = [f"ratio{counted(case)}" if name == "ratio" else name for name in HEADER]
    return document(table(header, rows), bullets(lines)).rstrip()


def _cells(row: Row, word: str) -> list[str]:
    return [
        row.mask,
        whole_text(row.features),
        with_spread(measure(row.ratios)),
        with_spread(measure(row.errors), error_text),
        with_spread(measure(row.zero_filled), error_text),
        _signed(row.error - row.full_error),
        word,
    ]


def _signed(value: float | None) -> str:
    return f"{value:+.2f}"
