"""The runner from configuration files to result files and tables, on the small digits."""

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import run
import torch
from study import training
from study.config import Study
from study.methods import class_pairs

import bhc
from bhc.data import DataSet
from bhc.pretraining import error_of, load_weights
from bhc.training import Silent, load_run
from tests.experiments.runner import NAMES, ONE_WEIGHT_FILE, Place, lasting, stamps, study_file
from tests.experiments.toys import EXPERIMENTS, run_script

PUBLIC_WEIGHT_FILE = "lenet-300-100-public-digits.safetensors"
pytestmark = pytest.mark.usefixtures("few_tries")


# Results


def test_each_study_gives_one_result_of_its_method(place: Place) -> None:
    assert sorted(path.name for path in place.target("bhc-cy").parent.iterdir()) == [
        f"{name}-seed0.json" for name in sorted(NAMES)
    ]
    for name in NAMES:
        result = place.result(name)
        assert (result["method"], result["model"], result["seed"]) == (name, "lenet-300-100", 0)
        assert len(result["contexts"]) == (1 if name == "sparsevd" else 9)
        assert result["train_device"] == result["emit_device"] == f"cpu, {torch.get_num_threads()} threads"
        assert 0 < result["train_seconds"] < result["seconds"]


def test_all_studies_start_from_one_pretrained_network(place: Place, digits: DataSet) -> None:
    assert [path.name for path in place.runs.glob("*.safetensors")] == [ONE_WEIGHT_FILE]
    net = load_weights(place.runs / ONE_WEIGHT_FILE, "lenet-300-100", digits)
    assert error_of(net, digits.test) < 15
    assert place.result("sparsevd")["original_error"] == pytest.approx(error_of(net, digits.test))
    for folder in (place.runs / "bhc-cy-seed0", place.runs / "per-context-seed0" / "pair4"):
        base = load_run(folder).network.base_model.state_dict()
        assert all(torch.equal(tensor, base[name]) for name, tensor in net.state_dict().items())


def test_a_network_is_trained_for_each_context_alone(place: Place, digits: DataSet) -> None:
    folder = place.runs / "per-context-seed0"
    assert sorted(path.name for path in folder.iterdir()) == [f"pair{number}" for number in range(9)]
    rows = place.result("per-context")["contexts"]
    for number, (row, case) in enumerate(zip(rows, class_pairs(digits), strict=True)):
        space = load_run(folder / f"pair{number}").network.space
        assert space == bhc.SingleContext((number, number + 1))
        assert row["label"] == case.label
        assert row["context"] == {"classes": [number, number + 1]}
        assert row["train_seconds"] == load_run(folder / f"pair{number}").training["seconds"] > 0
    total = sum(row["train_seconds"] for row in rows)
    assert place.result("per-context")["train_seconds"] == pytest.approx(total)


def test_training_follows_the_study(place: Place) -> None:
    learned, consolidated = load_run(place.runs / "bhc-cy-seed0").training["recipe"]
    assert (learned["kind"], learned["steps"], learned["contexts"], learned["examples"]) == ("learn", 20, 16, 16)
    assert (consolidated["kind"], consolidated["thresholds"]) == ("consolidate", [-7.0, -4.0])
    sparse = load_run(place.runs / "sparsevd-seed0")
    assert sparse.network.design.family == "sparse-vd"
    assert sparse.network.design.std_limits is None
    assert [stage["kind"] for stage in sparse.training["recipe"]] == ["learn"]
    assert load_run(place.runs / "bhc-cy-seed0").network.design.std_limits == (0.2, None, None)


