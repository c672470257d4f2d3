"""What the tables claim, checked on made-up results."""

import json
import tomllib
from pathlib import Path

import pytest
from experiments.report import build
from experiments.report.budgets import budgets
from experiments.report.classes import classes
from experiments.report.contexts import contexts
from experiments.report.histogram import histogram
from experiments.report.load import BEYOND
from experiments.report.methods import TABLE_METHODS, TITLES
from experiments.report.numbers import measure, ratio_text, with_spread
from experiments.report.paper import Paper
from experiments.report.per_context import per_context
from experiments.report.table1 import table1
from experiments.report.table2 import table2
from experiments.report.verdicts import beside_paper
from torch import nn

from bhc import models
from bhc.errors import BhcError
from tests.experiments.made_up_answers import write_answer
from tests.experiments.synthetic import (
    CAFFE,
    LENET,
    PAPERS,
    PNG,
    RESNET,
    VGG,
    read_all,
    results_of,
    rows_of,
    run,
    section,
    write,
)
from tests.experiments.toys import EXPERIMENTS, run_script

TABLES = EXPERIMENTS / "tables"

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
        (model, method): dense(paper.model(model)["architecture"]) / dense(row["architecture"])
        for model in (LENET, CAFFE)
        for method, row in paper.model(model)["rows"].items()
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
    assert all(len(row["bits"]) == len(row["architecture"]) for row in paper.model(CAFFE)["rows"].values())
    assert paper.row(CAFFE, "bc-io-gnj") is None


@pytest.mark.parametrize(
    ("name", "model", "method", "part", "target"),
    [
        ("mnist", CAFFE, "bc-ghs", "bits", {"bits_ratio_mean": 0.9 * 419, "bits_error": 1.1}),
        ("mnist", LENET, "bhc-cx-mixed", "pruning", {}),
        ("mnist", CAFFE, "bc-io-gnj", "pruning", {}),
        ("cifar10", VGG, "bc-gnj", "pruning", {"pruning_ratio_mean": 0.9 * 14, "pruning_error": 8.9}),
        ("cifar10", VGG, "bc-ghs", "bits", {"bits_ratio_mean": 0.9 * 59, "bits_error": 9.3}),
        ("cifar10", VGG, "bhc-cx-domain", "bits", {}),
    ],
)
def test_a_baseline_target_is_nine_tenths_of_the_ratio_and_a_little_over_the_error(
    name: str, model: str, method: str, part: str, target: dict[str, float]
) -> None:
    assert PAPERS[name].target(model, method, part) == target


@pytest.mark.parametrize("name", PAPERS)
def test_the_networks_are_those_of_the_library(name: str) -> None:
    for model in PAPERS[name].models:
        layers = [layer for layer in models.outline(model).modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
        widths = [layer.out_channels if isinstance(layer, nn.Conv2d) else layer.in_features for layer in layers]
        assert PAPERS[name].model(model)["architecture"] == widths


def test_printed_rows_of_vgg_have_15_layers_where_quoted_and_16_where_not(cifar: Paper) -> None:
    for row in cifar.model(VGG)["rows"].values():
        assert len(row["architecture"]) == len(row["bits"]) == (15 if row.get("quoted") else 16)


# Reading results


def test_nothing_run_shows_as_not_run_everywhere(tmp_path: Path, paper: Paper) -> None:
    results = read_all(tmp_path / "none")
    for model in (LENET, CAFFE):
        for table in (table1, table2):
            part = section(table(results, paper), paper.title(model))
            assert all(rows and "not run" in rows[0] for rows in (rows_of(part, TITLES[m]) for m in TABLE_METHODS))
        for table in (contexts, budgets, per_context, classes, histogram):
            assert "not run" in section(table(results, paper), paper.title(model))
    assert rows_of(table1(results, paper), "BHC c_y")[0][3] == "54 (1.8)"
    written = build(results, [paper], tmp_path / "out")
    assert all(path.stat().st_size > 0 for path in written)


def test_rows_of_the_tables_from_their_experiment_count_and_the_rest_is_named(tmp_path: Path) -> None:
    write(tmp_path, run(LENET, "bc-gnj", summary={"pruning_ratio_mean": 7.0}), "a-sweep")
    write(tmp_path, run(LENET, "bc-gnj", summary={"pruning_ratio_mean": 9.0}), "table1")
    write(tmp_path, run(LENET, "bc-ghs"), "cifar10")
    write(tmp_path, run(VGG, "bc-gnj", summary={"pruning_ratio_mean": 13.0}))
    write(tmp_path, run(VGG, "bhc-cw"))
    write(tmp_path, run(VGG, "bhc-cy") | {"model": "resnet-56"})
    (tmp_path / "table1" / "notes.json").write_text("[]")
    results = read_all(tmp_path)
    assert [found.summary("pruning_ratio_mean") for found in results.of(LENET, "bc-gnj")] == [9.0]
    assert [found.summary("pruning_ratio_mean") for found in results.of(VGG, "bc-gnj")] == [13.0]
    assert len(results.runs) == 2
    reasons = [reason.split(": ")[1] for reason in results.set_aside]
    assert reasons == [
        "not the result of a run",
        "no table has bc-gnj of lenet-300-100 from a-sweep",
        "no table has bc-ghs of lenet-300-100 from cifar10",
        "no table has bhc-cy of resnet-56 from cifar10",
        "no table has bhc-cw of vgg from cifar10",
    ]


def test_two_files_of_one_seed_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, run(LENET, "bhc-cy", seed=1))
    path.with_name("again.json").write_text(path.read_text())
    with pytest.raises(BhcError, match=r"again.json and .*seed 1"):
        read_all(tmp_path)


