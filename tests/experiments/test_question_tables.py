"""What the tables of the questions beyond the paper claim, checked on made-up answers."""

import json
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.report.beyond import TABLES, Answers
from experiments.report.beyond.checks import at_least, at_most, verdict
from experiments.report.beyond.features import Row
from experiments.report.beyond.fronts import compare, front_of
from experiments.report.beyond.pairs import error_loss, harmonic_ratio, pairs_of, pooled_error, ratio_loss
from experiments.report.bootstrap import estimate, mean
from experiments.report.numbers import error_text

from bhc.errors import BhcError
from tests.experiments.made_up_answers import (
    CONFIGS,
    answers_of,
    folds,
    line,
    promised,
    read,
    subset_row,
    write_answer,
)
from tests.experiments.synthetic import read_all, rows_of, section
from tests.experiments.toys import EXPERIMENTS

LENET = "LeNet-300-100"


def page(name: str, answers: Answers) -> str:
    return TABLES[f"{name}.md"](answers)


# Intervals and verdicts


def test_an_interval_is_as_wide_as_theory_says_and_always_the_same() -> None:
    values = np.random.default_rng(3).normal(5, 2, 400).tolist()
    found = estimate(mean, values)
    assert found.value == pytest.approx(np.mean(values))
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.std(values) / sqrt(400), rel=0.1)
    assert found.low < found.value < found.high
    assert estimate(mean, values) == found
    assert estimate(mean, [1.5]).text(error_text) == "1.50 (1.50 to 1.50)"


def test_columns_are_drawn_together() -> None:
    column = [1.0, 5.0, 30.0]
    found = estimate(lambda some, others: some.sum(-1) / others.sum(-1), column, [2 * value for value in column])
    assert (found.low, found.high) == (0.5, 0.5)


def test_targets_are_reached_on_the_number_itself() -> None:
    assert verdict([at_most("loss", 3.0, 3.0, error_text, " %"), at_least("ratio", 200.0, 200)]) == "reached"
    assert verdict([at_most("loss", 3.5, 3, error_text, " %"), at_least("ratio", 150.0, 200)]) == (
        "**missed**: loss 3.50 % is 0.50 % over; ratio 150 is 25.0 % short of 200"
    )


# Subsets that training never met


def three_models(unseen: float = 81.0, wrong: int = 12) -> dict[str, Any]:
    """Two subsets; the first loses a fifth of its ratio, the second nothing."""
    first, second = (0, 1), (2, 3)
    return folds(
        [subset_row(first, unseen, wrong, seen=False), subset_row(second, 50, 4, seen=True)],
        [subset_row(first, 50, 8, seen=True), subset_row(second, 100, 5, seen=False)],
        [subset_row(first, 200, 10, seen=True), subset_row(second, 200, 8, seen=True)],
    )


def test_loss_is_paired_subset_by_subset(tmp_path: Path) -> None:
    answers = answers_of(tmp_path, "lenet-300-100-subsets", three_models())
    pairs = pairs_of(next(case for case in answers.cases if case.config.name == "lenet-300-100-subsets"))
    assert ratio_loss(pairs).value == pytest.approx(10.0)  # sqrt(81 / sqrt(50 * 200) * 100 / 100) is 0.9
    assert error_loss(pairs).value == pytest.approx(0.1)  # 1.2 - 0.9 and 0.5 - 0.6
    assert harmonic_ratio([pair.unseen for pair in pairs]).value == pytest.approx(2 / (1 / 81 + 1 / 100))
    assert harmonic_ratio([pair.seen for pair in pairs]).value == pytest.approx(80.0)
    assert pooled_error([pair.unseen for pair in pairs]).value == pytest.approx(0.85)
    assert pooled_error([pair.seen for pair in pairs]).value == pytest.approx(0.75)


def test_a_subset_that_two_models_held_out_is_refused(tmp_path: Path) -> None:
    broken = three_models()
    broken["folds"][2]["subsets"][0]["seen"] = False
    answers = answers_of(tmp_path, "lenet-300-100-subsets", broken)
    with pytest.raises(BhcError, match=r"subsets-seed0.json: \[0, 1\]"):
        page("subsets", answers)


# Quotients at equal error


def test_the_quotient_in_the_middle_and_the_smallest_of_the_errors_both_cover() -> None:
    ours, other = front_of(line((10, 1.0), (40, 3.0))), front_of(line((5, 0.5), (20, 1.5), (80, 5.5)))
    found = compare([ours], [other])
    assert (found.low, found.high) == (1.0, 3.0)
    assert found.middle.error == 2.0
    assert found.middle.first == pytest.approx(20.0)
    assert found.middle.second == pytest.approx(20 * 4**0.125)
    assert found.smallest.error == pytest.approx(1.5)
    assert found.smallest.quotient == pytest.approx(10 * 4**0.25 / 20)


def test_errors_that_nobody_would_bear_do_not_count() -> None:
    low, high = front_of(line((10, 1.0), (40, 60.0))), front_of(line((10, 7.0), (40, 60.0)))
    assert compare([low], [low]).high == 5.0
    assert compare([low], [high]) is None
    assert compare([low], []) is None


def joint_answer(*quotients: float) -> dict[str, Any]:
    """At each budget a joint model whose ratios are at least so many times those of the model alone."""
    groups = [
        {"budget": place / 4, "joint": line((20 * q, 1.0), (100 * q, 2.0)), "alone": line((20, 1.0), (80, 2.0))}
        for place, q in enumerate(quotients)
    ]
    return {
        "budgets": groups,
        "nothing_said": {"joint": line((9, 1.0), (20, 2.0)), "alone": line((18, 1.0), (36, 2.0))},
    }


