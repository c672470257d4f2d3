"""The run folder: what is written, read back, refused and left alone."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bhc
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.files import read_tensors, tensors_to_bytes, write_tensors
from bhc.training import RunFolder
from bhc.training.loop import read_checkpoint
from tests.training.runs import ENVIRONMENT, RECIPE, Fit, assert_same_bits, command, wait_until


def test_resume_without_a_run_is_refused(fit: Fit, tmp_path: Path) -> None:
    with pytest.raises(BhcError, match="no run to resume"):
        fit(run=tmp_path / "none", resume=True)


def test_a_checkpoint_of_another_run_or_that_is_damaged_is_refused_and_outlives_a_failing_save(
    fit: Fit, broken_off: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off(tmp_path)
    checkpoint = RunFolder(tmp_path).checkpoint
    before = checkpoint.read_bytes()

    def refused(noun: str, **options: object) -> None:
        with pytest.raises(BhcError, match=noun):
            fit(run=tmp_path, resume=True, **options)

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("bhc.files.os.fsync", full_disk)
        refused("No space left", checkpoint_every=10)
    assert checkpoint.read_bytes() == before
    refused("another seed", seed=5)
    refused("another recipe", recipe=RECIPE[:1])
    tensors, header = read_tensors(checkpoint)
    header["settings"]["device"] = "cuda"
    checkpoint.write_bytes(tensors_to_bytes(tensors, header))
    refused("another device")
    half = len(before) // 2
    checkpoint.write_bytes(before[:half] + bytes([before[half] ^ 1]) + before[half + 1 :])
    refused("checksum")
    checkpoint.write_bytes(before[:half])
    refused("damaged")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not the description"),
        ({"version": 99}, "version 99"),
        ({"network": [{"kind": "linear"}]}, "damaged"),
        ({"default_threshold": None}, "damaged"),
        ({"context": []}, "damaged"),
        ({"input_shape": [-1]}, "damaged"),
        ({"thresholds": [1]}, "damaged"),
        ({"class_names": 3}, "damaged"),
        ({"files": {"model": "../elsewhere"}}, "does not exist"),
        ({"generator": {"kind": "low-rank", "rank": 2}}, "another model"),
    ],
)
def test_a_damaged_description_is_refused(fit: Fit, tmp_path: Path, change: dict[str, object], message: str) -> None:
    fit(run=tmp_path, recipe=(bhc.Learn(steps=1),))
    path = tmp_path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BhcError, match=message):
        bhc.load(tmp_path)


def test_the_units_that_a_stage_has_dropped_are_read_by_their_old_name_too(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_tensors(folder.checkpoint, {}, {"position": {"step": 3, "gone": 0.25}, "gates": False})
    position = read_checkpoint(folder, settings={})[1].position
    assert (position.step, position.dropped_fraction) == (3, 0.25)


def test_a_finished_or_begun_run_is_not_thrown_away(
    fit: Fit, broken_off: Callable[[Path], None], tmp_path: Path
) -> None:
    fit(run=tmp_path / "done")
    broken_off(tmp_path / "begun")
    for name in ("done", "begun"):
        with pytest.raises(BhcError, match="holds a run already"):
            fit(run=tmp_path / name)
    with pytest.raises(BhcError, match="is finished"):
        fit(run=tmp_path / "done", resume=True)
    fit(run=tmp_path / "done", overwrite=True, seed=3)
    assert bhc.load(tmp_path / "done").model.training["seed"] == 3
    assert len(list((tmp_path / "done").glob("model-*"))) == 1


def test_an_interrupted_save_leaves_the_old_run(fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = fit(run=tmp_path), fit(seed=4)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bhc.training.run.write_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        second.save(tmp_path, overwrite=True)
    assert_same_bits(first, bhc.load(tmp_path))


def test_a_folder_that_is_a_file_is_refused(fit: Fit, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BhcError, match="cannot write"):
            fit(run=path)


def test_what_a_killed_process_left_is_swept_up(fit: Fit, tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.safetensors.abc.part").write_text("half")
    fit(run=tmp_path)
    assert not list(tmp_path.glob(".*.part"))


def test_a_diary_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    diary = RunFolder(tmp_path).metrics
    diary.append({"step": 1})
    diary.path.write_bytes(diary.path.read_bytes() + b'\xff\n[1]\n{"step": 2}\n{"st')
    assert [record["step"] for record in diary.read()] == [1, 2]
    with pytest.raises(BhcError, match="could not write"):
        RunFolder(tmp_path / "none").metrics.append({"step": 1})


def files_in(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"{kind}-*.safetensors"))


def test_calibration_images_are_kept_whole_and_change_nothing(fit: Fit, digits: DataSet, tmp_path: Path) -> None:
    plain = fit(run=tmp_path / "plain")
    model = fit(run=tmp_path / "run", calibration_set=digits.test)
    assert_same_bits(plain, model)
    for part in ("curves", "curve_contexts", "original_error"):
        assert model.model.training[part] == plain.model.training[part]
    assert model.model.default_threshold == plain.model.default_threshold
    loaded = bhc.load(tmp_path / "run")
    assert loaded.model.calibration is not None
    assert torch.equal(loaded.model.calibration.inputs, digits.test.inputs)
    assert torch.equal(loaded.model.calibration.labels, digits.test.labels)
    assert bhc.load(tmp_path / "plain").model.calibration is None
    assert files_in(tmp_path / "plain", "calibration") == []
    assert files_in(tmp_path / "plain", "validation") == files_in(tmp_path / "run", "validation")
    for request in ({}, {"max_bytes": 2000}, {"max_error": 20.0}):
        small, same = (m.compress(classes=[3, 4], **request) for m in (plain, loaded))  # type: ignore[arg-type]
        assert small.to_bytes() == same.to_bytes()


def test_saving_again_keeps_calibration_images_and_forgets_others(fit: Fit, digits: DataSet, tmp_path: Path) -> None:
    model = fit(calibration_set=digits.test)
    model.save(tmp_path / "run")
    first = files_in(tmp_path / "run", "calibration")
    model.model.calibration = digits.test.restricted_to([1, 2])
    model.save(tmp_path / "run", overwrite=True)
    second = files_in(tmp_path / "run", "calibration")
    assert len(first) == len(second) == 1
    assert first != second
    read = bhc.load(tmp_path / "run").model.calibration
    assert read is not None
    assert set(read.labels.tolist()) == {1, 2}
    model.model.calibration = None
    model.save(tmp_path / "run", overwrite=True)
    assert files_in(tmp_path / "run", "calibration") == []
    # A pair of tensors, and over 500 images of a class: more than a validation sample keeps.
    pair = digits.test.inputs[:1].repeat(600, 1, 1, 1), digits.test.labels[:1].repeat(600)
    model = fit(calibration_set=pair, recipe=(bhc.Learn(steps=1, contexts=2),))
    assert model.model.calibration is not None
    assert len(model.model.calibration) == 600


def test_a_loaded_run_asks_the_pretrained_network_nothing(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deep network's answers to the whole sample take most of a minute."""
    model = fit(run=tmp_path / "run")
    loaded = bhc.load(tmp_path / "run")
    monkeypatch.setattr(loaded.network.base_model, "forward", lambda x: pytest.fail("it was asked"))
    small = loaded.compress(classes=[2, 7])
    assert small.report.error_before == model.compress(classes=[2, 7]).report.error_before
    assert small.to_bytes() == model.compress(classes=[2, 7]).to_bytes()


