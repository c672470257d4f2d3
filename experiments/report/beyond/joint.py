"""What a model for classes and budgets together loses against models for one budget each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..equal_error import Front
from ..markdown import bullets, document, table
from ..numbers import NOTHING, error_text, ratio_text
from .answers import Answers, Case
from .checks import Check, Judgement, at_least, verdict
from .fronts import LARGEST, RATIO, Comparison, compare, front_of
from .page import page

HEADER = [
    "budget",
    "errors of both, %",
    "middle, %",
    "joint there",
    "alone there",
    "quotient there",
    "smallest quotient (at)",
    "against the target",
]
NOTHING_SAID = "nothing said"
KINDS = ("joint", "alone")
RULES = (
    "One model is told classes and a budget; beside it, at each budget, stands a model that was trained for classes at"
    " this budget's weight alone. With nothing said it stands beside a model for all classes without conditions.",
    "Ratios are harmonic over the same subsets. Of each curve the thresholds that no other beats on validation data,"
    " read on test data; between two of them the logarithm of the ratio in proportion to the error.",
    f"The quotient is joint over alone at equal test error, on the errors that both fronts cover up to {LARGEST:g} %."
    " The smallest quotient counts; the middle is that of the errors covered.",
)


def joint(answers: Answers) -> str:
    return page("One model for classes and budgets", answers.of("joint"), _section, RULES, "joint.png")


def target(case: Case) -> str:
    return f"quotient at least {case.targets['quotient']:g} at each budget"


def judge(case: Case) -> Judgement:
    wanted = case.targets["quotient"]
    found = {budget: compared(case, budget) for budget in budgets_of(case)}
    known = {budget: one for budget, one in found.items() if one is not None}
    checks = [_check(f"budget {budget:g}: quotient", one, wanted) for budget, one in found.items()]
    misses = "; ".join(check.miss for check in checks if check.miss)
    texts = ", ".join(f"{one.smallest.quotient:.2f} at {budget:g}" for budget, one in known.items())
    return Judgement(f"smallest quotient by budget: {texts or 'none'}", (Check(target(case), misses),))


def budgets_of(case: Case) -> list[float]:
    return [group["budget"] for group in case.values[0]["budgets"]]


def curves_of(case: Case, budget: float | None, kind: str) -> list[Mapping[str, Any]]:
    """One entry a seed; without a budget those with nothing said."""
    if budget is None:
        return [value["nothing_said"][kind] for value in case.values]
    return [group[kind] for value in case.values for group in value["budgets"] if group["budget"] == budget]


def compared(case: Case, budget: float | None) -> Comparison | None:
    fronts: list[Sequence[Front]] = [[front_of(curves) for curves in curves_of(case, budget, kind)] for kind in KINDS]
    return compare(*fronts)


def _check(name: str, found: Comparison | None, wanted: float) -> Check:
    if found is None:
        return Check(f"{name} at least {wanted:g}", f"{name} unknown, no error up to {LARGEST:g} % lies on both fronts")
    return at_least(name, found.smallest.quotient, wanted)


def _section(case: Case) -> str:
    asked = [*budgets_of(case), None]
    rows = [_row(case, budget) for budget in asked]
    notes = [_trained(case), *[_apart(case, budget) for budget in asked if compared(case, budget) is None]]
    return document(table(HEADER, rows), bullets([f"{target(case)}: {judge(case).verdict}", *notes])).rstrip()


def _trained(case: Case) -> str:
    """How the joint model's training differs from that of each alone."""
    asked = case.answers[0].data["config"].get("asked", {})
    longer, margin = asked.get("longer", 1), asked.get("margin", 0)
    steps = f"{longer} times as many steps as" if longer > 1 else "as many steps as"
    beyond = f", with budgets up to {margin:g} beyond both ends" if margin else ""
    return f"The joint model learned for {steps} each model alone{beyond}."


def _apart(case: Case, budget: float | None) -> str:
    """Where two fronts lie that have no error in common."""
    where = []
    for kind in KINDS:
        points = [point for curves in curves_of(case, budget, kind) for point in front_of(curves)]
        ratios, errors = [point[RATIO] for point in points], [point["error"] for point in points]
        spans = f"{_span(ratios, ratio_text)} x at {_span(errors, error_text)} %"
        where.append(f"{kind} {spans}")
    name = NOTHING_SAID if budget is None else f"budget {budget:g}"
    return f"{name}: no error up to {LARGEST:g} % lies on both fronts; {', '.join(where)}"


def _span(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def _row(case: Case, budget: float | None) -> list[str]:
    found = compared(case, budget)
    name = NOTHING_SAID if budget is None else f"{budget:g}"
    verdict_text = "none set" if budget is None else verdict([_check("quotient", found, case.targets["quotient"])])
    if found is None:
        return [name, *[NOTHING] * 6, verdict_text]
    return [
        name,
        f"{error_text(found.low)} to {error_text(found.high)}",
        error_text(found.middle.error),
        ratio_text(found.middle.first),
        ratio_text(found.middle.second),
        f"{found.middle.quotient:.2f}",
        f"{found.smallest.quotient:.2f} ({error_text(found.smallest.error)} %)",
        verdict_text,
    ]
