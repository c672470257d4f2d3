"""The commands on a few recordings and questions that are made here."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import Commands
from tests.data.tiny_signals import fill_wavs, publish, recordings


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return publish(tmp_path / "data", monkeypatch)


def short(*words: object) -> tuple[object, ...]:
    return (*words, "--steps", 4, "--consolidation-steps", 2, "--contexts", 2, "--examples", 8)


@pytest.mark.long
def test_a_speaker_who_was_left_out_is_emitted_from_a_folder_of_recordings(
    cli: Commands, data: Path, tmp_path: Path
) -> None:
    common = ("--model", "speech-cnn", "--data", "fsdd", "--data-dir", data, "--leave-out", "bob")
    cli("pretrain", *common, "--epochs", 2, "--out", tmp_path / "weights.safetensors")
    cli(*short("train", *common, "--weights", tmp_path / "weights.safetensors", "--context", "domain", "--augment"),
        "--speeds", "0.9,1.1", "--out", tmp_path / "run")  # fmt: skip
    voice = {name: samples for name, samples in recordings().items() if "_bob_" in name and name.endswith("1")}
    fill_wavs(tmp_path / "voice", voice)
    report = cli.json("compress", tmp_path / "run", "--domain", tmp_path / "voice", "--out", tmp_path / "bob.bhc")
    assert report["file_bytes"] == (tmp_path / "bob.bhc").stat().st_size
    cli("export", tmp_path / "bob.bhc", "--to", "c", "--out", tmp_path / "bob.h")
    evaluated = cli.json("evaluate", tmp_path / "bob.bhc", "--data", "fsdd", "--data-dir", data)
    assert evaluated["test_images"] == 100


def test_a_network_for_some_words(cli: Commands, data: Path, tmp_path: Path) -> None:
    common = ("--model", "text-cnn", "--data", "trec", "--data-dir", data)
    cli("pretrain", *common, "--epochs", 2, "--out", tmp_path / "weights.safetensors")
    cli(*short("train", *common, "--weights", tmp_path / "weights.safetensors", "--context", "classes+features"),
        "--out", tmp_path / "run")  # fmt: skip
    (tmp_path / "words.txt").write_text("who where is\nthe ?")
    ask = ("compress", tmp_path / "run", "--classes", "human,location")
    report = cli.json(*ask, "--features", tmp_path / "words.txt", "--out", tmp_path / "small.bhc")
    assert report["context"]["features"].startswith("7 of ")
    cli("export", tmp_path / "small.bhc", "--to", "onnx", "--out", tmp_path / "small.onnx")
    evaluated = cli.json("evaluate", tmp_path / "small.onnx", "--data", "trec", "--data-dir", data)
    assert evaluated["test_images"] == 10
    for words, problem in (("who whom", "'whom'"), (" ", "no words")):
        (tmp_path / "words.txt").write_text(words)
        cli.refused(problem, *ask, "--features", tmp_path / "words.txt")


def test_silence_in_a_folder_of_recordings(cli: Commands, run: Path, tmp_path: Path) -> None:
    fill_wavs(tmp_path / "voice", {"a": np.zeros(900, dtype=np.int16)})
    cli.refused("silent", "compress", run, "--domain", tmp_path / "voice")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--speeds", "fast"), "'fast'"),
        (("--speeds", "1"), "[1.0]"),
        (("--speeds", "0.9", "--data", "trec", "--model", "text-cnn"), "trec"),
        (("--leave-out", "cy"), "'cy'"),
    ],
)
def test_speakers_and_speeds_that_cannot_be_are_refused(
    cli: Commands, data: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    common = ("--model", "speech-cnn", "--data", "fsdd", "--data-dir", data, "--out", tmp_path / "run")
    cli.refused(message, "train", *common, *options)