def test_pretrained_answers_that_a_run_lacks_are_found_again_and_belong_to_its_sample(
    fit: Fit, digits: DataSet, tmp_path: Path
) -> None:
    fit(run=tmp_path)
    kept = bhc.load(tmp_path).model
    other = replace(kept, validation=digits.test).base_logits
    with torch.no_grad():
        expected = kept.network.base_model(digits.test.inputs)
    torch.testing.assert_close(other, expected, rtol=0, atol=1e-5)
    rewrite_validation(tmp_path, lambda parts: {name: parts[name] for name in ("images", "labels")})
    found = bhc.load(tmp_path).model
    assert "base_logits" not in vars(found)
    torch.testing.assert_close(found.base_logits, kept.base_logits, rtol=0, atol=1e-5)
    rewrite_validation(tmp_path, lambda parts: parts | {"answers": found.base_logits[1:]})
    with pytest.raises(BhcError, match="answers"):
        bhc.load(tmp_path)


def rewrite_validation(run: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    (path,) = run.glob("validation-*.safetensors")
    parts, header = read_tensors(path)
    path.write_bytes(tensors_to_bytes(change(parts), header))


@pytest.mark.long
def test_a_run_killed_with_kill_9_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    victim = subprocess.Popen(command(cut), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(RunFolder(cut).checkpoint.exists)
    time.sleep(0.15)  # into the middle of the next steps
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    assert not RunFolder(cut).description.exists()

    for words in (command(cut, "--resume"), command(whole)):
        subprocess.run(words, env=ENVIRONMENT, check=True, capture_output=True, timeout=300)
    assert_same_bits(bhc.load(whole), bhc.load(cut))
