"""What was broken off goes on where it was."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import run

import bhc
from bhc.files import read_tensors, write_tensors
from bhc.training import RunFolder, Silent
from tests.experiments.runner import Place, lasting, stamps, study_file
from tests.experiments.toys import CONSOLIDATE, EXPERIMENTS
from tests.training.runs import ENVIRONMENT, wait_until

pytestmark = pytest.mark.usefixtures("few_tries")


@pytest.mark.long
def test_a_study_killed_in_training_goes_on_from_its_checkpoint_to_the_same_result(
    place: Place, tmp_path: Path
) -> None:
    """The first stage leaves a checkpoint; the second is long enough to be killed in."""
    changes = {"consolidate": CONSOLIDATE | {"steps": 80}}
    cut, whole = (Place(tmp_path / name).start_from(place) for name in ("cut", "whole"))
    config = study_file(tmp_path, "bc-gnj", **changes)
    folder = RunFolder(cut.runs / "bc-gnj-seed0")
    victim = subprocess.Popen(
        [sys.executable, str(EXPERIMENTS / "run.py"), str(config), *cut.options],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(folder.checkpoint.exists)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    assert not folder.description.exists()
    assert not cut.target("bc-gnj").exists()
    assert [record["step"] for record in folder.metrics.read()] == [20]

    assert cut.call(config) == 0
    assert whole.call(config) == 0
    assert lasting(cut.result("bc-gnj")) == lasting(whole.result("bc-gnj"))
    assert not folder.checkpoint.exists()


class Impatient(Silent):
    """Leaves in the middle of the named piece of work, the n-th time it begins."""

    def __init__(self, title: str, times: int) -> None:
        self.title, self.left = title, times

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self.left -= title == self.title
        if not self.left:
            raise KeyboardInterrupt


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Every training that begins from here on: its folder's name, and whether it was resumed."""
    seen, fit = [], bhc.fit

    def noted(*arguments: Any, **options: Any) -> bhc.Compressor:
        seen.append((options["run"].name, options["resume"]))
        return fit(*arguments, **options)

    monkeypatch.setattr(bhc, "fit", noted)
    return seen


def test_what_was_trained_before_an_interrupt_is_kept(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: list[tuple[str, bool]]
) -> None:
    """Of nine trainings two are done, the third has a checkpoint of its first stage and the others nothing."""
    cut, config = Place(tmp_path).start_from(place), study_file(tmp_path, "per-context")
    with monkeypatch.context() as patch:
        patch.setattr(run, "default_progress", lambda: Impatient("consolidating", 3))
        with pytest.raises(KeyboardInterrupt):
            cut.call(config)
    folder = cut.runs / "per-context-seed0"
    done = stamps(folder / "pair0") | stamps(folder / "pair1")
    assert begun == [("pair0", False), ("pair1", False), ("pair2", False)]
    assert RunFolder(folder / "pair2").checkpoint.exists()
    assert not cut.target("per-context").exists()

    begun.clear()
    assert cut.call(config) == 0
    assert begun == [("pair2", True), *((f"pair{number}", False) for number in range(3, 9))]
    assert stamps(folder / "pair0") | stamps(folder / "pair1") == done
    assert lasting(cut.result("per-context")) == lasting(place.result("per-context"))


def test_the_time_of_an_interrupted_training_counts_what_came_before(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, config = Place(tmp_path).start_from(place), study_file(tmp_path, "bc-gnj")
    with monkeypatch.context() as patch:
        patch.setattr(run, "default_progress", lambda: Impatient("consolidating", 1))
        with pytest.raises(KeyboardInterrupt):
            cut.call(config)
    path = RunFolder(cut.runs / "bc-gnj-seed0").checkpoint
    tensors, header = read_tensors(path)
    assert 0 < header["position"]["seconds"] < 60
    header["position"]["seconds"] = 1000.0
    write_tensors(path, tensors, header)
    assert cut.call(config) == 0
    assert 1000 < cut.result("bc-gnj")["train_seconds"] < 1060
