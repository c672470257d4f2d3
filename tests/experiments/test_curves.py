"""What is read off curves: budgets, equal errors, classes and rates, checked on made-up results."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.report.budgets import Curves, better_budget, budgets
from experiments.report.classes import classes
from experiments.report.curves import accuracy_at, pareto, ratio_at, read_on_test
from experiments.report.equal_error import quotients
from experiments.report.histogram import bimodality, histogram, largest_gap, middle_third
from experiments.report.load import Results
from experiments.report.paper import Paper
from experiments.report.per_context import per_context

from tests.experiments.synthetic import (
    LENET,
    curve,
    point,
    results_of,
    rows_of,
    run,
    section,
    trade_off,
    write_speed,
)

# Curves


def test_a_front_leaves_out_what_is_beaten_in_both() -> None:
    points = [point(-2, 100, 3.0), point(-1, 50, 3.5), point(0, 50, 2.0), point(1, 10, 2.0), point(2, 2, 1.0)]
    assert [(p["ratio_mean"], p["error"]) for p in pareto(points)] == [(2, 1.0), (50, 2.0), (100, 3.0)]


def test_accuracy_is_linear_in_the_logarithm_of_the_rate() -> None:
    front = [point(1, 10, 1.0), point(0, 1000, 3.0)]
    assert accuracy_at(front, 100) == pytest.approx(98.0)
    assert accuracy_at(front, 1000) == pytest.approx(97.0)
    assert accuracy_at(front, 2) == pytest.approx(99.0)  # the smaller network serves there too
    assert accuracy_at(front, 1001) is None
    assert accuracy_at([], 2) is None


def test_the_ratio_at_an_error_is_interpolated_in_its_logarithm() -> None:
    front = [point(1, 10, 1.0), point(0, 1000, 3.0)]
    assert ratio_at(front, 2.0, "ratio_mean") == pytest.approx(100)
    assert ratio_at(front, 2.0, "ratio_harmonic") == pytest.approx(50)
    assert ratio_at(front, 0.9, "ratio_mean") is None


def test_thresholds_are_those_of_the_validation_front_whatever_test_says() -> None:
    validation = [point(0, 10, 1.0), point(1, 20, 1.5), point(2, 15, 2.0)]
    test = [point(0, 10, 1.2), point(1, 20, 1.8), point(2, 15, 0.1)]
    chosen = read_on_test({"validation": validation, "test": test})
    assert [(p["ratio_mean"], p["error"]) for p in chosen] == [(10, 1.2), (20, 1.8)]


# Budgets against the baselines


def test_the_budget_is_chosen_on_validation_data() -> None:
    first = Curves(validation=[[point(0, 10, 1.0)]], test=[[point(0, 10, 2.0)]])
    second = Curves(validation=[[point(0, 10, 1.5)]], test=[[point(0, 10, 0.5)]])
    assert better_budget([first, second], 5) == ((98.0, 1), "0")
    assert better_budget([first, second], 11) == (None, "")


def budget_results(folder: Path, gnj: list[dict[str, float]]) -> Results:
    ours = [
        trade_off("c_w = 0", [point(1, 2, 1.0), point(0, 10, 2.0)]),
        trade_off("c_w = 1", [point(1, 10, 1.2), point(0, 60, 3.0)]),
    ]
    return results_of(
        folder, run(LENET, "bhc-cw", trade_offs=ours), run(LENET, "bc-gnj", trade_offs=[trade_off("all contexts", gnj)])
    )


def test_a_shortfall_within_the_limit_is_reached(tmp_path: Path, paper: Paper) -> None:
    text = section(budgets(budget_results(tmp_path, [point(1, 1.2, 0.95), point(0, 21, 5.0)]), paper), "LeNet-300-100")
    assert rows_of(text, "20")[0][2:5] == ["98.10", "98.10 (1)", "95.07"]  # 98.8 - 1.8 ln 2 / ln 6
    assert rows_of(text, "20")[0][1] == "-"
    assert not rows_of(text, "30")
    line = next(line for line in text.splitlines() if line.startswith("- BC-GNJ"))
    assert "missed" not in line
    assert "BC-GHS: not run" in text


@pytest.mark.parametrize(
    ("lowest", "highest", "words"),
    [
        (point(1, 1.2, 0.8), point(0, 21, 0.85), "largest shortfall 1.05 (at 20 x; limit 0.1)"),
        (point(1, 1.2, 2.0), point(0, 90, 9.0), "no BHC network from 80 x on"),
    ],
)
def test_a_shortfall_over_the_limit_and_a_rate_that_only_a_baseline_reaches_are_missed(
    tmp_path: Path, paper: Paper, lowest: dict[str, float], highest: dict[str, float], words: str
) -> None:
    text = budgets(budget_results(tmp_path, [lowest, highest]), paper)
    line = next(line for line in text.splitlines() if line.startswith("- BC-GNJ"))
    assert line.startswith("- BC-GNJ: on the rates above **missed**: ")
    assert words in line


# One hypernetwork against training per context


def test_quotients_stay_inside_both_fronts_and_average_seeds() -> None:
    ours = [[point(1, 10, 0.4), point(0, 1000, 1.4)], [point(1, 20, 0.5), point(0, 2000, 1.5)]]
    alone = [[point(1, 20, 0.2), point(0, 2000, 1.2)]]
    rows = quotients(ours, alone, ratio="ratio_mean", extra=[0.7, 9.0])
    assert [row.error for row in rows] == [0.5, 0.6, 0.7, 0.8, 1.0, 1.2]
    at_one = rows[4]
    assert at_one.first == pytest.approx((10 * 100**0.6 + 20 * 100**0.5) / 2)
    assert at_one.second == pytest.approx(20 * 100**0.8)
    assert quotients(ours, [[point(1, 5, 3.0)]], ratio="ratio_mean") == []


def per_context_results(folder: Path, factor: float, *, seconds: float = 40.0) -> Results:
    points = curve(20, 3000, 0.4)
    scaled = [point(p["threshold"], factor * p["ratio_mean"], p["error"]) for p in points]
    write_speed(folder, LENET, emit_ms=2.0, alone=seconds)
    return results_of(
        folder,
        run(LENET, "bhc-cy", trade_offs=[trade_off("all contexts", scaled)]),
        run(LENET, "per-context", trade_offs=[trade_off("all contexts", points)]),
    )


def test_equal_error_times_and_break_even(tmp_path: Path, paper: Paper) -> None:
    text = section(per_context(per_context_results(tmp_path, 0.9), paper), "LeNet-300-100")
    assert "mean ratios: reached: smallest 0.90" in text
    assert "harmonic ratios: reached: smallest 0.90" in text
    assert rows_of(text, "0.90")[0][3] == "0.90"  # our operating point is on the grid
    assert "reached: 2.0 ms (cpu, 2 threads) to the pruned network against 40.0 s" in text
    assert "is 20,000 times less; to reach: 10,000. To the bytes of the packed file: 8.0 ms, 5,000 times" in text
    assert "are those of 3 contexts trained alone" in text  # 90 s / 40 s, rounded up


def test_misses_against_training_per_context_stay_visible(tmp_path: Path, paper: Paper) -> None:
    results = per_context_results(tmp_path, 0.7, seconds=15.0)
    text = section(per_context(results, paper), "LeNet-300-100")
    assert "mean ratios: **missed**: smallest 0.70" in text
    assert "trained on cpu, 2 threads: **missed**" in text
    assert "7,500 times less; to reach: 10,000" in text


def test_times_that_were_not_measured_are_said_to_be_missing(tmp_path: Path, paper: Paper) -> None:
    points = [trade_off("all contexts", curve(20, 3000, 0.4))]
    results = results_of(
        tmp_path, run(LENET, "bhc-cy", trade_offs=points), run(LENET, "per-context", trade_offs=points)
    )
    assert "training time: not run" in section(per_context(results, paper), "LeNet-300-100")


# Classes and log dropout rates


def test_classes_name_who_loses_most_and_the_spread(tmp_path: Path, paper: Paper) -> None:
    def entries(loss: float) -> list[dict[str, Any]]:
        errors = [(0.5, 0.6, 0.7), (1.0, 1.1, 1.0 + loss), (2.0, 2.1, 2.2)]
        return [
            {"class": label, "images": 10, "original_error": a, "pruning_error": b, "file_error": c}
            for label, (a, b, c) in enumerate(errors)
        ]

    seeds = [run(LENET, "bhc-cy", seed=seed, per_class=entries(loss)) for seed, loss in enumerate((1.0, 3.0))]
    text = section(classes(results_of(tmp_path, *seeds), paper), "LeNet-300-100")
    verdict, *states = rows_of(text, "BHC c_y")
    assert verdict[1:] == ["1 (+2.00)", "1.50", "1.50", "2.30"]
    assert states[2][1:] == ["file", "0.70", "3.00", "2.20"]


def test_two_clusters_and_a_continuum_are_told_apart(tmp_path: Path, paper: Paper) -> None:
    even = np.linspace(-5, 5, 1001)
    apart = np.concatenate([np.linspace(-6, -4, 300), np.linspace(4, 6, 700)])
    assert middle_third(even) == pytest.approx(1 / 6, abs=0.01)
    assert middle_third(apart) == 0.0
    assert largest_gap(even) < 0.01
    assert largest_gap(apart) == pytest.approx(8 / (5.857 + 5.666), abs=0.01)
    assert bimodality(even) == pytest.approx(5 / 9, abs=0.01)
    assert bimodality(np.random.default_rng(0).normal(size=20_000)) == pytest.approx(1 / 3, abs=0.02)
    results = results_of(
        tmp_path,
        run(LENET, "bc-gnj", log_dropout={"fc1 inputs": even.tolist()}),
        run(LENET, "bc-ghs", log_dropout={"fc1 inputs": apart.tolist(), "fc2 inputs": [1.0, 2.0]}),
    )
    text = section(histogram(results, paper), "LeNet-300-100")
    assert [row[-1] for row in rows_of(text, "BC-GNJ")] == ["a continuum"] * 2
    assert [row[1:3] + row[-1:] for row in rows_of(text, "BC-GHS")] == [
        ["all", "1,002", "two clusters"],
        ["fc1 inputs", "1,000", "two clusters"],
    ]
