"""Tasks of the user's own on the command line, and what is refused of all that a user may bring."""

import shutil
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import bhc
from bhc import tasks
from bhc.errors import BhcError
from bhc.tasks import load_task, task_named
from tests.cli.commands import PNG, Commands
from tests.cli.own import QUICK, SCALED
from tests.studio.serving import serving

pytestmark = pytest.mark.usefixtures("forgetful", "at_home")
TASK = ("--task", "my_tasks.py:Overlap")


@pytest.fixture
def maps_run(cli: Commands, home: Path) -> Path:
    """A run for a task of the user's own; made once."""
    if not (home / "maps" / "run.json").exists():
        words = ("--network", "my_nets.py:Maps", "--data", "my_data.py:maps", *TASK, "--out", "maps")
        said = cli("train", *words, *QUICK)
        assert "overlap %" in said.out
        assert f"compress maps {' '.join(TASK)} --classes 0,1" in said.err
        tasks._TASKS.pop("overlap")
    return home / "maps"


def test_a_task_with_classes_and_a_background(cli: Commands, maps_run: Path, tmp_path: Path) -> None:
    shown = cli("inspect", maps_run, *TASK, "--plot", tmp_path / "run.png").out
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)
    assert "task          overlap; reported is the overlap" in shown
    assert "overlap before %" in shown
    small = tmp_path / "small.bhc"
    cli("compress", maps_run, "--task", "my_tasks.py:make", "--classes", "0,2", "--threshold", "1", "--out", small)
    expected = cli.json("evaluate", small, "--data", "my_data.py:maps", *TASK)
    assert (expected["error_name"], expected["classes"], expected["test_images"]) == ("overlap", [0, 2], 20)
    assert expected["test_ece"] is None
    said = cli("evaluate", small, "--data", "my_data.py:maps", *TASK).out
    assert f"test overlap  {100 - expected['test_error']:.2f} %  (20 images of classes 0, 2)" in said
    for to, suffix in (("onnx", ".onnx"), ("torch", ".pt2")):
        cli("export", small, "--to", to, "--out", small.with_suffix(suffix))
        words = ("evaluate", small.with_suffix(suffix), "--data", "my_data.py:maps", *TASK, "--run", maps_run)
        assert cli.json(*words)["test_error"] == pytest.approx(expected["test_error"], abs=1e-3)


def test_the_error_of_a_task_is_that_of_its_outputs(cli: Commands, maps_run: Path, tmp_path: Path) -> None:
    """Counted by hand."""
    small = tmp_path / "small.bhc"
    cli("compress", maps_run, *TASK, "--classes", "0,1", "--out", small)
    told = cli.json("evaluate", small, "--data", "my_data.py:maps", *TASK)
    rng = torch.Generator().manual_seed(2)
    images = torch.rand(30, 1, 8, 8, generator=rng)[torch.arange(30) % 3 < 2]
    wanted = torch.full((20, 8, 8), 3)
    wanted[:, 2:5, 2:5] = (torch.arange(30) % 3)[torch.arange(30) % 3 < 2].view(-1, 1, 1)
    numbers = torch.tensor(bhc.read(small).classes)
    answers = numbers[bhc.read(small).outputs(images).argmax(1)]
    assert told["test_error"] == pytest.approx(100 * float((answers != wanted).float().mean()))


def test_a_task_without_classes(cli: Commands, tmp_path: Path) -> None:
    words = ("train", "--network", "my_nets.py:build", "--data", "my_data.py:vectors", "--out", tmp_path / "run")
    own = ("--task", "my_tasks.py:Distance")
    assert "--context none" in cli.refused("has no classes", *words, *own)
    assert "absolute error %" in cli(*words, *own, *QUICK, "--context", "none").out
    cli("compress", tmp_path / "run", *own, "--out", tmp_path / "small.bhc")
    said = cli("evaluate", tmp_path / "small.bhc", "--data", "my_data.py:vectors", *own).out
    assert said.startswith("test absolute error ")
    assert "(60 images)" in said
    assert "by class" not in said
    cli.refused("'absolute error', given 'overlap'", "evaluate", tmp_path / "small.bhc", "--data", "my_data.py:vectors",
                *TASK)  # fmt: skip
    assert "--task" in cli.refused("measures 'absolute error'", "evaluate", tmp_path / "small.bhc", "--data", "digits")


