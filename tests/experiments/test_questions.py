"""Questions beyond the paper, each answered on small data after a moment of training."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ask
import pytest
import torch
from questions import bench, joint, speakers, subsets, vocabulary
from questions.bench import Config
from questions.features import masks_of
from study import training

import bhc
from bhc.data import UNKNOWN, DataSet
from bhc.pretraining import Pretraining, pretrain
from tests.data.tiny_signals import publish
from tests.experiments.toys import EXPERIMENTS

pytestmark = pytest.mark.long

Answers = dict[str, dict[str, Any]]
CONFIGS = sorted((EXPERIMENTS / "configs/contexts").glob("*.toml"))
SPEAKERS, LEFT_OUT = ("ann", "bob", "cleo"), ("ann", "cleo")
TEXT = """
question = "{question}"
model = "{model}"
data = "{data}"
seeds = [0]

[learn]
steps = {steps}
kl_weight = 0.1
contexts = {contexts}
examples = 8

[consolidate]
steps = 5
thresholds = [-3.0, 1.0]

[asked]
{asked}
"""
DIGITS = {"model": "lenet-300-100", "data": "digits", "steps": 12, "contexts": 8}
SOUNDS = {"model": "speech-cnn", "data": "fsdd", "steps": 6, "contexts": 2}
TEXTS = {"model": "text-cnn", "data": "trec", "steps": 6, "contexts": 2}
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
SIGNALS = {
    "speakers": (SOUNDS, f"speakers = {json.dumps(LEFT_OUT)}\nrecordings = 20\nspeeds = [0.9]\nratio = 1.2"),
    "vocabulary": (TEXTS, "part = 0.6\nembedding_ratio = 1.2"),
}


@pytest.fixture(scope="module")
def signals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        yield publish(tmp_path_factory.mktemp("signals") / "data", patch, speakers=SPEAKERS)


@pytest.fixture(scope="module")
def answers(signals: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Every question asked once."""
    place, found = tmp_path_factory.mktemp("questions"), {}
    options = ["--runs", place / "runs", "--results", place / "results", "--data-dir", signals, "--device", "cpu"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "CURVE_POINTS", 3)
        patch.setattr(subsets, "JUDGED", 5)
        patch.setattr(joint, "JUDGED", 4)
        patch.setattr(speakers, "DRAWS", 2)
        patch.setattr(vocabulary, "CHOOSING", 2)
        patch.setattr(vocabulary, "JUDGED", 3)
        for name, (network, asked) in ({name: (DIGITS, asked) for name, asked in ASKED.items()} | SIGNALS).items():
            if name in SIGNALS:
                patch.setattr(training, "pretrain", partial(pretrain, recipe=Pretraining(epochs=2, batch=32)))
            config = place / f"{name}.toml"
            config.write_text(TEXT.format(question=name.split("-")[0], asked=asked, **network))
            patch.setattr("sys.argv", ["ask.py", str(config), *map(str, options)])
            assert ask.main() == 0
            found[name] = json.loads((place / f"results/contexts/{name}-seed0.json").read_text())["answer"]
    return found


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


def test_each_subset_is_unseen_by_one_model_and_seen_by_four(answers: Answers) -> None:
    folds = answers["subsets"]["folds"]
    assert len(folds) == 5
    seen = [{tuple(row["classes"]): row["seen"] for row in fold["subsets"]} for fold in folds]
    assert all(sorted(row[subset] for row in seen) == [False, True, True, True, True] for subset in seen[0])
    for fold in folds:
        assert all(row["ratio"] >= 1 and 0 <= row["wrong"] <= row["images"] for row in fold["subsets"])


def test_a_joint_model_is_compared_at_five_budgets_and_with_nothing_said(answers: Answers) -> None:
    groups = answers["joint"]["budgets"]
    assert [group["budget"] for group in groups] == [0.0, 0.25, 0.5, 0.75, 1.0]
    for group in [*groups, answers["joint"]["nothing_said"]]:
        for curves in (group["joint"], group["alone"]):
            assert [len(curves[part]) for part in ("validation", "test")] == [3, 3]


def test_the_dial_of_budgets_never_gives_back_weights(answers: Answers) -> None:
    ratios = [row["ratio"] for row in answers["budgets"]["sweep"]]
    assert len(ratios) == 21
    assert ratios == sorted(ratios)


def test_promises_are_counted(answers: Answers) -> None:
    answer = answers["guarantee"]
    kept = [row for row in answer["contexts"] if "refused" not in row]
    assert len(answer["contexts"]) == 45
    assert answer["refused"] == 45 - len(kept)
    assert answer["exceeded"] == sum(row["error"] > 30 for row in kept)
    assert answer["surely_exceeded"] <= answer["exceeded"]
    assert all(row["lower_bound"] <= row["error"] for row in kept)


