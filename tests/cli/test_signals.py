"""The commands on a few recordings and questions that are made here."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bhc.cli import app
from tests.cli.test_commands import refused
from tests.data.tiny_signals import fill_wavs, publish, recordings


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return publish(tmp_path / "data", monkeypatch)


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def short(*words: object) -> tuple[object, ...]:
    return (*words, "--steps", 4, "--consolidation-steps", 2, "--contexts", 2, "--examples", 8)


@pytest.mark.long
def test_a_speaker_who_was_left_out_is_emitted_from_a_folder_of_recordings(data: Path, tmp_path: Path) -> None:
    common = ("--model", "speech-cnn", "--data", "fsdd", "--data-dir", data, "--leave-out", "bob")
    run("pretrain", *common, "--epochs", 2, "--out", tmp_path / "weights.safetensors")
    run(*short("train", *common, "--weights", tmp_path / "weights.safetensors", "--context", "domain", "--augment"),
        "--speeds", "0.9,1.1", "--out", tmp_path / "run")  # fmt: skip
    voice = {name: samples for name, samples in recordings().items() if "_bob_" in name and name.endswith("1")}
    fill_wavs(tmp_path / "voice", voice)
    report = json.loads(
        run("compress", tmp_path / "run", "--domain", tmp_path / "voice", "--out", tmp_path / "bob.bhc", "--json")
    )
    assert report["file_bytes"] == (tmp_path / "bob.bhc").stat().st_size
    run("export", tmp_path / "bob.bhc", "--to", "c", "--out", tmp_path / "bob.h")
    evaluated = json.loads(run("evaluate", tmp_path / "bob.bhc", "--data", "fsdd", "--data-dir", data, "--json"))
    assert evaluated["test_images"] == 100


def test_a_network_for_some_words(data: Path, tmp_path: Path) -> None:
    common = ("--model", "text-cnn", "--data", "trec", "--data-dir", data)
    run("pretrain", *common, "--epochs", 2, "--out", tmp_path / "weights.safetensors")
    run(*short("train", *common, "--weights", tmp_path / "weights.safetensors", "--context", "classes+features"),
        "--out", tmp_path / "run")  # fmt: skip
    (tmp_path / "words.txt").write_text("who where is\nthe ?")
    ask = ("compress", tmp_path / "run", "--classes", "human,location")
    report = json.loads(run(*ask, "--features", tmp_path / "words.txt", "--out", tmp_path / "small.bhc", "--json"))
    assert report["context"]["features"].startswith("7 of ")
    run("export", tmp_path / "small.bhc", "--to", "onnx", "--out", tmp_path / "small.onnx")
    evaluated = json.loads(run("evaluate", tmp_path / "small.onnx", "--data", "trec", "--data-dir", data, "--json"))
    assert evaluated["test_images"] == 10
    (tmp_path / "words.txt").write_text("who whom")
    refused = CliRunner().invoke(app, [str(word) for word in (*ask, "--features", tmp_path / "words.txt")])
    assert refused.exit_code == 2
    assert "the vocabulary has no word 'whom'" in refused.output
    (tmp_path / "words.txt").write_text(" ")
    refused = CliRunner().invoke(app, [str(word) for word in (*ask, "--features", tmp_path / "words.txt")])
    assert "has no words" in refused.output


def test_a_speaker_who_is_not_there(data: Path, tmp_path: Path) -> None:
    words = ("pretrain", "--model", "speech-cnn", "--data", "fsdd", "--data-dir", data, "--leave-out", "cy")
    refused = CliRunner().invoke(app, [str(word) for word in (*words, "--out", tmp_path / "w.safetensors")])
    assert refused.exit_code == 2
    assert "fsdd has no source 'cy'" in refused.output


def test_silence_in_a_folder_of_recordings(data: Path, tmp_path: Path) -> None:
    fill_wavs(tmp_path / "voice", {"a": np.zeros(900, dtype=np.int16)})
    refused = CliRunner().invoke(app, ["compress", str(tmp_path / "run"), "--domain", str(tmp_path / "voice")])
    assert refused.exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--speeds", "fast"), "cannot read the speeds 'fast'"),
        (("--speeds", "1"), "speeds of [1.0]"),
        (("--speeds", "0.9", "--data", "trec", "--model", "text-cnn"), "trec does not say who speaks"),
    ],
)
def test_speeds_that_make_no_voices_are_refused(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    message: str,
) -> None:
    common = ("--model", "speech-cnn", "--data", "fsdd", "--data-dir", data, "--out", tmp_path / "run")
    refused(monkeypatch, capsys, message, "train", *common, *options)
