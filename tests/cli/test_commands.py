"""The commands as a user calls them, on the small digits."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bhc
from bhc.cli.console import program
from bhc.data import DataSet
from bhc.pretraining import save_weights
from tests.cli.commands import LENET, PNG, Commands
from tests.vision import vision_model

POINT = ("threshold", "ratio_mean", "ratio_harmonic", "error", "error_max")


def test_pretrain_train_compress_evaluate_inspect(cli: Commands, tmp_path: Path) -> None:
    weights, out, small = tmp_path / "w.safetensors", tmp_path / "run", tmp_path / "small.bhc"
    pretrained = cli.json("pretrain", *LENET, "--out", weights, "--epochs", "8")
    assert pretrained["test_error"] < 20
    training = ("--steps", "40", "--consolidation-steps", "20", "--kl-weight", "0.1", "--contexts", "4")
    trained = cli.json("train", *LENET, "--weights", weights, "--out", out, *training)
    assert trained["curve"][0]["threshold"] == -2
    report = cli.json("compress", out, "--classes", "3,4", "--out", small)
    assert report["file_bytes"] == small.stat().st_size
    evaluation = cli.json("evaluate", small, "--data", "digits")
    assert evaluation["classes"] == [3, 4]
    assert 0 <= evaluation["test_error"] <= 100
    assert set(evaluation["test_error_by_class"]) == {"3", "4"}
    assert "prior of the weights" in cli("inspect", small).out


def test_a_guarantee_from_images_that_nothing_has_seen(cli: Commands, digits: DataSet, tmp_path: Path) -> None:
    weights, seen, run, small = (tmp_path / name for name in ("w.safetensors", "seen.safetensors", "run", "small.bhc"))
    training = ("--steps", "20", "--consolidation-steps", "5", "--kl-weight", "0.05", "--contexts", "4")
    cli("pretrain", *LENET, "--out", seen, "--epochs", "1")
    cli.refused(
        "the last 300 training images", "train", *LENET, "--weights", seen, "--calibration", "300", "--out", run
    )
    assert "--calibration 300" in cli("pretrain", *LENET, "--out", weights, "--epochs", "8", "--calibration", "300").err
    words = ("train", *LENET, "--weights", weights, "--out", run)
    cli.refused("last 301 training images", *words, "--calibration", "301")
    cli(*words, *training, "--calibration", "300")
    kept = bhc.load(run).model.calibration
    assert kept is not None
    assert torch.equal(kept.inputs, digits.train.inputs[-300:])
    assert "calibration   300 images" in cli("inspect", run).out
    assert cli.json("inspect", run)["calibration_images"] == 300
    request = ("compress", run, "--classes", "0,1", "--max-error", "20", "--confidence", "0.9")
    assert "guarantee     at most 20 % error with 90 % confidence" in cli(*request, "--out", small).out
    assert "guarantee     at most 20 % error with 90 % confidence" in cli("inspect", small).out


def test_a_public_network_may_have_seen_everything(cli: Commands, tmp_path: Path) -> None:
    words = ("--model", "resnet-20", "--data", "digits", "--out", tmp_path / "w", "--public", tmp_path / "p.th")
    cli.refused("public network", "pretrain", *words, "--calibration", "9")


def test_texts_and_pictures(cli: Commands, run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "run.png"
    text = cli("inspect", run, "--classes", "1,7", "--plot", picture).out
    assert "50,200 weights" in text
    assert "trained on subsets of 2, 3 classes" in text
    assert picture.read_bytes().startswith(PNG)
    cli("inspect", run, "--plot", picture, "--force")  # of no context in particular
    assert cli.json("inspect", run)["conditions"].keys() == {"classes"}
    small, picture = tmp_path / "a.bhc", tmp_path / "a.png"
    assert "x smaller" in cli("compress", run, "--classes", "1,7", "--out", small).out
    cli("inspect", small, "--plot", picture)
    assert picture.read_bytes().startswith(PNG)
    cli("evaluate", small, "--data", "digits")


def test_heads_branches_and_streams_of_a_run(cli: Commands, run: Path, digits: DataSet, tmp_path: Path) -> None:
    vision, picture = tmp_path / "vision", tmp_path / "vision.png"
    model = vision_model(digits)
    points = [dict.fromkeys(POINT, value) for value in (1.0, 2.0)]
    training = {"original_error": None, "curve_contexts": [[0, 1]], "curves": {"after": points}}
    bhc.Compressor(replace(model.model, training=training)).save(vision)
    told = "blocks        attention: 4 x 3 heads; 8 branches may go; stream of 12 channels\n"
    assert told in cli("inspect", vision, "--threshold", "-3", "--plot", picture).out
    assert picture.read_bytes().startswith(PNG)
    facts = cli.json("inspect", vision)
    assert (facts["heads"], facts["streams"], len(facts["branches"])) == ([3] * 4, [12], 8)
    said = cli("compress", vision, "--classes", "3,4", "--threshold", "-3", "--out", tmp_path / "v.bhc").out
    assert "layers went with their branches: " in said
    assert "heads         3-3-3-3 -> " in said
    assert "blocks  " not in cli("inspect", run).out


@pytest.mark.parametrize(
    ("typed", "asked", "told"),
    [("8", 8, "8 in every layer"), ("fc1=16, fc2=5", {"fc1": 16, "fc2": 5}, "16 in fc1, 5 in fc2")],
)
def test_channels_in_multiples(cli: Commands, run: Path, tmp_path: Path, typed: str, asked: object, told: str) -> None:
    path, words = tmp_path / "small.bhc", ("compress", run, "--classes", "3,4", "--threshold", "-1")
    text = cli(*words, "--round-to", typed, "--out", path).out
    expected = bhc.load(run).compress(classes=[3, 4], threshold=-1.0, round_to=asked)
    assert path.read_bytes() == expected.to_bytes()
    report = cli.json(*words, "--round-to", typed)
    assert report["round_to"] == asked
    assert report["without_multiples"]["weights"] == cli.json(*words)["weights_after"] < report["weights_after"]
    assert f"multiples     of {told}; not rounded, this threshold has" in text
    assert f"multiples     of {told}\n" in cli("inspect", path).out
    assert cli.json("inspect", path)["round_to"] == asked


def test_a_run_that_was_never_trained_is_shown_without_a_picture(
    cli: Commands, digits: DataSet, tmp_path: Path
) -> None:
    net = bhc.models.lenet_300_100(image_shape=(1, 8, 8))
    bhc.wrap(net, bhc.InputDomains((1, 8, 8)), example_input=digits.train.inputs[:1]).save(tmp_path / "run")
    assert "accepts       domain" in cli("inspect", tmp_path / "run").out
    cli.refused("never trained", "inspect", tmp_path / "run", "--plot", tmp_path / "x.png")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--classes", "3,x"), "error: unknown class 'x'\nhint: the classes are 0 to 9"),
        (("--classes", ","), "empty"),
        (("--classes", "3,12"), "class 12"),
        ((), "lacks classes"),
        (("--classes", "3,4", "--budget", "1"), "budget"),
        (("--classes", "3,4", "--threshold", "nan"), "threshold"),
        (("--classes", "3,4", "--confidence", "0.9"), "no max_error was given"),
        (("--classes", "3,4", "--max-error", "1", "--confidence", "0.95"), "bhc train --calibration"),
        (("--classes", "3,4", "--max-bytes", "40"), "smallest"),
        (("--classes", "3,4", "--max-bytes", "40", "--round-to", "8"), "with channels in multiples of 8 has at most"),
        *(
            (("--classes", "3,4", "--round-to", typed), f"whole number from 1 to 65,536, given {given}")
            for typed, given in (("0", "0"), ("8.5", "'8.5'"), ("", "''"), ("fc1=8,fc1=4", "'fc1=8,fc1=4'"))
        ),
        (("--classes", "3,4", "--round-to", "fc1=x"), "round_to of layer 'fc1'"),
        (("--classes", "3,4", "--round-to", "fc1=8,fc9=8"), "hint: the layers are: fc1, fc2"),
        (("--classes", "3,4", "--max-flops", "2"), "hint: ask for max_flops="),
        (("--classes", "3,4", "--max-bytes", "180", "--max-error", "0.001"), "no network for classes 3, 4"),
    ],
)
def test_bad_requests(cli: Commands, run: Path, words: tuple[str, ...], message: str) -> None:
    cli.refused(message, "compress", run, *words)


def test_bad_files(cli: Commands, run: Path, tmp_path: Path) -> None:
    (tmp_path / "junk.bhc").write_bytes(b"junk")
    (tmp_path / "junk.npy").write_bytes(b"junk")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    cli.refused("is damaged", "evaluate", tmp_path / "junk.bhc", "--data", "digits")
    cli.refused("does not exist", "inspect", tmp_path / "none")
    cli.refused("does not exist", "compress", tmp_path / "none", "--classes", "3,4")
    cli.refused("not a run folder", "compress", tmp_path, "--classes", "3,4")
    for name in ("junk.npy", "objects.npy"):
        cli.refused("not an array", "compress", run, "--domain", tmp_path / name)
    cli.refused("could not read", "compress", run, "--domain", tmp_path / "none.npy")


def test_nothing_is_overwritten_without_force(cli: Commands, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.write_text("precious")
    cli.refused("exists already", "compress", run, "--classes", "3,4", "--out", out)
    cli.refused("exists already", "pretrain", *LENET, "--out", out)
    cli.refused("exists already", "inspect", run, "--plot", out)
    cli.refused("holds a run already", "train", *LENET, "--out", run)
    assert out.read_text() == "precious"
    cli("compress", run, "--classes", "3,4", "--out", out, "--force")
    assert bhc.read(out).classes == (3, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--resume",), "no run to resume"),
        (("--context", "weather"), "'weather'"),
        (("--subsets", "many"), "subsets"),
        (("--weight-generator", "magic"), "unknown generator"),
        (("--calibration", "5000"), "5,000"),
        (("--device", "abacus"), "abacus"),
        (("--model", "lenet-7"), "'lenet-7'"),
        (("--data", "words"), "'words'"),
        (("--model", "lenet-5-caffe"), "16 x 16"),
        (("--family", "gaussian"), "sparse-vd"),
        (("--context", "none", "--context-weight", "0.1"), "nothing to read back"),
        (("--context", "classes", "--two-stage"), "budget"),
        (("--context", "budget", "--margin", "1.5"), "given 1.5"),
        (("--context", "budget", "--margin", "0.5", "--two-stage"), "--margin 0.5"),
        (("--seed", "9" * 30), "--seed"),
    ],
)
def test_bad_training_options(cli: Commands, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    cli.refused(message, "train", *LENET, "--out", tmp_path / "r", *words)


def test_weights_of_another_model_are_refused(cli: Commands, digits: DataSet, tmp_path: Path) -> None:
    net = bhc.models.lenet_300_100(image_shape=(1, 8, 8))
    save_weights(tmp_path / "w", "lenet-5-caffe", net, digits, errors={})
    cli.refused("'lenet-5-caffe'", "train", *LENET, "--out", tmp_path / "r", "--weights", tmp_path / "w")


def test_wrong_use_of_options_exits_with_2_and_help_with_0(cli: Commands) -> None:
    assert cli.ended("compress").status == 2
    assert cli.ended("nonsense").status == 2
    shown = cli("--help").out
    for command in ("demo", "pretrain", "train", "compress", "export", "evaluate", "inspect"):
        assert command in shown
    assert cli("--version").out.startswith("bhc ")


def test_odd_paths(cli: Commands, run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    request = ("compress", run, "--classes", "3,4")
    cli.refused("too long", *request, "--out", tmp_path / ("x" * 300))
    cli.refused("cannot write to the folder", *request, "--out", tmp_path / "file" / "a.bhc")
    cli.refused("cannot write to the folder", "train", *LENET, "--out", tmp_path / "file")
    cli.refused("cannot write to the folder", "demo", "--data", "digits", "--out", tmp_path / "file")
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (64000000000000,), }"
    (tmp_path / "huge.npy").write_bytes(header.ljust(127) + b"\n")
    cli.refused("not an array", "compress", run, "--domain", tmp_path / "huge.npy")


def test_an_interrupt_is_reported_kindly(cli: Commands, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bhc.cli.compress.load", interrupted)
    said = cli.ended("compress", run, "--classes", "3,4")
    assert said.status == 130
    assert "interrupted" in said.err


def test_the_next_command_is_told_as_this_one_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    for called, told in (("__main__.py", "bhc"), (tmp_path / "bin/bhc", "bin/bhc"), ("/else/bhc", "/else/bhc")):
        monkeypatch.setattr(sys, "argv", [str(called)])
        assert program() == told


def test_what_is_shown_and_said_stands_in_a_log_in_its_order() -> None:
    """Both streams go to one pipe, which Python fills only now and then unless told otherwise."""
    program = "from bhc.cli.console import say, show; say('first'); show('then', as_json=False); say('last')"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    words = [sys.executable, "-c", program]
    told = subprocess.check_output(words, env=environment, stderr=subprocess.STDOUT, text=True)
    assert told.split() == ["first", "then", "last"]


def test_where_classes_appear_unequally_often_the_expected_error_is_evaluated(
    cli: Commands,
    weighing_model: bhc.Compressor,
    tmp_path: Path,
) -> None:
    path = tmp_path / "small.bhc"
    weighing_model.compress(classes={8: 0.9, 3: 0.1}, threshold=-1.0).save(path).to_onnx(tmp_path / "small.onnx")
    for file in (path, tmp_path / "small.onnx"):
        result = cli.json("evaluate", file, "--data", "digits")
        by_class = result["test_error_by_class"]
        assert by_class["3"] != by_class["8"]
        assert result["test_error"] == pytest.approx(0.1 * by_class["3"] + 0.9 * by_class["8"], rel=1e-6)
        assert "3 (0.1), 8 (0.9)" in cli("evaluate", file, "--data", "digits").out
