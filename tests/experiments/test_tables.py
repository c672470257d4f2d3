"""What the tables claim, checked on made-up results."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.report import build, read_paper, read_results
from experiments.report.budgets import Curves, better_budget, budgets
from experiments.report.build import TABLES
from experiments.report.classes import classes
from experiments.report.contexts import contexts
from experiments.report.curves import accuracy_at, pareto, ratio_at, read_on_test
from experiments.report.equal_error import quotients
from experiments.report.histogram import bimodality, histogram, largest_gap, middle_third
from experiments.report.load import TABLE_METHODS, TITLES, Paper, Results
from experiments.report.numbers import measure, ratio_text, with_spread
from experiments.report.per_context import per_context
from experiments.report.short import short
from experiments.report.table1 import table1
from experiments.report.table2 import table2
from experiments.report.verdicts import beside_paper

from bhc.errors import BhcError
from tests.experiments.synthetic import context, curve, point, run, trade_off, write, write_everything, write_speed

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PNG = b"\x89PNG\r\n\x1a\n"
LENET, CAFFE = "lenet-300-100", "lenet-5-caffe"


@pytest.fixture(scope="module")
def paper() -> Paper:
    return read_paper(EXPERIMENTS / "paper.toml")


def results_of(folder: Path, *runs: dict[str, Any]) -> Results:
    for result in runs:
        write(folder, result)
    return read_results(folder)


def section(text: str, title: str) -> str:
    """The part under a heading, without the parts after it."""
    return text.split(f"## {title}", 1)[1].split("\n## ", 1)[0]


def rows_of(text: str, first: str) -> list[list[str]]:
    """The cells of every table row whose first cell is ``first``."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if row[0] == first]


# The paper's numbers


def dense(widths: list[int]) -> int:
    """Weights of a LeNet of these widths: of three, all linear; of four, two convolutions of 5 x 5 first."""
    if len(widths) == 3:
        first, second, third = widths
        return first * second + second * third + 10 * third
    first, second, third, fourth = widths
    return 25 * first + 25 * first * second + third * fourth + 10 * fourth


def test_printed_architectures_give_the_printed_ratios(paper: Paper) -> None:
    ratios = {
        (model, method): dense(paper.data[model]["architecture"]) / dense(row["architecture"])
        for model in (LENET, CAFFE)
        for method, row in paper.data[model]["rows"].items()
    }
    for model, method in (
        (LENET, "bc-gnj"),
        (LENET, "bc-ghs"),
        (LENET, "bhc-cx"),
        (LENET, "bhc-cy"),
        (CAFFE, "bc-ghs"),
    ):
        assert ratios[model, method] == pytest.approx(paper.row(model, method)["pruning_ratio"], abs=0.55)
    assert ratios[CAFFE, "bc-gnj"] == pytest.approx(105.7, abs=0.05)  # printed 108
    assert ratios[CAFFE, "bhc-cy"] == pytest.approx(596, abs=0.5)  # printed 286
    assert all(len(row["bits"]) == len(row["architecture"]) for row in paper.data[CAFFE]["rows"].values())
    assert paper.row(CAFFE, "bc-io-gnj") is None


def test_a_baseline_target_is_nine_tenths_of_the_ratio_and_a_tenth_over_the_error(paper: Paper) -> None:
    assert paper.target(CAFFE, "bc-ghs", "bits") == {"bits_ratio_mean": 0.9 * 419, "bits_error": 1.1}
    assert paper.target(LENET, "bhc-cx-mixed", "pruning") == {}
    assert paper.target(CAFFE, "bc-io-gnj", "pruning") == {}


# Reading results


def test_nothing_run_shows_as_not_run_everywhere(tmp_path: Path, paper: Paper) -> None:
    results = read_results(tmp_path / "none")
    for model in (LENET, CAFFE):
        for table in (table1, table2):
            part = section(table(results, paper), paper.title(model))
            assert all(rows and "not run" in rows[0] for rows in (rows_of(part, TITLES[m]) for m in TABLE_METHODS))
        for table in (contexts, budgets, per_context, classes, histogram):
            assert "not run" in section(table(results, paper), paper.title(model))
    assert rows_of(table1(results, paper), "BHC c_y")[0][3] == "54 (1.8)"
    written = build(results, paper, tmp_path / "out")
    assert all(path.stat().st_size > 0 for path in written)