def test_fronts_that_do_not_meet_miss_the_target(tmp_path: Path) -> None:
    answer = joint_answer(1.0)
    answer["budgets"][0]["joint"] = line((10, 2.5), (20, 3.0))
    part = section(page("joint", answers_of(tmp_path, "lenet-300-100-joint", answer)), LENET)
    assert rows_of(part, "0")[0][-1] == "**missed**: quotient unknown, no error up to 5 % lies on both fronts"
    assert "joint 10.0 to 20.0 x at 2.50 to 3.00 %, alone 20.0 to 80.0 x at 1.00 to 2.00 %" in part


# Dials and promises


def test_a_ratio_that_falls_along_the_dial_is_counted(tmp_path: Path) -> None:
    committed = json.loads((EXPERIMENTS / "results/contexts/lenet-300-100-budgets-seed0.json").read_text())
    committed["answer"]["sweep"][-1]["ratio"] = 1.0
    text = page("budgets", answers_of(tmp_path, "lenet-300-100-budgets", committed["answer"]))
    assert "**missed**: steps at which the ratio falls 1 is 1 over" in section(text, LENET)


@pytest.mark.parametrize(("error", "ratio", "better"), [(2.9, 20.0, True), (3.0, 25.0, False), (2.9, 19.0, False)])
def test_a_mask_needs_both_a_lower_error_and_the_ratio(error: float, ratio: float, better: bool) -> None:
    assert Row("left half", 392, ratios=[ratio], errors=[error], zero_filled=[3.0]).better(20.0) == better


@pytest.mark.parametrize(("over", "word"), [(1, "reached"), (2, "**missed**: surely exceeded 2 is 1 over")])
def test_five_of_a_hundred_promises_may_be_exceeded(tmp_path: Path, over: int, word: str) -> None:
    rows = [promised((0, 1), 2.1, 1.5)] + [promised((4, 7), 3.0, 2.2)] * over
    rows += [promised((2, 3), 2.0, 1.4, ratio=50.0)] * (18 - over)
    rows += [{"classes": [8, 9], "max_error": 2.0, "refused": "too few images"}]
    answers = answers_of(tmp_path, "lenet-300-100-guarantee", {"contexts": rows})
    part = section(page("guarantee", answers), LENET)
    assert rows_of(part, "0")[0][1:6] == ["20", "1", str(over + 1), str(over), "1"]
    assert f"surely exceeded in at most 5 of 100 contexts: {word}" in part
    assert rows_of(part, "4-7")[0][1:5] == ["3.00", "2.20", "2.00", "60 of 2,000"]
    assert rows_of(part, "0")[0][6] == {1: "52.8", 2: "54.3"}[over]


# Everything together


def test_what_was_not_run_names_its_configuration_on_every_page(tmp_path: Path) -> None:
    answers = read(tmp_path)
    pages = [make(answers) for make in TABLES.values()]
    for path in CONFIGS.glob("*.toml"):
        words = f"not run: `configs/contexts/{path.name}`"
        assert sum(words in text for text in pages) == 2, path.name  # its own page and the short one
    assert "quotient at least 0.85 at each budget" in page("short", answers)


def test_answers_of_several_seeds_are_named_on_every_page_and_spread(tmp_path: Path) -> None:
    """The committed ones, and each once more as that of another seed."""
    for path in (EXPERIMENTS / "results/contexts").glob("*-seed0.json"):
        write_answer(tmp_path, path.name.removesuffix("-seed0.json"), json.loads(path.read_text())["answer"])
        write_answer(tmp_path, path.name.removesuffix("-seed0.json"), json.loads(path.read_text())["answer"], seed=1)
    answers = read(tmp_path)
    pages = {name: make(answers) for name, make in TABLES.items()}
    assert not any("not run" in text for text in pages.values())
    assert "`lenet-300-100-joint`: 2 seeds (0, 1), trained on cuda: NVIDIA H200." in pages["joint.md"]
    assert " ± " in pages["budgets.md"]


def test_answers_are_none_of_the_papers_results_and_strangers_are_set_aside(tmp_path: Path) -> None:
    path = write_answer(tmp_path, "lenet-300-100-subsets", three_models())
    path.with_name("no-such-question-seed0.json").write_text(path.read_text())
    assert read_all(tmp_path).set_aside == ()
    answers = read(tmp_path)
    assert [reason.split(": ")[1] for reason in answers.set_aside] == ["no configuration is called no-such-question"]
    assert sum(len(case.answers) for case in answers.cases) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": None}, "subsets-seed0.json.seed is not a number"),
        ({"answer": {"folds": []}}, "answer.folds is not a list that is not empty"),
        ({"answer": {"fold": 1}}, "answer.folds is not there"),
        (
            {"answer": folds([{"classes": [0, 1]}])},
            "seed0.json: answer.folds[0].subsets[0].ratio is not there",
        ),
        ({"question": "joint"}, "subsets-seed0.json answers joint, not subsets"),
    ],
)
def test_a_broken_answer_is_named_with_the_place(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = write_answer(tmp_path, "lenet-300-100-subsets", three_models())
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(BhcError) as refused:
        read(tmp_path)
    assert words in str(refused.value)
