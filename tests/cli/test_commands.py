"""The commands as a user calls them, on the small digits."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import bhc
from bhc.cli import main
from bhc.data import DataSet

PNG = b"\x89PNG\r\n\x1a\n"


def call(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    """Run a command in this process; its exit status."""
    monkeypatch.setattr(sys, "argv", ["bhc", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def run(quick_model: bhc.Compressor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "run"
    quick_model.save(path)
    return path


def test_pretrain_train_compress_evaluate_inspect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    weights, out, small = tmp_path / "w.safetensors", tmp_path / "run", tmp_path / "small.bhc"
    names = ("--model", "lenet-300-100", "--data", "digits")
    assert call(monkeypatch, "pretrain", *names, "--out", weights, "--epochs", "8", "--json") == 0
    pretrained = json.loads(capsys.readouterr().out)
    assert pretrained["test_error"] < 20
    training = ("--steps", "40", "--consolidation-steps", "20", "--kl-weight", "0.1", "--contexts", "4")
    assert call(monkeypatch, "train", *names, "--weights", weights, "--out", out, *training, "--json") == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["curve"][0]["threshold"] == -2
    assert call(monkeypatch, "compress", out, "--classes", "3,4", "--out", small, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["file_bytes"] == small.stat().st_size
    assert call(monkeypatch, "evaluate", small, "--data", "digits", "--json") == 0
    evaluation = json.loads(capsys.readouterr().out)
    assert evaluation["classes"] == [3, 4]
    assert 0 <= evaluation["test_error"] <= 100
    assert set(evaluation["test_error_by_class"]) == {"3", "4"}
    assert call(monkeypatch, "inspect", small) == 0
    assert "prior of the weights" in capsys.readouterr().out


def test_a_guarantee_from_images_that_nothing_has_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], digits: DataSet, tmp_path: Path
) -> None:
    weights, seen, run, small = (tmp_path / name for name in ("w.safetensors", "seen.safetensors", "run", "small.bhc"))
    names = ("--model", "lenet-300-100", "--data", "digits")
    training = ("--steps", "20", "--consolidation-steps", "5", "--kl-weight", "0.05", "--contexts", "4")
    assert call(monkeypatch, "pretrain", *names, "--out", seen, "--epochs", "1") == 0
    capsys.readouterr()
    message = "may have learned from the last 300 training images"
    refused(monkeypatch, capsys, message, "train", *names, "--weights", seen, "--calibration", "300", "--out", run)
    assert call(monkeypatch, "pretrain", *names, "--out", weights, "--epochs", "8", "--calibration", "300") == 0
    assert "--calibration 300" in capsys.readouterr().err
    words = ("train", *names, "--weights", weights, "--out", run)
    refused(monkeypatch, capsys, "last 301 training images", *words, "--calibration", "301")
    assert call(monkeypatch, *words, *training, "--calibration", "300") == 0
    kept = bhc.load(run).model.calibration
    assert kept is not None
    assert torch.equal(kept.inputs, digits.train.inputs[-300:])
    capsys.readouterr()
    assert call(monkeypatch, "inspect", run) == 0
    assert "calibration   300 images" in capsys.readouterr().out
    assert call(monkeypatch, "inspect", run, "--json") == 0
    assert json.loads(capsys.readouterr().out)["calibration_images"] == 300
    request = ("compress", run, "--classes", "0,1", "--max-error", "20", "--confidence", "0.9")
    assert call(monkeypatch, *request, "--out", small) == 0
    assert "guarantee     at most 20 % error with 90 % confidence" in capsys.readouterr().out
    assert call(monkeypatch, "inspect", small) == 0
    assert "guarantee     at most 20 % error with 90 % confidence" in capsys.readouterr().out


def test_a_public_network_may_have_seen_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--model", "resnet-20", "--data", "digits", "--out", tmp_path / "w", "--public", tmp_path / "p.th")
    refused(monkeypatch, capsys, "what a public network has learned from", "pretrain", *words, "--calibration", "9")


def test_texts_and_pictures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "run.png"
    assert call(monkeypatch, "inspect", run, "--classes", "1,7", "--plot", picture) == 0
    text = capsys.readouterr().out
    assert "50,200 weights" in text
    assert "trained on subsets of 2, 3 classes" in text
    assert picture.read_bytes().startswith(PNG)
    assert call(monkeypatch, "inspect", run, "--json") == 0
    assert json.loads(capsys.readouterr().out)["conditions"].keys() == {"classes"}
    small, picture = tmp_path / "a.bhc", tmp_path / "a.png"
    assert call(monkeypatch, "compress", run, "--classes", "1,7", "--out", small) == 0
    assert "x smaller" in capsys.readouterr().out
    assert call(monkeypatch, "inspect", small, "--plot", picture) == 0
    assert picture.read_bytes().startswith(PNG)
    assert call(monkeypatch, "evaluate", small, "--data", "digits") == 0


def test_a_run_that_was_never_trained_is_shown_without_a_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], digits: DataSet, tmp_path: Path
) -> None:
    net = bhc.models.lenet_300_100(image_shape=(1, 8, 8))
    bhc.wrap(net, bhc.InputDomains((1, 8, 8)), example_input=digits.train.inputs[:1]).save(tmp_path / "run")
    assert call(monkeypatch, "inspect", tmp_path / "run") == 0
    assert "accepts       domain" in capsys.readouterr().out
    refused(monkeypatch, capsys, "never trained", "inspect", tmp_path / "run", "--plot", tmp_path / "x.png")


def test_the_default_picture_needs_no_context(monkeypatch: pytest.MonkeyPatch, run: Path, tmp_path: Path) -> None:
    assert call(monkeypatch, "inspect", run, "--plot", tmp_path / "x.png") == 0
    assert (tmp_path / "x.png").exists()


def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], message: str, *words: str | Path
) -> None:
    """Exit status 2, one line of error, nothing on stdout."""
    assert call(monkeypatch, *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--classes", "3,x"), "error: unknown class 'x'\nhint: the classes are 0 to 9"),
        (("--classes", ","), "the class subset is empty"),
        (("--classes", "3,3"), "class 3 is named twice"),
        (("--classes", "3,12"), "class 12 is out of range"),
        ((), "lacks classes"),
        (("--classes", "3,4", "--budget", "1"), "not trained for a condition on budget"),
        (("--classes", "3,4", "--threshold", "nan"), "threshold must be a number, given nan"),
        (("--classes", "3,4", "--max-bytes", "0"), "max_bytes must be more than zero, given 0"),
        (("--classes", "3,4", "--max-error", "-1"), "max_error must be more than zero, given -1"),
        (("--classes", "3,4", "--confidence", "0.9"), "no max_error was given"),
        (("--classes", "3,4", "--max-error", "1", "--confidence", "95"), "confidence must lie between 0 and 1"),
        (("--classes", "3,4", "--max-error", "1", "--confidence", "0.95"), "bhc train --calibration"),
        (("--classes", "3,4", "--max-bytes", "40"), "the smallest that can be reached is"),
        (("--classes", "3,4", "--max-flops", "2"), "hint: ask for max_flops="),
        (("--classes", "3,4", "--max-bytes", "180", "--max-error", "0.001"), "no network for classes 3, 4"),
    ],
)
def test_bad_requests(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: Path,
    words: tuple[str, ...],
    message: str,
) -> None:
    refused(monkeypatch, capsys, message, "compress", run, *words)


def test_bad_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path
) -> None:
    (tmp_path / "junk.bhc").write_bytes(b"junk")
    (tmp_path / "junk.npy").write_bytes(b"junk")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    refused(monkeypatch, capsys, "is damaged", "evaluate", tmp_path / "junk.bhc", "--data", "digits")
    refused(monkeypatch, capsys, "does not exist", "inspect", tmp_path / "none")
    refused(monkeypatch, capsys, "not a run folder", "compress", tmp_path, "--classes", "3,4")
    for name in ("junk.npy", "objects.npy"):
        refused(monkeypatch, capsys, "not an array", "compress", run, "--domain", tmp_path / name)
    refused(monkeypatch, capsys, "could not read", "compress", run, "--domain", tmp_path / "none.npy")


def test_nothing_is_overwritten_without_force(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine"
    out.write_text("precious")
    names = ("--model", "lenet-300-100", "--data", "digits")
    refused(monkeypatch, capsys, "exists already", "compress", run, "--classes", "3,4", "--out", out)
    refused(monkeypatch, capsys, "exists already", "pretrain", *names, "--out", out)
    refused(monkeypatch, capsys, "exists already", "inspect", run, "--plot", out)
    refused(monkeypatch, capsys, "holds a run already", "train", *names, "--out", run)
    assert out.read_text() == "precious"
    assert call(monkeypatch, "compress", run, "--classes", "3,4", "--out", out, "--force") == 0
    assert bhc.read(out).classes == (3, 4)


def test_bad_training_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = ("--model", "lenet-300-100", "--data", "digits", "--out", tmp_path / "r")
    refused(monkeypatch, capsys, "no run to resume", "train", *names, "--resume")
    refused(monkeypatch, capsys, "unknown context 'weather'", "train", *names, "--context", "weather")
    refused(monkeypatch, capsys, "cannot read the subsets", "train", *names, "--subsets", "many")
    refused(monkeypatch, capsys, "unknown generator", "train", *names, "--weight-generator", "magic")
    refused(monkeypatch, capsys, "cannot hold 5,000 of", "train", *names, "--calibration", "5000")
    refused(monkeypatch, capsys, "cannot compute on", "train", *names, "--device", "abacus")
    wrong_model = ("--model", "lenet-7", "--data", "digits", "--out", tmp_path / "r")
    refused(monkeypatch, capsys, "unknown model 'lenet-7'", "train", *wrong_model)
    wrong_data = ("--model", "lenet-300-100", "--data", "words", "--out", tmp_path / "r")
    refused(monkeypatch, capsys, "words", "train", *wrong_data)
    too_small = ("--model", "lenet-5-caffe", "--data", "digits", "--out", tmp_path / "r")
    refused(monkeypatch, capsys, "at least 16 x 16", "train", *too_small)
    unread = ("--context", "none", "--context-weight", "0.1")
    refused(monkeypatch, capsys, "nothing to read back", "train", *names, *unread)


def test_weights_of_another_model_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], digits: DataSet, tmp_path: Path
) -> None:
    from bhc.pretraining import save_weights

    net = bhc.models.lenet_300_100(image_shape=(1, 8, 8))
    save_weights(tmp_path / "w", "lenet-5-caffe", net, digits, errors={})
    names = ("--model", "lenet-300-100", "--data", "digits", "--out", tmp_path / "r")
    message = "has model 'lenet-5-caffe', 'lenet-300-100' is needed"
    refused(monkeypatch, capsys, message, "train", *names, "--weights", tmp_path / "w")


def test_wrong_use_of_options_exits_with_2_and_help_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(monkeypatch, "compress") == 2
    assert call(monkeypatch, "nonsense") == 2
    assert call(monkeypatch, "--help") == 0


def test_odd_values_and_paths(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    names = ("--model", "lenet-300-100", "--data", "digits")
    request = ("compress", run, "--classes", "3,4")
    refused(monkeypatch, capsys, "too long", *request, "--out", tmp_path / ("x" * 300))
    refused(monkeypatch, capsys, "cannot write to the folder", *request, "--out", tmp_path / "file" / "a.bhc")
    refused(monkeypatch, capsys, "cannot write to the folder", "train", *names, "--out", tmp_path / "file")
    refused(monkeypatch, capsys, "cannot write to the folder", "demo", "--data", "digits", "--out", tmp_path / "file")
    refused(monkeypatch, capsys, "rate must be", "train", *names, "--out", tmp_path / "r", "--rate", "-1")
    two_stage = ("--context", "classes", "--two-stage")
    refused(monkeypatch, capsys, "not conditioned on", "train", *names, "--out", tmp_path / "s", *two_stage)
    beyond = ("--out", tmp_path / "s", "--context", "budget", "--margin")
    refused(monkeypatch, capsys, "from 0 to 1, given 1.5", "train", *names, *beyond, "1.5")
    refused(monkeypatch, capsys, "given --margin 0.5", "train", *names, *beyond, "0.5", "--two-stage")
    assert call(monkeypatch, "train", *names, "--out", tmp_path / "r", "--seed", "9" * 30) == 2
    capsys.readouterr()
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (64000000000000,), }"
    (tmp_path / "huge.npy").write_bytes(header.ljust(127) + b"\n")
    refused(monkeypatch, capsys, "not an array", "compress", run, "--domain", tmp_path / "huge.npy")


def test_the_version_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("bhc ")


def test_an_interrupt_is_reported_kindly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Path
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bhc.cli.compress.load", interrupted)
    assert call(monkeypatch, "compress", run, "--classes", "3,4") == 130
    assert "interrupted" in capsys.readouterr().err


def test_the_installed_command_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "bhc", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for command in ("demo", "pretrain", "train", "compress", "export", "evaluate", "inspect"):
        assert command in done.stdout


def test_where_classes_appear_unequally_often_the_expected_error_is_evaluated(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    weighing_model: bhc.Compressor,
    tmp_path: Path,
) -> None:
    path = tmp_path / "small.bhc"
    weighing_model.compress(classes={8: 0.9, 3: 0.1}, threshold=-1.0).save(path).to_onnx(tmp_path / "small.onnx")
    for file in (path, tmp_path / "small.onnx"):
        assert call(monkeypatch, "evaluate", file, "--data", "digits", "--json") == 0
        result = json.loads(capsys.readouterr().out)
        by_class = result["test_error_by_class"]
        assert by_class["3"] != by_class["8"]
        assert result["test_error"] == pytest.approx(0.1 * by_class["3"] + 0.9 * by_class["8"], rel=1e-6)
        assert call(monkeypatch, "evaluate", file, "--data", "digits") == 0
        assert "3 (0.1), 8 (0.9)" in capsys.readouterr().out