def test_the_main_experiment_counts_and_the_rest_is_named(tmp_path: Path) -> None:
    write(tmp_path, run(LENET, "bc-gnj", summary={"pruning_ratio_mean": 7.0}), "a-sweep")
    write(tmp_path, run(LENET, "bc-gnj", summary={"pruning_ratio_mean": 9.0}), "table1")
    write(tmp_path, run(LENET, "bhc-cw"), "budgets")
    (tmp_path / "table1" / "notes.json").write_text("[]")
    results = read_results(tmp_path)
    assert [found.summary("pruning_ratio_mean") for found in results.of(LENET, "bc-gnj")] == [9.0]
    assert len(results.of(LENET, "bhc-cw")) == 1
    assert [("a-sweep" in reason, "notes.json" in reason) for reason in results.set_aside] == [
        (False, True),
        (True, False),
    ]


def test_two_files_of_one_seed_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, run(LENET, "bhc-cy", seed=1))
    path.with_name("again.json").write_text(path.read_text())
    with pytest.raises(BhcError, match=r"again.json and .*both bhc-cy of lenet-300-100 with seed 1"):
        read_results(tmp_path)


# Numbers over seeds


def test_mean_and_half_the_range_over_seeds() -> None:
    measured = measure([1200.0, 1300.0, None, 1550.0])
    assert (measured.mean, measured.spread, measured.seeds) == (1350.0, 175.0, 3)
    assert with_spread(measured) == "1,350 ± 175"
    assert with_spread(measure([9.0])) == "9.00"
    assert with_spread(measure([None])) == "not recorded"
    assert [ratio_text(value) for value in (1304.4, 53.78, 9.254)] == ["1,304", "53.8", "9.25"]


def test_table1_takes_means_over_seeds_and_extremes_over_all(tmp_path: Path, paper: Paper) -> None:
    results = results_of(
        tmp_path,
        run(LENET, "bhc-cy", seed=0, summary={"pruning_ratio_mean": 1000.0, "error_max": 1.2, "file_bytes_max": 300}),
        run(LENET, "bhc-cy", seed=1, summary={"pruning_ratio_mean": 2000.0, "error_max": 2.4, "file_bytes_max": 400}),
    )
    row = rows_of(table1(results, paper), "BHC c_y")[0]
    assert row[1] == "2"
    assert row[4] == "1,500 ± 500 (0.90 ± 0.00)"
    assert row[5] == "800 ± 0 (300)"
    assert row[10] == "260 ± 0 (400)"
    assert row[12] == "2.40"


# Verdicts


@pytest.mark.parametrize(
    ("ratio", "error", "words"),
    [
        (60.0, 1.7, "better: 1.11 x its ratio, error -0.10"),
        (60.0, 1.8, "better: "),
        (54.3, 1.83, "same: "),
        (50.0, 2.0, "worse: "),
        (540.0, 1.9, "larger, less accurate: 10.0 x its ratio, error +0.10"),
        (27.0, 1.2, "smaller, more accurate: 0.50 x its ratio, error -0.60"),
    ],
)
def test_better_needs_both_ratio_and_error(ratio: float, error: float, words: str) -> None:
    assert beside_paper(ratio, error, (54, 1.8)).startswith(words)


def test_a_target_is_reached_on_the_number_itself(tmp_path: Path, paper: Paper) -> None:
    exact = {"pruning_ratio_mean": 1300.0, "pruning_ratio_harmonic": 750.0, "pruning_error": 1.0}
    results = results_of(tmp_path, run(LENET, "bhc-cy", summary=exact))
    assert rows_of(table1(results, paper), "BHC c_y")[1][5] == "reached"


def test_a_miss_stays_visible_and_says_by_how_much(tmp_path: Path, paper: Paper) -> None:
    low = {"pruning_ratio_mean": 1170.0, "pruning_error": 1.05, "bits_ratio_mean": 10500.0, "bits_error": 1.3}
    results = results_of(
        tmp_path,
        run(LENET, "bhc-cy", seed=0, summary=low),
        run(LENET, "bhc-cy", seed=1, summary=low | {"bits_error": 0.9}),
    )
    row = rows_of(table1(results, paper), "BHC c_y")[1]
    assert row[5] == ("**missed**: mean 1,170 is 10.0 % short of 1,300; error 1.050 is 0.050 over (0 of 2 seeds alone)")
    assert row[7] == "reached (1 of 2 seeds alone)"  # the mean error is 1.1


def test_the_papers_one_domain_row_stands_beside_both_protocols(tmp_path: Path, paper: Paper) -> None:
    results = results_of(
        tmp_path, run(CAFFE, "bhc-cx-mixed", summary={"pruning_ratio_mean": 30.0, "pruning_error": 0.9})
    )
    part = section(table1(results, paper), "LeNet-5-Caffe")
    assert rows_of(part, "BHC c_x, domain")[0][3:5] == ["187 (0.2)", "not run"]
    mixed, verdict = rows_of(part, "BHC c_x, mixed")
    assert mixed[3:5] == ["187 (0.2)", "30.0 (0.90)"]
    assert verdict[2].startswith("worse: 0.16 x its ratio, error +0.70")
    assert verdict[4:6] == ["none set", "-"]


