"""Questions beyond the paper, each answered on the small digits after a moment of training."""

import json
from pathlib import Path
from typing import Any

import ask
import pytest
import torch
from questions import bench, joint, subsets
from questions.bench import Config
from questions.features import masks_of

from bhc.data import DataSet
from tests.experiments.toys import EXPERIMENTS

pytestmark = pytest.mark.long

HEAD = 'model = "lenet-300-100"\ndata = "digits"\nseeds = [0]\n'
STAGES = """
[learn]
steps = 12
kl_weight = 0.1
contexts = 8
examples = 8

[consolidate]
steps = 6
thresholds = [-3.0, 1.0]
"""
ASKED = {
    "subsets": "sizes = [2]\nratio = 1.5",
    "joint": "sizes = [2]\nkl_weights = [0.1, 1.0]\nlonger = 2",
    "budgets": "kl_weights = [0.1, 1.0]\nerror = 20",
    "guarantee": "sizes = [2]\ncalibration = 500\nmax_error = 30\nconfidence = 0.8",
    "features": "ratio = 1.5\nknown = false",
    "features-known": "ratio = 1.5\nknown = true",
    "features-files": "ratio = 4\nknown = true\ncounted = 'bytes'",
    "features-tiny": "ratio = 100000\nknown = true\ncounted = 'bytes'",
    "appearance": "sizes = [2]\nconcentration = 1.0\noften = 0.9\nmax_bytes = 200000",
    "pairs": "consecutive = true\nratio = 1.5",
    "pairs-all": "consecutive = false\nratio = 1.5",
    "ablations": "sizes = [2]\nvariants.as_it_is = {}\nvariants.gnj.family = 'gnj'\n"
    "variants.short.consolidation = false",
}
CONFIGS = sorted((EXPERIMENTS / "configs/contexts").glob("*.toml"))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every question asked once."""
    place = tmp_path_factory.mktemp("questions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "CURVE_POINTS", 3)
        patch.setattr(subsets, "JUDGED", 5)
        patch.setattr(joint, "JUDGED", 4)
        for question, asked in ASKED.items():
            config = place / f"{question}.toml"
            config.write_text(f'question = "{question.split("-")[0]}"\n{HEAD}{STAGES}\n[asked]\n{asked}\n')
            options = ["--runs", str(place / "runs"), "--results", str(place / "results"), "--device", "cpu"]
            patch.setattr("sys.argv", ["ask.py", str(config), *options])
            assert ask.main() == 0
    return {
        question: json.loads((place / f"results/contexts/{question}-seed0.json").read_text())["answer"]
        for question in ASKED
    }


def test_every_configuration_can_be_read_and_asks_something() -> None:
    assert CONFIGS
    for path in CONFIGS:
        config = Config.read(path)
        assert config.question in ask.QUESTIONS
        assert config.recipe()
        assert path.stem.startswith(f"{config.model}-{config.question}")


def test_folds_part_all_subsets_and_spread_every_size() -> None:
    folds = subsets.folds_of(10, (2, 3, 4, 5))
    together = [subset for fold in folds for subset in fold]
    assert len(together) == len(set(together)) == 45 + 120 + 210 + 252
    for size, count in ((2, 45), (3, 120), (4, 210), (5, 252)):
        assert {sum(len(subset) == size for subset in fold) for fold in folds} <= {count // 5, count // 5 + 1}


def test_each_subset_is_unseen_by_one_model_and_seen_by_four(answers: dict[str, dict[str, Any]]) -> None:
    folds = answers["subsets"]["folds"]
    assert len(folds) == 5
    seen = [{tuple(row["classes"]): row["seen"] for row in fold["subsets"]} for fold in folds]
    assert all(sorted(row[subset] for row in seen) == [False, True, True, True, True] for subset in seen[0])
    for fold in folds:
        assert all(row["ratio"] >= 1 and 0 <= row["wrong"] <= row["images"] for row in fold["subsets"])


def test_a_joint_model_is_compared_at_five_budgets_and_with_nothing_said(answers: dict[str, dict[str, Any]]) -> None:
    groups = answers["joint"]["budgets"]
    assert [group["budget"] for group in groups] == [0.0, 0.25, 0.5, 0.75, 1.0]
    for group in [*groups, answers["joint"]["nothing_said"]]:
        for curves in (group["joint"], group["alone"]):
            assert [len(curves[part]) for part in ("validation", "test")] == [3, 3]


def test_the_dial_of_budgets_never_gives_back_weights(answers: dict[str, dict[str, Any]]) -> None:
    ratios = [row["ratio"] for row in answers["budgets"]["sweep"]]
    assert len(ratios) == 21
    assert ratios == sorted(ratios)


def test_promises_are_counted(answers: dict[str, dict[str, Any]]) -> None:
    answer = answers["guarantee"]
    kept = [row for row in answer["contexts"] if "refused" not in row]
    assert len(answer["contexts"]) == 45
    assert answer["refused"] == 45 - len(kept)
    assert answer["exceeded"] == sum(row["error"] > 30 for row in kept)
    assert answer["surely_exceeded"] <= answer["exceeded"]
    assert all(row["lower_bound"] <= row["error"] for row in kept)


def test_masks_are_the_three_that_are_asked_about_and_some_more(
    answers: dict[str, dict[str, Any]], digits: DataSet
) -> None:
    rows = answers["features"]["masks"]
    named = masks_of(digits.image_shape)
    assert [row["mask"] for row in rows[:3]] == list(named)
    assert [row["features"] for row in rows[:3]] == [int(mask.sum()) for mask in named.values()]
    assert torch.equal(named["left half"][0].any(0).nonzero().flatten(), torch.arange(4))
    assert len(rows) == 23
    assert [row["mask"] for row in answers["features-known"]["masks"]] == list(named)


def test_files_are_small_enough_where_bytes_are_counted(answers: dict[str, dict[str, Any]]) -> None:
    by_weights, by_bytes = (answers[f"features-{name}"]["masks"] for name in ("known", "files"))
    for one, other in zip(by_weights, by_bytes, strict=True):
        assert other["ratio"] >= 4
        assert other["zero_filled_error"] == one["zero_filled_error"]
        assert 0 <= other["error"] <= 100


def test_where_no_file_is_small_enough_it_is_the_smallest(answers: dict[str, dict[str, Any]]) -> None:
    for any_size, tiny in zip(answers["features-files"]["masks"], answers["features-tiny"]["masks"], strict=True):
        assert any_size["ratio"] <= tiny["ratio"] < 100_000
        assert tiny["threshold"] == -3.0  # the lowest of STAGES


def test_every_ordered_pair_is_told_and_not_told(answers: dict[str, dict[str, Any]]) -> None:
    rows = answers["appearance"]["pairs"]
    assert len({(row["frequent"], row["rare"]) for row in rows}) == 90
    assert all(max(row["told_bytes"], row["untold_bytes"]) <= 200000 for row in rows)


def test_variants_differ_in_what_they_say(answers: dict[str, dict[str, Any]]) -> None:
    variants = answers["ablations"]["variants"]
    assert list(variants) == ["as_it_is", "gnj", "short"]
    assert variants["as_it_is"]["test"] != variants["gnj"]["test"]


def test_an_unknown_question_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "why.toml"
    config.write_text(f'question = "why"\n{HEAD}{STAGES}')
    monkeypatch.setattr("sys.argv", ["ask.py", str(config), "--runs", str(tmp_path), "--results", str(tmp_path)])
    assert ask.main() == 2
    assert "unknown question 'why'" in capsys.readouterr().err


def test_every_pair_is_asked_about(answers: dict[str, dict[str, Any]]) -> None:
    for question, count in (("pairs", 9), ("pairs-all", 45)):
        rows = answers[question]["pairs"]
        assert len({tuple(row["classes"]) for row in rows}) == len(rows) == count
        assert all(row["ratio"] > 1 and row["file_bytes"] > 0 for row in rows)
        assert all(0 <= row[key] <= row["images"] for row in rows for key in ("wrong", "full_wrong", "file_wrong"))