def test_the_tables_are_built_from_the_results(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, out = place.folder / "results", tmp_path / "tables"
    assert run_script(monkeypatch, "--results", results, "--out", out) == 0
    rows = [line.strip("| ").split(" | ") for line in (out / "mnist" / "table1.md").read_text().splitlines()]
    for title, name in (("BHC c_y", "bhc-cy"), ("SparseVD", "sparsevd")):
        row = next(row for row in rows if row[0] == title)
        assert row[1] == "1"
        assert f"({place.result(name)['summary']['pruning_error']:.2f})" in row[4]
    contexts = (out / "mnist" / "contexts.md").read_text()
    assert contexts.count("| 3, 4 |") == 2
    assert "LeNet-300-100, per context" in contexts


# What is there already


@pytest.mark.usefixtures("no_training")
def test_a_second_call_leaves_everything_as_it_is(place: Place) -> None:
    before = stamps(place.folder)
    assert place.call(*(place.folder / f"{name}.toml" for name in NAMES)) == 0
    assert stamps(place.folder) == before


@pytest.mark.usefixtures("no_training")
def test_force_measures_again_and_trains_nothing(place: Place) -> None:
    for name in ("bhc-cy", "sparsevd"):
        before, trained = place.result(name), stamps(place.runs)
        place.target(name).write_text("{}")
        assert place.call(place.folder / f"{name}.toml", "--force") == 0
        again = place.result(name)
        assert lasting(again) == lasting(before)
        assert again["train_seconds"] == before["train_seconds"]
        assert stamps(place.runs) == trained


def test_only_the_seeds_that_were_asked_for_are_run(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh = Place(tmp_path).start_from(place)
    config = study_file(tmp_path, "sparsevd", seeds=[0, 1, 2])
    assert fresh.call(config, "--seeds", "5") == 0
    assert "has none of these seeds, its own are [0, 1, 2]" in capsys.readouterr().err
    assert fresh.call(config, "--seeds", "1", "5") == 0
    assert [path.name for path in fresh.target("sparsevd").parent.iterdir()] == ["sparsevd-seed1.json"]
    assert fresh.result("sparsevd", 1)["seed"] == 1
    assert lasting(fresh.result("sparsevd", 1)["contexts"]) != lasting(place.result("sparsevd")["contexts"])


def test_a_seed_is_that_of_the_first_weights_and_of_every_draw(place: Place, digits: DataSet) -> None:
    bench = training.Bench(digits, place.runs, "cpu", Silent())
    study = Study.read(place.folder / "bhc-cy.toml")
    one, again, other = (
        bench.untrained(study, study.method.space(digits), seed).network.hypernet.state_dict() for seed in (3, 3, 4)
    )
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    assert load_run(place.runs / "bhc-cy-seed0").training["seed"] == 0


def test_the_same_study_gives_the_same_result_elsewhere(place: Place, tmp_path: Path) -> None:
    fresh = Place(tmp_path)  # with a pretrained network of its own
    assert fresh.call(study_file(tmp_path, "sparsevd")) == 0
    assert (fresh.runs / ONE_WEIGHT_FILE).read_bytes() == (place.runs / ONE_WEIGHT_FILE).read_bytes()
    assert lasting(fresh.result("sparsevd")) == lasting(place.result("sparsevd"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"learn": {"steps": 21}}, "recipe"), ({"generator": {"kind": "low-rank", "rank": 2}}, "generator")],
)
def test_a_run_that_is_not_the_study_s_is_refused(
    place: Place,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    no_training: None,
    changes: dict[str, Any],
    words: str,
) -> None:
    before = place.target("sparsevd").read_bytes()
    assert place.call(study_file(tmp_path, "sparsevd", **changes), "--force") == 2
    assert f"sparsevd-seed0 was trained with another {words} than its configuration has now" in capsys.readouterr().err
    assert place.target("sparsevd").read_bytes() == before


# Wrong use


def test_a_bad_configuration_ends_with_one_line_and_status_2_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_training: None
) -> None:
    (tmp_path / "bad.toml").write_text("seeds = [0")
    assert Place(tmp_path).call(study_file(tmp_path, "sparsevd"), tmp_path / "bad.toml") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert "bad.toml" in line
    assert not (tmp_path / "results").exists()