def test_targets_that_a_task_does_not_understand(cli: Commands, maps_run: Path, tmp_path: Path) -> None:
    cli("compress", maps_run, *TASK, "--classes", "0,1", "--out", tmp_path / "small.bhc")
    words = ("evaluate", tmp_path / "small.bhc", *TASK, "--data")
    cli.refused("task 'overlap' fails on outputs of shape (60, 3, 8, 8)", *words, "my_data.py:vectors")
    cli.refused("the data have no targets", *words, "my_data.py:inputs_alone")


def test_a_run_asks_for_its_task(cli: Commands, maps_run: Path, tmp_path: Path) -> None:
    for words in (("inspect", maps_run), ("compress", maps_run, "--classes", "0,1")):
        assert "--task FILE.py:FUNCTION" in cli.refused("'overlap', which is not known here", *words)
    cli.refused("'overlap', given 'distance'", "inspect", maps_run, "--task", "my_tasks.py:Distance")
    (tmp_path / "contexts.jsonl").write_text('{"classes": [0, 1]}\n')
    cli("compress", maps_run, *TASK, "--contexts", tmp_path / "contexts.jsonl", "--out", tmp_path / "all")
    assert (tmp_path / "all" / "1.bhc").exists()


def _load(connection, run):  # type: ignore[no-untyped-def]
    connection.send(type(bhc.load(run).network.task).__name__)


def test_processes_that_are_started_later_know_the_task(
    maps_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_task("my_tasks.py:make")
    monkeypatch.chdir(tmp_path)
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_load, args=(there, maps_run))
    process.start()
    assert here.poll(60)
    assert here.recv() == "Overlap"
    process.join()


def test_a_task_that_the_environment_names_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tasks.VARIABLE, "my_tasks.py:Distance")
    assert task_named("distance").error_name == "absolute error"
    with pytest.raises(BhcError, match="'overlap'"):
        task_named("overlap")


@pytest.mark.long
def test_a_service_for_a_task_of_the_users_own(cli: Commands, maps_run: Path, tmp_path: Path) -> None:
    with serving(maps_run, *TASK) as service:
        said = cli("pull", service.url, "--classes", "0,1", "--out", tmp_path / "small.bhc")
    assert "overlap " in said.out


