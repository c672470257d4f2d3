"""Log dropout rates: two clusters or a continuum."""

from collections.abc import Sequence

import numpy as np

from .load import Results
from .markdown import bullets, document, table
from .methods import TITLES
from .numbers import NOT_RECORDED, NOT_RUN, NOTHING
from .paper import Paper

METHODS = ("bc-gnj", "bc-ghs", "bc-io-gnj")
UNIFORM = 5 / 9  # the bimodality coefficient of a uniform distribution
FEW = 0.05  # of all scales in the middle: fewer is a gap between clusters
HEADER = ["method", "scales", "number", "largest gap / range", "in the middle third", "bimodality", "reads as"]
RULES = (
    "The largest gap is the longest stretch without a scale between the 5 % and the 95 % quantile, over the distance of"
    " those two.",
    "The scales are split in two where the variance within the parts is smallest. The middle third is that of the"
    " stretch between the two means; of evenly spread scales one in six lies there, between two clusters hardly any.",
    "The bimodality coefficient is (skewness squared + 1) / kurtosis with the usual corrections for small samples;"
    f" 0.33 is a normal distribution, {UNIFORM:.2f} an even one, 1 two points. A skewed single cluster raises it too.",
    f'"two clusters" means fewer than {FEW:.0%} of the scales in that third and a coefficient over {UNIFORM:.2f}.',
    "Groups of fewer than 20 scales are counted in the line of all scales only. The first seed is shown.",
)
Rates = dict[str, list[float]]


def histogram(results: Results, paper: Paper) -> str:
    models = [_model(results, paper, model) for model in paper.models_with(*METHODS)]
    return document(
        f"# Log dropout rates on {paper.dataset}: two clusters or a continuum",
        "![Histograms of log dropout rates](log_dropout.png)",
        "The paper says that BC-GHS splits them in two clusters where BC-GNJ gives a continuum.",
        *models,
        "## How to read it",
        bullets(RULES),
    )


def _model(results: Results, paper: Paper, model: str) -> str:
    rows = [row for method in paper.methods(model, METHODS) for row in _rows(results, model, method)]
    return document(f"## {paper.title(model)}", table(HEADER, rows)).rstrip()


def rates_of(results: Results, model: str, method: str) -> Rates:
    """The rates of the first seed, by group."""
    runs = results.of(model, method)
    return runs[0].data.get("log_dropout", {}) if runs else {}


def _rows(results: Results, model: str, method: str) -> list[list[str]]:
    rates = rates_of(results, model, method)
    if not rates:
        missing = NOT_RECORDED if results.of(model, method) else NOT_RUN
        return [[TITLES[method], missing, *[NOTHING] * (len(HEADER) - 2)]]
    groups = {"all": [rate for group in rates.values() for rate in group], **rates}
    shown = {name: group for name, group in groups.items() if name == "all" or len(group) >= 20}
    return [[TITLES[method], name, *_numbers(np.asarray(group, dtype=float))] for name, group in shown.items()]


def _numbers(rates: np.ndarray) -> list[str]:
    if len(rates) < 4 or np.ptp(rates) == 0:
        return [str(len(rates)), *[NOTHING] * 4]
    middle, coefficient = middle_third(rates), bimodality(rates)
    verdict = "two clusters" if middle < FEW and coefficient > UNIFORM else "a continuum"
    return [f"{len(rates):,}", f"{largest_gap(rates):.2f}", f"{middle:.1%}", f"{coefficient:.2f}", verdict]


def largest_gap(rates: Sequence[float] | np.ndarray) -> float:
    """The longest empty stretch between the 5 % and the 95 % quantile, as a part of that range."""
    low, high = np.quantile(rates, [0.05, 0.95])
    if high == low:
        return 0.0
    # The ends count as points: a stretch is measured inside the range only.
    inside = np.concatenate([[low], np.sort(np.clip(rates, low, high)), [high]])
    return float(np.diff(inside).max() / (high - low))


def middle_third(rates: Sequence[float] | np.ndarray) -> float:
    """The part of the scales in the middle third between the means of the best split in two."""
    ordered = np.sort(rates)
    counts = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)[:-1]
    left, right = sums / counts, (ordered.sum() - sums) / (len(ordered) - counts)
    best = int(np.argmax(counts * (len(ordered) - counts) * (right - left) ** 2))
    low, width = left[best], (right[best] - left[best]) / 3
    return float(np.mean((ordered > low + width) & (ordered < low + 2 * width)))


def bimodality(rates: Sequence[float] | np.ndarray) -> float:
    """Sarle's coefficient: (skewness^2 + 1) / (excess kurtosis + 3 (n-1)^2 / ((n-2) (n-3))), both bias-corrected."""
    values = np.asarray(rates, dtype=float)
    n = len(values)
    deviations = values - values.mean()
    second, third, fourth = (float(np.mean(deviations**power)) for power in (2, 3, 4))
    skewness = third / second**1.5 * (n * (n - 1)) ** 0.5 / (n - 2)
    excess = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * (fourth / second**2 - 3) + 6)
    return (skewness**2 + 1) / (excess + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3)))
