"""What each part of the method is worth: ratios at equal error beside those of the method as it is."""

from collections.abc import Sequence

from ..curves import ratio_at
from ..equal_error import ERRORS, Front
from ..markdown import document, table
from ..numbers import NOTHING, mean_of, measure, ratio_text, whole_text
from .answers import Answers, Case
from .checks import NONE_SET, Judgement
from .fronts import RATIO, front_of
from .page import page

USUAL = "as_it_is"
FEW = 4  # errors
RULES = (
    "The same training with one thing different; all on the same subsets. Ratios are harmonic over them.",
    "Of each curve the thresholds that no other beats on validation data, read on test data; between two of them the"
    " logarithm of the ratio in proportion to the error. In brackets the quotient with the method as it is at the same"
    " test error; - is an error that a curve does not cover.",
    "The errors are four of those that the method as it is covers and that most variants do.",
    "Seconds are those of training.",
)


def ablations(answers: Answers) -> str:
    return page("What each part is worth", answers.of("ablations"), _section, RULES, "ablations.png")


def target(case: Case) -> str:
    return NONE_SET


def judge(case: Case) -> Judgement:
    """One error, in the middle of those shown."""
    errors = errors_of(case)
    if not errors:
        return Judgement(f"no error is covered by {title(USUAL)}")
    error = errors[len(errors) // 2]
    quotients = {name: _quotient(case, name, error) for name in variants_of(case) if name != USUAL}
    texts = [f"{title(name)} {NOTHING if q is None else format(q, '.2f')}" for name, q in quotients.items()]
    return Judgement(f"ratio at {error:g} % over {title(USUAL)}: {', '.join(texts)}")


def title(variant: str) -> str:
    return variant.replace("_", " ")


def variants_of(case: Case) -> list[str]:
    """The method as it is first."""
    return sorted(case.values[0]["variants"], key=lambda name: name != USUAL)


def fronts_of(case: Case, variant: str) -> list[Front]:
    return [front_of(value["variants"][variant]) for value in case.values if variant in value["variants"]]


def errors_of(case: Case) -> list[float]:
    """A few that the method as it is covers, those that most variants cover first."""
    usable = [error for error in ERRORS if _ratio(case, USUAL, error) is not None]
    names = variants_of(case)
    shared = {error: sum(_ratio(case, name, error) is not None for name in names) for error in usable}
    most = [error for error in usable if shared[error] == max(shared.values())]
    last = len(most) - 1
    return sorted({most[round(place * last / (FEW - 1))] for place in range(FEW)}) if most else []


def _ratio(case: Case, variant: str, error: float) -> float | None:
    """The mean over seeds where all of them cover the error."""
    fronts = fronts_of(case, variant)
    ratios = [ratio_at(front, error, RATIO) for front in fronts]
    return None if None in ratios else mean_of(measure(ratios))


def _quotient(case: Case, variant: str, error: float) -> float | None:
    own, usual = _ratio(case, variant, error), _ratio(case, USUAL, error)
    return None if own is None or usual is None else own / usual


def _section(case: Case) -> str:
    errors = errors_of(case)
    header = ["variant", *(f"at {error:g} %" for error in errors), "seconds"]
    return document(table(header, [_row(case, name, errors) for name in variants_of(case)])).rstrip()


def _row(case: Case, variant: str, errors: Sequence[float]) -> list[str]:
    seconds = measure(value["variants"].get(variant, {}).get("seconds") for value in case.values)
    return [title(variant), *(_cell(case, variant, error) for error in errors), whole_text(mean_of(seconds))]


def _cell(case: Case, variant: str, error: float) -> str:
    ratio, quotient = _ratio(case, variant, error), _quotient(case, variant, error)
    if ratio is None or quotient is None:
        return NOTHING
    return ratio_text(ratio) if variant == USUAL else f"{ratio_text(ratio)} ({quotient:.2f})"