NET, IMAGES = ("--network", "my_nets.py:build"), ("--data", "images")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (IMAGES, "neither was given", "--network FILE.py:FUNCTION"),
        ((*NET, *IMAGES, "--model", "lenet-300-100"), "given lenet-300-100 and my_nets.py:build", "--model"),
        (("--model", "lenet-300-100", *IMAGES), "--model lenet-300-100", "--network"),
        (("--network", "my_nets.py:buidl", *IMAGES), "no function buidl", "build"),
        (("--network", "no_nets.py:build", *IMAGES), "no file", ".py"),
        (("--network", "my_nets.py", *IMAGES), "does not name a function", "file.py:function"),
        (("--network", "my_nets.py:a_dict", *IMAGES), "my_nets.py:a_dict gives a value of type dict", "Module"),
        (("--network", "my_nets.py:needs", *IMAGES), "without arguments", "none"),
        (("--network", "my_nets.py:raises", *IMAGES), "ValueError: no disk (line", ""),
        (("--network", "my_nets.py:colour", *IMAGES), "does not run on an example of images, (1, 8, 8)", "--channels"),
        (("--network", "my_nets.py:two_results", *IMAGES), "gives (1, 10), (1, 1, 8, 8) for one example", "one tensor"),
        ((*NET, "--data", "digits", "--size", "8"), "--size is for folders", "leave it out"),
        ((*NET, "--data", "arrays.npz", "--mean", "0", "--std", "1"), "--mean, --std is for folders", "leave it out"),
        ((*NET, *IMAGES, "--size", "large"), "'large'", "64,48"),
        ((*NET, *IMAGES, "--size", "0"), "size=0", "one number"),
        ((*NET, *IMAGES, "--mean", "0.5,x"), "'0.5,x'", "one a channel"),
        ((*NET, *IMAGES, "--std", "0"), "std=", "over 0"),
        ((*NET, *IMAGES, "--channels", "2"), "channels=2", "3 for colour"),
        ((*NET, *IMAGES, "--channels", "3"), "(3, 8, 8)", "--channels"),
        ((*NET, *IMAGES, "--labels", "some"), "--labels some", "none"),
        ((*NET, *IMAGES, "--workers", "-1"), "--workers -1", "0 or more"),
        ((*NET, *IMAGES, "--labels", "none", *TASK), "--task and --labels none", "own"),
        ((*NET, *IMAGES, "--task", "my_tasks.py:no_task"), "type int, and no task", "bhc.Task"),
        ((*NET, *IMAGES, "--task", "my_tasks.py:Half"), "my_tasks.py:Half fails", ""),
        ((*NET, *IMAGES, "--calibration", "9"), "--calibration is for data sets by name", "'calibration'"),
        ((*NET, *IMAGES, "--leave-out", "cy"), "--leave-out is for data sets by name", "leave it out"),
        ((*NET, "--data", "flat"), "has no folder of a class; it has .png (400)", "--labels none"),
        ((*NET, "--data", "inputs.npz"), "lacks y", "--labels none"),
        ((*NET, "--data", "nowhere.npz"), "there is no file nowhere.npz", "savez"),
        ((*NET, "--data", "nowhere"), "there is no data set 'nowhere'", "digits"),
        ((*NET, "--data", "my_data.py"), "does not name a function", ""),
        ((*NET, "--data", "my_data.py:two_arrays"), "two arrays", "(train, validation)"),
        ((*NET, "--data", "my_data.py:four"), "gives 4 things", "(train, validation)"),
        ((*NET, "--data", "my_data.py:other_names"), "a dict with train, valid", "validation"),
        ((*NET, "--data", "my_data.py:a_number"), "gives a value of type int", "DatasetSplits"),
        ((*NET, "--data", "my_data.py:numbers"), "the first example of my_data.py:numbers", "Dataset"),
        ((*NET, "--data", "my_data.py:triples"), "a tuple of 3", "(inputs, targets)"),
        ((*NET, "--data", "my_data.py:broken"), "OSError: disk on fire", ""),
        ((*NET, "--data", "my_data.py:vectors"), "targets of a classification", "--task"),
        ((*NET, "--data", "my_data.py:texts"), "does not run on an example of my_data.py:texts", ""),
        (("--network", "my_nets.py:floats", "--data", "digits"), "digits, (1, 8, 8) uint8", "floats"),
        ((*NET, *IMAGES, "--weights", "none.pt"), "there is no file none.pt", "state dict"),
        ((*NET, "--data", "my_data.py:inputs_alone"), "there are no targets", "Imitation"),
        (
            ("--network", "my_nets.py:Words", "--data", "my_data.py:texts", "--augment"),
            "--augment alters images",
            "Dataset",
        ),
        (("--model", "lenet-300-100", "--data", "digits", "--labels", "none"), "imitates a trained", "--weights"),
    ],
)
def test_what_is_refused_and_leaves_nothing(
    cli: Commands, tmp_path: Path, words: tuple[str, ...], message: str, hint: str
) -> None:
    said = cli.refused(message, "train", *words, "--out", tmp_path / "run")
    assert hint in said.partition("hint: ")[2]
    assert not (tmp_path / "run").exists()


