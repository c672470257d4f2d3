"""What the tables claim, checked on made-up results."""

from pathlib import Path

import pytest
from experiments.report import build, read_results
from experiments.report.budgets import budgets
from experiments.report.build import TABLES
from experiments.report.classes import classes
from experiments.report.contexts import contexts
from experiments.report.histogram import histogram
from experiments.report.load import TABLE_METHODS, TITLES, Paper
from experiments.report.numbers import measure, ratio_text, with_spread
from experiments.report.per_context import per_context
from experiments.report.short import short
from experiments.report.table1 import table1
from experiments.report.table2 import table2
from experiments.report.verdicts import beside_paper

from bhc.errors import BhcError
from tests.experiments.synthetic import (
    CAFFE,
    LENET,
    PNG,
    context,
    results_of,
    rows_of,
    run,
    section,
    write,
    write_everything,
)
from tests.experiments.toys import run_script

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