def test_a_data_set_that_does_not_exist_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Place(tmp_path).call(study_file(tmp_path, "sparsevd", data="stars")) == 2
    assert "stars" in capsys.readouterr().err


def test_public_weights_that_are_missing_are_asked_for_and_never_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_training: None
) -> None:
    own = study_file(tmp_path, "sparsevd", model="lenet-5-caffe", seeds=[0, 1])
    public = study_file(tmp_path, "bc-gnj", weights="public")
    place = Place(tmp_path)
    for arguments in ((public,), (own, public, "--jobs", "2")):
        assert place.call(*arguments) == 2
        path = place.runs / PUBLIC_WEIGHT_FILE
        error = capsys.readouterr().err
        assert f"{path} does not exist, and bc-gnj starts from public weights" in error
        assert f": bhc pretrain --model lenet-300-100 --data digits --public FILE --out {path}\n" in error
        assert not place.runs.exists()


def test_public_weights_that_are_there_are_what_a_study_starts_from(place: Place, digits: DataSet) -> None:
    bench = training.Bench(digits, place.runs, "cpu", Silent())
    study = Study.read(study_file(place.folder / "public", "sparsevd", weights="public"))
    path = place.runs / PUBLIC_WEIGHT_FILE
    with pytest.raises(bhc.BhcError, match="public weights"):  # what was trained here is no public network
        bench.weights(study)
    path.write_bytes((place.runs / ONE_WEIGHT_FILE).read_bytes())
    assert bench.weights(study) == path
    path.unlink()


# Several at once


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been called from here on, to whose success it leads."""
    noted: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: noted.append(command) or SimpleNamespace(returncode=0))
    return noted


def test_jobs_run_each_seed_as_a_call_of_its_own(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]
) -> None:
    fresh = Place(tmp_path).start_from(place)
    config = study_file(tmp_path, "sparsevd", seeds=[0, 1, 2])
    fresh.target("sparsevd", 1).parent.mkdir(parents=True)
    fresh.target("sparsevd", 1).write_text("{}")
    assert fresh.call(config, "--jobs", "2") == 0
    monkeypatch.undo()
    assert [command[:2] for command in commands] == [[sys.executable, str(EXPERIMENTS / "run.py")]] * 2
    assert sorted(command[command.index("--seeds") + 1] for command in commands) == ["0", "2"]
    for command in commands:
        monkeypatch.setattr("sys.argv", command[1:])
        assert run.main() == 0
    assert lasting(fresh.result("sparsevd"))["contexts"] == lasting(place.result("sparsevd"))["contexts"]
    assert fresh.target("sparsevd", 1).read_text() == "{}"
    assert fresh.result("sparsevd", 2)["seed"] == 2


def test_jobs_measure_again_where_they_are_told_to(place: Place, commands: list[list[str]]) -> None:
    configs = [place.folder / f"{name}.toml" for name in NAMES]
    assert place.call(*configs, "--jobs", "2") == 0
    assert not commands
    assert place.call(*configs, "--jobs", "2", "--force", "--data-dir", place.folder) == 0
    assert sorted(command[2] for command in commands) == sorted(map(str, configs))
    assert all({"--force", "--data-dir"} <= set(command) for command in commands)


@pytest.mark.parametrize("code", [1, 2, -signal.SIGKILL])
def test_a_job_that_failed_or_was_killed_is_named_and_no_success(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    def end(command: list[str], **options: object) -> SimpleNamespace:
        return SimpleNamespace(returncode=code if command[command.index("--seeds") + 1] == "1" else 0)

    monkeypatch.setattr(subprocess, "run", end)
    config = study_file(tmp_path, "sparsevd", seeds=[0, 1, 2])
    assert Place(tmp_path).start_from(place).call(config, "--jobs", "2") == 1
    assert capsys.readouterr().err.splitlines() == ["failed: sparsevd, seed 1"]