def test_masks_are_the_three_that_are_asked_about_and_some_more(answers: Answers, digits: DataSet) -> None:
    rows = answers["features"]["masks"]
    named = masks_of(digits.image_shape)
    assert [row["mask"] for row in rows[:3]] == list(named)
    assert [row["features"] for row in rows[:3]] == [int(mask.sum()) for mask in named.values()]
    assert torch.equal(named["left half"][0].any(0).nonzero().flatten(), torch.arange(4))
    assert len(rows) == 23
    assert [row["mask"] for row in answers["features-known"]["masks"]] == list(named)


def test_files_are_small_enough_where_bytes_are_counted(answers: Answers) -> None:
    by_weights, by_bytes = (answers[f"features-{name}"]["masks"] for name in ("known", "files"))
    for one, other in zip(by_weights, by_bytes, strict=True):
        assert other["ratio"] >= 4
        assert other["zero_filled_error"] == one["zero_filled_error"]
        assert 0 <= other["error"] <= 100


def test_where_no_file_is_small_enough_it_is_the_smallest(answers: Answers) -> None:
    for any_size, tiny in zip(answers["features-files"]["masks"], answers["features-tiny"]["masks"], strict=True):
        assert any_size["ratio"] <= tiny["ratio"] < 100_000
        assert tiny["threshold"] == -3.0  # the lowest of TEXT


def test_every_ordered_pair_is_told_and_not_told(answers: Answers) -> None:
    rows = answers["appearance"]["pairs"]
    assert len({(row["frequent"], row["rare"]) for row in rows}) == 90
    assert all(max(row["told_bytes"], row["untold_bytes"]) <= 200000 for row in rows)


def test_variants_differ_in_what_they_say(answers: Answers) -> None:
    variants = answers["ablations"]["variants"]
    assert list(variants) == ["as_it_is", "gnj", "short"]
    assert variants["as_it_is"]["test"] != variants["gnj"]["test"]


def test_an_unknown_question_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "why.toml"
    config.write_text(TEXT.format(question="why", asked="", **DIGITS))
    monkeypatch.setattr("sys.argv", ["ask.py", str(config), "--runs", str(tmp_path), "--results", str(tmp_path)])
    assert ask.main() == 2
    assert "unknown question 'why'" in capsys.readouterr().err


def test_every_pair_is_asked_about(answers: Answers) -> None:
    for question, count in (("pairs", 9), ("pairs-all", 45)):
        rows = answers[question]["pairs"]
        assert len({tuple(row["classes"]) for row in rows}) == len(rows) == count
        assert all(row["ratio"] > 1 and row["file_bytes"] > 0 for row in rows)
        assert all(0 <= row[key] <= row["images"] for row in rows for key in ("wrong", "full_wrong", "file_wrong"))


def test_each_speaker_is_left_out_in_turn_and_compared_at_no_larger_a_size(answers: Answers) -> None:
    rows = answers["speakers"]["speakers"]
    assert [row["speaker"] for row in rows] == list(LEFT_OUT)
    for draw in (draw for row in rows for draw in row["draws"]):
        assert 0 < draw["images"] == 200 - 20
        assert draw["untold_ratio"] <= draw["ratio"]  # the network for everybody may keep as much, or more
        assert all(0 <= draw[key] <= draw["images"] for key in ("wrong", "untold_wrong", "uncut_wrong"))
        assert draw["distance"] > 0


def test_a_part_of_the_words_has_a_part_of_the_rows(answers: Answers) -> None:
    found = answers["vocabulary"]
    assert len(found["contexts"]) == 3
    for row in found["contexts"]:
        assert row["words"] <= 0.6 * found["words"]
        assert row["embedding_bytes"] < row["embedding_bytes_before"]
        assert row["rows"] <= row["words"]
        assert all(0 <= row[key] <= row["images"] for key in ("wrong", "file_wrong", "full_wrong"))


def test_words_of_questions_are_whole_questions_and_no_more_than_the_part(signals: Path) -> None:
    data: DataSet = bhc.data.load("trec", data_dir=signals)
    assert data.vocabulary is not None
    mask = vocabulary.words_of_questions(data, 0.6, seed=1)
    assert mask[: UNKNOWN + 1].all()
    assert 0 < len(vocabulary.within(data.train, mask)) < len(data.train)
    assert int(mask.sum()) <= 0.6 * len(data.vocabulary)
    assert torch.equal(mask, vocabulary.words_of_questions(data, 0.6, seed=1))
    assert vocabulary.words_of_questions(data, 1.0, seed=1).all()