# Table 2 and the context rows


def test_table2_has_mean_widths_over_contexts_with_their_range(tmp_path: Path, paper: Paper) -> None:
    two = [
        context("0, 1", LENET, architecture=[20, 8, 4], bits=[4, 3, 5], reference_bits=None),
        context("1, 2", LENET, architecture=[31, 8, 6], bits=[5, 3, 5], reference_bits=None),
    ]
    row = rows_of(table2(results_of(tmp_path, run(LENET, "bhc-cy", contexts=two)), paper), "BHC c_y")[0]
    assert row[1:] == [
        "141-30-18",
        "26 (20 to 31) - 8 - 5 (4 to 6)",
        "6-11-20",
        "4 (4 to 5) - 3 - 5",
        "not recorded",
    ]


def test_every_context_of_every_seed_has_a_row(tmp_path: Path, paper: Paper) -> None:
    write_everything(tmp_path)
    text = contexts(read_results(tmp_path), paper)
    assert len(rows_of(text, "3, 4")) == 2 * (4 * 3 + 1)
    cells = "3, 4|-1.5|23-11-7|4-4-4|1,200|1,000|9,600|251|0.31|0.81|0.83|2,000"
    assert rows_of(section(text, "LeNet-300-100, BHC c_y"), "3, 4") == [cells.split("|")] * 3


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


def test_a_shortfall_over_the_limit_is_missed(tmp_path: Path, paper: Paper) -> None:
    text = budgets(budget_results(tmp_path, [point(1, 1.2, 0.8), point(0, 21, 0.85)]), paper)
    line = next(line for line in text.splitlines() if line.startswith("- BC-GNJ"))
    assert line.startswith("- BC-GNJ: on the rates above **missed**: largest shortfall 1.05 (at 20 x; limit 0.1)")


def test_a_rate_that_only_a_baseline_reaches_is_missed(tmp_path: Path, paper: Paper) -> None:
    text = budgets(budget_results(tmp_path, [point(1, 1.2, 2.0), point(0, 90, 9.0)]), paper)
    line = next(line for line in text.splitlines() if line.startswith("- BC-GNJ"))
    assert "on the rates above **missed**" in line
    assert "no BHC network from 80 x on" in line


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


# Everything together


def test_the_short_table_has_six_rows_a_network(tmp_path: Path, paper: Paper) -> None:
    text = short(results_of(tmp_path, run(LENET, "bhc-cy")), paper)
    assert len(rows_of(text, "LeNet-300-100")) == len(rows_of(text, "LeNet-5-Caffe")) == 6
    assert rows_of(text, "LeNet-300-100")[-1][1:] == [
        "BHC c_y",
        "54 (1.8)",
        "1,400 / 800 (0.90)",
        "216 (1.9)",
        "11,000 (0.95)",
        "260 (0.96)",
    ]


def test_the_same_results_give_the_same_bytes_and_the_figures_are_pictures(tmp_path: Path, paper: Paper) -> None:
    write_everything(tmp_path / "results")
    first = build(read_results(tmp_path / "results"), paper, tmp_path / "first")
    again = {name: table(read_results(tmp_path / "results"), paper).encode() for name, table in TABLES.items()}
    texts = [path for path in first if path.suffix == ".md"]
    assert {path.name: path.read_bytes() for path in texts} == again
    assert len(texts) == 8
    assert not any("not run" in path.read_text() for path in texts)
    pictures = [path.read_bytes() for path in first if path.suffix == ".png"]
    assert len(pictures) == 2
    assert all(picture.startswith(PNG) and len(picture) > 10_000 for picture in pictures)


def run_script(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    monkeypatch.setattr("sys.argv", ["tables.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXPERIMENTS / "tables.py"), run_name="__main__")
    return ended.value.code


def test_the_script_writes_into_the_folder_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "results", run(LENET, "bhc-cy"))
    assert run_script(monkeypatch, "--results", tmp_path / "results", "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out.split()
    assert sorted(printed) == sorted(str(path) for path in (tmp_path / "out").iterdir())


def test_a_broken_file_is_named_and_nothing_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "results", run(LENET, "bhc-cy")).write_text("{")
    assert run_script(monkeypatch, "--results", tmp_path / "results", "--out", tmp_path / "out") == 2
    assert "seed0.json is not valid JSON" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