# Numbers over seeds, and verdicts


def test_mean_and_half_the_range_over_seeds() -> None:
    measured = measure([1200.0, 1300.0, None, 1550.0])
    assert (measured.mean, measured.spread, measured.seeds) == (1350.0, 175.0, 3)
    assert with_spread(measured) == "1,350 ± 175"
    assert with_spread(measure([9.0])) == "9.00"
    assert with_spread(measure([None])) == "not recorded"
    assert [ratio_text(value) for value in (1304.4, 53.78, 9.254)] == ["1,304", "53.8", "9.25"]


@pytest.mark.parametrize(
    ("ratio", "error", "words"),
    [
        (60.0, 1.7, "better: 1.11 x its ratio, error -0.10"),
        (60.0, 1.8, "better: "),
        (54.3, 1.83, "same: "),
        (50.0, 2.0, "worse: "),
        (540.0, 1.9, "larger, less accurate: 10.0 x its ratio, error +0.10"),
        (27.0, 1.2, "smaller, more accurate: 0.50 x its ratio, error -0.60"),
        (None, 1.2, "not recorded"),
    ],
)
def test_better_needs_both_ratio_and_error(ratio: float | None, error: float, words: str) -> None:
    assert beside_paper(ratio, error, (54, 1.8)).startswith(words)


def test_a_target_is_reached_on_the_number_itself(tmp_path: Path, paper: Paper) -> None:
    exact = {"pruning_ratio_mean": 1300.0, "pruning_ratio_harmonic": 750.0, "pruning_error": 1.0}
    results = results_of(tmp_path, run(LENET, "bhc-cy", summary=exact))
    assert rows_of(table1(results, paper), "BHC c_y")[1][5] == "reached"


def test_a_rise_is_judged_seed_by_seed_and_needs_the_error_of_the_full_network(tmp_path: Path, cifar: Paper) -> None:
    seeds = [
        run(RESNET, "bhc-cy", seed=seed, summary={"pruning_ratio_mean": 20.0, "pruning_error": error}, original_error=1)
        for seed, error in enumerate((1.5, 2.25))
    ]
    row = rows_of(section(table1(results_of(tmp_path / "two", *seeds), cifar), "ResNet-20"), "BHC c_y")[1]
    assert row[5] == "reached (1 of 2 seeds alone)"
    results = results_of(tmp_path / "none", run(RESNET, "bhc-cy", original_error=None))
    row = rows_of(section(table1(results, cifar), "ResNet-20"), "BHC c_y")[1]
    assert row[5] == "not recorded"


# Everything together


def test_the_script_makes_the_committed_tables_of_the_committed_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever adds a result, or changes what a table says, runs ``experiments/tables.py``; nobody edits its files."""
    assert run_script(monkeypatch, "--results", EXPERIMENTS / "results", "--out", tmp_path) == 0
    written = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert sorted(capsys.readouterr().out.split()) == list(map(str, written))
    places = [path.relative_to(tmp_path) for path in written]
    assert places == sorted(path.relative_to(TABLES) for path in TABLES.rglob("*") if path.is_file())
    for place, path in zip(places, written, strict=True):
        content = path.read_bytes()
        if path.suffix == ".png":
            assert content.startswith(PNG)
            assert len(content) > 10_000
        else:
            assert content == (TABLES / place).read_bytes(), f"{place} is not what tables.py writes"


def test_every_committed_result_is_one_of_its_configuration_as_it_stands() -> None:
    configs = {path.stem: tomllib.loads(path.read_text()) for path in (EXPERIMENTS / "configs").rglob("*.toml")}
    experiments = [*(paper.experiment for paper in PAPERS.values()), BEYOND]
    found = [path for name in experiments for path in (EXPERIMENTS / "results" / name).glob("*.json")]
    assert found
    for path in found:
        result = json.loads(path.read_text())
        config = configs[path.stem.rsplit("-seed", 1)[0]]
        assert result["config"] == config, path.name
        assert result["seed"] in config["seeds"], path.name


def test_the_readme_has_the_short_tables_as_they_are() -> None:
    short = [(TABLES / name / "short.md").read_text().splitlines() for name in ("mnist", "cifar10")]
    mnist, cifar = ([line for line in lines if line.startswith("|") and "not run" not in line] for lines in short)
    assert mnist[:2] == cifar[:2]
    assert "\n".join(mnist + cifar[2:]) in (EXPERIMENTS.parent / "README.md").read_text()


@pytest.mark.parametrize("of_the_paper", [True, False])
def test_a_broken_file_is_named_and_nothing_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], of_the_paper: bool
) -> None:
    results, out = tmp_path / "results", tmp_path / "out"
    path = write(results, run(LENET, "bhc-cy")) if of_the_paper else write_answer(results, "lenet-5-caffe-joint", {})
    path.write_text("{")
    assert run_script(monkeypatch, "--results", results, "--out", out) == 2
    assert f"{path} is not valid JSON" in capsys.readouterr().err
    assert not out.exists()
