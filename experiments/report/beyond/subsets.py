"""What is lost on subsets that training never met."""

from collections.abc import Sequence

from ..bootstrap import RESAMPLES
from ..markdown import bullets, document, table
from ..numbers import dashes, error_text, ratio_text
from .answers import Answers, Case
from .checks import Judgement, at_least, at_most, verdict
from .page import page
from .pairs import Pair, error_loss, harmonic_loss, harmonic_ratio, pairs_of, pooled_error, ratio_loss

HEADER = [
    "classes",
    "subsets",
    "loss in ratio, %",
    "loss in error, points",
    "unseen: harmonic ratio",
    "seen",
    "loss of these, %",
    "unseen: pooled error",
    "seen",
]
RULES = (
    "Five models, each trained without a fifth of the subsets; all are asked for all subsets. So every subset is unseen"
    " in one model and seen in four, and over all subsets each model stands as often for unseen as for seen: what one"
    " model does better than another falls out of the comparison.",
    "Loss in ratio: for each subset its ratio unseen over the geometric mean of its four ratios seen; 1 less the"
    " geometric mean of these quotients over subsets. Were unseen no different from seen, chance would on average leave"
    " its logarithm at nothing, where a mean of quotients would come out too large. The target is about this loss.",
    "Loss in error: for each subset its test error unseen less the mean of its four seen; the mean over subsets.",
    "Harmonic ratios are all weights before over all weights kept, pooled errors all wrong answers over all images;"
    " both of all subsets of a size. The loss of the harmonic ratios stands beside the paired one.",
    f"In brackets 95 % intervals by the bootstrap over subsets, {RESAMPLES:,} resamples: how far other subsets would"
    " move a number, not how far other seeds would.",
    "Each model cuts at one threshold: of those that make 60 subsets that it had met at least so many times smaller as"
    " the configuration says (harmonic), the one with the smallest validation error over them.",
)


def subsets(answers: Answers) -> str:
    return page("Subsets that training never met", answers.of("subsets"), _section, RULES, "subsets.png")


def target(case: Case) -> str:
    wanted = case.targets
    loss = f"loss at most {wanted['ratio_loss']:g} % in ratio and {wanted['error_loss']:g} points in error"
    if "ratio_harmonic" not in wanted:
        return loss
    return f"{loss}; unseen: harmonic at least {wanted['ratio_harmonic']:g} at {wanted['error']:g} %"


def judge(case: Case) -> Judgement:
    pairs = pairs_of(case)
    ratio, error = ratio_loss(pairs), error_loss(pairs)
    unseen = [pair.unseen for pair in pairs]
    size, pooled = harmonic_ratio(unseen).value, pooled_error(unseen).value
    wanted = case.targets
    checks = [
        at_most("loss in ratio", ratio.value, wanted["ratio_loss"], _percent, " %"),
        at_most("loss in error", error.value, wanted["error_loss"], _points, " points"),
    ]
    if "ratio_harmonic" in wanted:
        checks.append(at_least("harmonic ratio", size, wanted["ratio_harmonic"]))
        checks.append(at_most("error", pooled, wanted["error"], _points, " %"))
    found = (
        f"loss {ratio.text(_percent)} % in ratio, {error.text(_points)} points in error;"
        f" unseen: harmonic {ratio_text(size)} at {error_text(pooled)} %"
    )
    return Judgement(found, tuple(checks))


def by_size(pairs: Sequence[Pair]) -> dict[int, list[Pair]]:
    sizes = sorted({len(pair.classes) for pair in pairs})
    return {size: [pair for pair in pairs if len(pair.classes) == size] for size in sizes}


def _section(case: Case) -> str:
    pairs = pairs_of(case)
    rows = [_row(str(size), own) for size, own in by_size(pairs).items()]
    checks = judge(case).checks
    thresholds = "; ".join(", ".join(f"{fold['threshold']:.2f}" for fold in value["folds"]) for value in case.values)
    return document(
        table(HEADER, [*rows, _row("all", pairs)]),
        bullets(f"{check.wanted}: {verdict([check])}" for check in checks),
        "The worst subsets:",
        table(["worst by", "classes", "unseen: ratio (error)", "seen: ratio (error)"], _worst(pairs)),
        f"Thresholds of the five models: {thresholds}.",
    ).rstrip()


def _row(name: str, pairs: Sequence[Pair]) -> list[str]:
    unseen, seen = [pair.unseen for pair in pairs], [pair.seen for pair in pairs]
    return [
        name,
        str(len(pairs)),
        ratio_loss(pairs).text(_percent),
        error_loss(pairs).text(_points),
        ratio_text(harmonic_ratio(unseen).value),
        ratio_text(harmonic_ratio(seen).value),
        harmonic_loss(pairs).text(_percent),
        error_text(pooled_error(unseen).value),
        error_text(pooled_error(seen).value),
    ]


def _worst(pairs: Sequence[Pair]) -> list[list[str]]:
    worst = {
        "error unseen": max(pairs, key=lambda pair: pair.unseen.error),
        "loss in error": max(pairs, key=lambda pair: pair.rise),
        "loss in ratio": max(pairs, key=lambda pair: pair.loss),
    }
    return [
        [name, dashes(pair.classes), *(f"{ratio_text(1 / side.inverse)} ({side.error:.2f})" for side in pair.sides)]
        for name, pair in worst.items()
    ]


def _percent(value: float | None) -> str:
    return f"{value:.1f}"


def _points(value: float | None) -> str:
    return f"{value:.3f}"