def test_damaged_and_hostile_data_are_named(cli: Commands, home: Path, tmp_path: Path) -> None:
    def refused(message: str, data: Path, *words: str) -> None:
        cli.refused(message, "train", *NET, "--data", data, *words, *QUICK, "--out", tmp_path / "run")
        assert not (tmp_path / "run").exists()

    np.savez(tmp_path / "objects.npz", x=np.array([{}] * 20, dtype=object), y=np.arange(20) % 10)
    refused("holds Python objects", tmp_path / "objects.npz")
    np.savez(tmp_path / "nine.npz", x=np.zeros((90, 1, 8, 8), dtype=np.float32), y=np.arange(90) % 9)
    refused("no example of class 9", tmp_path / "nine.npz")
    np.savez(tmp_path / "eleven.npz", x=np.zeros((90, 1, 8, 8), dtype=np.float32), y=np.arange(90) % 11)
    refused("class 10, and there are 10 classes", tmp_path / "eleven.npz")
    np.savez(tmp_path / "flat.npz", x=np.zeros((90, 8), dtype=np.float32), y=np.arange(90) % 10)
    refused("does not run on an example of", tmp_path / "flat.npz")
    images = shutil.copytree(home / "images", tmp_path / "images")
    (images / "train" / "d3" / "new.png").write_bytes(b"no image")
    refused("d3/new.png cannot be read", images)
    (images / "train" / "d3" / "new.png").unlink()
    (images / "train" / "d3" / "new.png").symlink_to(home / "images" / "train" / "d4" / "0004.png")
    refused("outside of", images)
    shutil.rmtree(images / "test" / "d3")
    (images / "train" / "d3" / "new.png").unlink()
    refused("lacks d3", images)
    shutil.rmtree(images / "train" / "d3")
    refused("has 9 classes (d0, d1, d2 and 6 more), and the network tells 10 apart", images)
    shutil.rmtree(images / "train")
    refused("there is no folder", images)


def test_weights_that_do_not_fit_are_named(cli: Commands, tmp_path: Path) -> None:
    state = torch.load("net.pt", weights_only=True)
    first = next(iter(state))
    torch.save(bhc.models.build("lenet-300-100", image_shape=(1, 8, 8), num_classes=10), tmp_path / "whole.pt")
    torch.save({f"other.{name}": tensor for name, tensor in state.items()}, tmp_path / "named.pt")
    torch.save(state | {first: torch.zeros(3)}, tmp_path / "shaped.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    save_file({first: state[first]}, tmp_path / "few.safetensors")
    for name in ("junk.safetensors", "junk.pt"):
        (tmp_path / name).write_bytes(b"junk")
    for name, message in (
        ("whole.pt", "more than tensors, which only pickle could read"),
        ("named.pt", "which the network has not"),
        ("shaped.pt", "is (3,) in it and"),
        ("list.pt", "holds a list"),
        ("few.safetensors", "it lacks net."),
        ("junk.safetensors", "cannot be read as .safetensors"),
        ("junk.pt", "cannot be read as a checkpoint"),
    ):
        words = ("--network", "my_nets.py:Net", *IMAGES, *SCALED, "--weights", tmp_path / name)
        cli.refused(message, "train", *words, "--out", tmp_path / "run")


def test_evaluations_that_make_no_sense(cli: Commands, run: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.bhc"
    cli("compress", run, "--classes", "3,4", "--out", small)
    cli.refused("--part best", "evaluate", small, "--data", "digits", "--part", "best")
    cli.refused("has no calibration part", "evaluate", small, "--data", "digits", "--part", "calibration")
    cli.refused("made for the classes 3, 4, asked for cat", "evaluate", small, "--data", "digits", "--classes", "cat")
    cli.refused("asked for 3:0.9", "evaluate", small, "--data", "digits", "--classes", "3:0.9")
    cli.refused("which", "evaluate", small, "--data", "digits", "--labels", "none")
    assert cli.json("evaluate", small, "--data", "digits", "--labels", "none", "--run", run)["error_name"] == (
        "disagreement"
    )
    np.savez(tmp_path / "other.npz", x=np.zeros((20, 1, 8, 8)), y=np.arange(20) % 2, x_test=np.zeros((4, 1, 8, 8)),
             y_test=np.arange(4) % 2)  # fmt: skip
    cli.refused("no example of the classes", "evaluate", small, "--data", tmp_path / "other.npz")
    cli.refused("a value of type int", "evaluate", small, "--data", "my_data.py:a_number")
