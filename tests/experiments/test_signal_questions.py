"""Questions about voices and words, each answered on a few signals after a moment of training."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import ask
import pytest
import torch
from questions import bench, speakers, vocabulary
from study import training

import bhc
from bhc.data import UNKNOWN, DataSet
from bhc.pretraining import Pretraining, pretrain
from tests.data.tiny_signals import publish

pytestmark = pytest.mark.long

SPEAKERS, LEFT_OUT = ("ann", "bob", "cleo"), ("ann", "cleo")
STAGES = """
[learn]
steps = 6
kl_weight = 0.1
contexts = 2
examples = 8

[consolidate]
steps = 3
thresholds = [-3.0, 1.0]
"""
ASKED = {
    "speakers": (
        "speech-cnn",
        "fsdd",
        f"speakers = {json.dumps(LEFT_OUT)}\nrecordings = 20\nspeeds = [0.9]\nratio = 1.2",
    ),
    "vocabulary": ("text-cnn", "trec", "part = 0.6\nembedding_ratio = 1.2"),
}


@pytest.fixture(scope="module")
def signals(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield publish(tmp_path_factory.mktemp("signals") / "data", patch, speakers=SPEAKERS)


@pytest.fixture(scope="module")
def answers(signals: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Both asked once."""
    place = tmp_path_factory.mktemp("questions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "CURVE_POINTS", 3)
        patch.setattr(speakers, "DRAWS", 2)
        patch.setattr(vocabulary, "CHOOSING", 2)
        patch.setattr(vocabulary, "JUDGED", 3)
        patch.setattr(training, "pretrain", partial(pretrain, recipe=Pretraining(epochs=2, batch=32)))
        for question, (model, data, asked) in ASKED.items():
            config = place / f"{question}.toml"
            head = f'question = "{question}"\nmodel = "{model}"\ndata = "{data}"\nseeds = [0]\n'
            config.write_text(f"{head}{STAGES}\n[asked]\n{asked}\n")
            options = ["--runs", place / "runs", "--results", place / "results", "--data-dir", signals]
            patch.setattr("sys.argv", ["ask.py", str(config), "--device", "cpu", *map(str, options)])
            assert ask.main() == 0
    return {
        question: json.loads((place / f"results/contexts/{question}-seed0.json").read_text())["answer"]
        for question in ASKED
    }


def test_each_speaker_is_left_out_in_turn_and_compared_at_no_larger_a_size(answers: dict[str, dict[str, Any]]) -> None:
    rows = answers["speakers"]["speakers"]
    assert [row["speaker"] for row in rows] == list(LEFT_OUT)
    for draw in (draw for row in rows for draw in row["draws"]):
        assert 0 < draw["images"] == 200 - 20
        assert draw["untold_ratio"] <= draw["ratio"]  # the network for everybody may keep as much, or more
        assert all(0 <= draw[key] <= draw["images"] for key in ("wrong", "untold_wrong", "uncut_wrong"))
        assert draw["distance"] > 0


def test_a_part_of_the_words_has_a_part_of_the_rows(answers: dict[str, dict[str, Any]]) -> None:
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
