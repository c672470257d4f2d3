"""A network and data of the user's own, from training to evaluation."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import bhc
from bhc.data import DataSet
from tests.cli.commands import PNG, Commands
from tests.cli.own import NAMES, QUICK, SCALED, write_images

pytestmark = pytest.mark.usefixtures("forgetful", "at_home")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def images_run(cli: Commands, runs: Path) -> Path:
    """A run on the folder of images; made once."""
    if not (runs / "images" / "run.json").exists():
        words = ("--network", "my_nets.py:build", "--data", "images", *SCALED)
        cli("train", *words, *QUICK, "--out", runs / "images")
    return runs / "images"


def test_a_network_is_trained_on_a_folder_of_images(cli: Commands, tmp_path: Path) -> None:
    words = ("train", "--network", "my_nets.py:build", "--data", "images", *SCALED, *QUICK, "--out", tmp_path / "run")
    said = cli(*words)
    assert "printed while it is built" in said.err
    assert "images has no validation part" in said.err
    errs = float(said.err.split("the network errs on ")[1].split(" %")[0])
    assert errs < 10
    assert "as often as guessing" not in said.err
    assert "--classes d0,d1 --out small.bhc" in said.err
    model = bhc.load(tmp_path / "run")
    assert model.model.class_names == NAMES
    reading = {"size": None, "mean": [0.5], "std": [0.25], "channels": None, "on_error": "raise"}
    assert model.model.training["images"] == reading
    shown = cli("inspect", tmp_path / "run").out
    assert "task          classification; reported is the error" in shown
    assert "sample        " in shown
    assert "validation examples: " in shown
    assert "reads images  as large as they are; mean 0.5; std 0.25" in shown
    sample = model.model.validation
    assert sample is not None
    assert cli.json("inspect", tmp_path / "run")["sample"] == {
        "examples": len(sample), "bytes": sample.tensor.nelement() * 4, "dtypes": ["float32"], "labelled": True,
    }  # fmt: skip


def test_images_that_cannot_be_read_are_left_out_where_that_is_asked(cli: Commands, tmp_path: Path) -> None:
    shutil.copytree("images", tmp_path / "images")
    broken = next((tmp_path / "images" / "train").glob("*/*.png"))
    broken.write_bytes(broken.read_bytes()[:60])
    words = ("train", "--network", "my_nets.py:build", "--data", tmp_path / "images", *SCALED, *QUICK)
    cli.refused(broken.name, *words, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    cli.refused("raise, or skip", *words, "--on-error", "ignore", "--out", tmp_path / "run")
    cli(*words, "--on-error", "skip", "--out", tmp_path / "run")
    assert (tmp_path / "run" / "run.json").exists()


def test_a_folder_is_read_for_evaluation_as_the_run_read_it(cli: Commands, images_run: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.bhc"
    cli("compress", images_run, "--classes", "d3,d4", "--threshold", "1", "--float32", "--out", small)
    words = ("evaluate", small, "--data", "images")
    told = cli.json(*words, "--run", images_run)
    assert told["classes"] == [3, 4]
    assert told["class_names"] == ["d3", "d4"]
    assert (told["part"], told["error_name"], told["test_images"]) == (
        "test",
        "error",
        len([*Path("images/test/d3").iterdir(), *Path("images/test/d4").iterdir()]),
    )
    assert told == cli.json(*words, *SCALED) | {"latency_ms": told["latency_ms"]}
    plain = cli(*words)
    assert "--run RUN reads images as in training" in plain.err
    assert "of classes d3, d4" in plain.out
    assert cli.json(*words)["test_ece"] != told["test_ece"]
    exported = tmp_path / "small.onnx"
    cli("export", small, "--to", "onnx", "--out", exported)
    again = cli.json("evaluate", exported, "--data", "images", "--run", images_run, "--workers", "1")
    assert (again["test_error"], again["class_names"]) == (told["test_error"], ["d3", "d4"])
    only = cli.json(*words, "--run", images_run, "--classes", "D4")
    assert (only["classes"], only["test_error"]) == ([4], told["test_error_by_class"]["4"])
    assert cli.json(*words, "--run", images_run, "--part", "validation")["test_images"] < 10
    assert "validation error" in cli(*words, "--run", images_run, "--part", "validation").out


def test_folders_of_a_test_part_are_known_by_their_names(cli: Commands, images_run: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.bhc"
    cli("compress", images_run, "--classes", "d3,d4", "--out", small)
    for name in ("d4", "d3", "d9"):  # as the second, the first and the third of three
        shutil.copytree(Path("images", "test", name), tmp_path / "few" / "test" / name)
    words = ("evaluate", small, "--run", images_run, "--data")
    few, every = cli.json(*words, tmp_path / "few"), cli.json(*words, "images")
    assert few["test_error_by_class"] == every["test_error_by_class"]
    assert few["outside"]["images"] < every["outside"]["images"]
    shutil.rmtree(tmp_path / "few" / "test" / "d4")
    cli.refused("no images of the class d4; it has d3, d9", *words, tmp_path / "few")


def test_folders_called_by_numbers_are_not_counted(cli: Commands, run: Path, digits: DataSet, tmp_path: Path) -> None:
    """A file that was made for classes that are called by their numbers, on a folder of two of them."""
    small, test = tmp_path / "small.bhc", digits.test.restricted_to([0, 1])
    cli("compress", run, "--classes", "0,1", "--out", small)
    write_images(tmp_path / "pictures" / "test", test.tensor, test.known_labels + 1, ("", "0", "1"))
    right = cli.json("evaluate", small, "--data", tmp_path / "pictures", "--std", "0.0588235294")
    assert right["test_error"] == cli.json("evaluate", small, "--data", "digits")["test_error"]
    (tmp_path / "pictures" / "test" / "0").rename(tmp_path / "pictures" / "test" / "7")
    cli.refused("no images of the class 0; it has 1, 7", "evaluate", small, "--data", tmp_path / "pictures")


@pytest.mark.parametrize(
    ("data", "weights"), [("arrays.npz", "net.pt"), ("./arrays.npz", "net.safetensors")], ids=["torch", "safetensors"]
)
def test_arrays_and_weights_of_a_state_dict(cli: Commands, tmp_path: Path, data: str, weights: str) -> None:
    state = torch.load("net.pt", weights_only=True)
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "net.pt")
    save_file(state, tmp_path / "net.safetensors")
    words = ("train", "--network", "my_nets.py:Net", "--data", data, "--out", tmp_path / "run", *QUICK)
    said = cli(*words, "--weights", tmp_path / weights).err
    assert float(said.split("the network errs on ")[1].split(" %")[0]) < 10
    cli("compress", tmp_path / "run", "--classes", "d1,d7", "--out", tmp_path / "a.bhc")
    assert cli.json("evaluate", tmp_path / "a.bhc", "--data", data)["class_names"] == ["d1", "d7"]


def test_a_network_that_guesses_is_told_of_before_it_is_trained(cli: Commands, tmp_path: Path) -> None:
    words = ("train", "--network", "my_nets.py:Net", "--data", "arrays.npz", "--out", tmp_path / "run")
    said = cli(*words, *QUICK).err
    assert "the network is taken for trained, as my_nets.py:Net gives it" in said
    assert "as often as guessing would" in said
    assert "--mean" in said


@pytest.mark.parametrize("data", ["flat", "inputs.npz"])
def test_without_labels_the_network_is_imitated(cli: Commands, tmp_path: Path, data: str) -> None:
    reading = SCALED if data == "flat" else ()
    out, small = tmp_path / "run", tmp_path / "small.bhc"
    words = ("train", "--network", "my_nets.py:loaded", "--data", data, *reading, "--labels", "none", "--out", out)
    assert "disagreement %" in cli(*words, *QUICK).out
    assert "task          imitation; reported is the disagreement" in cli("inspect", out).out
    cli("compress", out, "--classes", "3,4", "--out", small)
    told = cli.json("evaluate", small, "--data", data, "--run", out)
    assert (told["error_name"], told["classes"]) == ("disagreement", [3, 4])
    assert "test disagreement" in cli("evaluate", small, "--data", data, "--run", out).out
    cli.refused("which", "evaluate", small, "--data", data, *reading, "--labels", "none")
    # What the pretrained network says of labelled images is nearly always right, so both errors lie close together.
    given = cli.json("evaluate", small, "--data", "images", *SCALED)
    assert given["error_name"] == "error"
    assert abs(given["test_error"] - told["test_error"]) < 15
    again = cli.json("evaluate", small, "--data", "images", "--run", out, "--labels", "given", *SCALED)
    assert again["test_error"] == given["test_error"]


@pytest.mark.parametrize("function", ["lists", "items"])
def test_lists_are_data(cli: Commands, tmp_path: Path, function: str) -> None:
    data = f"my_data.py:{function}"
    said = cli("train", "--network", "my_nets.py:build", "--data", data, "--out", tmp_path / "run", *QUICK).err
    assert float(said.split("the network errs on ")[1].split(" %")[0]) < 10
    cli("compress", tmp_path / "run", "--classes", "3,4", "--threshold", "1", "--out", tmp_path / "small.bhc")
    assert cli.json("evaluate", tmp_path / "small.bhc", "--data", data)["test_images"] > 4


def test_several_inputs_by_name(cli: Commands, tmp_path: Path) -> None:
    out, small = tmp_path / "run", tmp_path / "small.bhc"
    said = cli("train", "--network", "my_nets.py:Words", "--data", "my_data.py:texts", "--out", out, *QUICK)
    assert "--classes 'a b,c'" in said.err
    shown = cli("inspect", out, "--plot", tmp_path / "run.png").out
    assert "takes         input_ids (batch, 6), attention_mask (batch, 6)" in shown
    assert f"sample        40 validation examples: {40 * 6 * (8 + 4):,} bytes, int64, float32" in shown
    cli("compress", out, "--classes", "e,c", "--out", small)
    told = cli.json("evaluate", small, "--data", "my_data.py:texts")
    assert (told["class_names"], told["unit"]) == (["c", "e"], "example")
    loaded = cli.json("evaluate", small, "--data", "my_data.py:loaders", "--workers", "1")
    assert loaded["test_images"] > 5
    cli("inspect", small, "--plot", tmp_path / "file.png")
    assert (tmp_path / "file.png").read_bytes().startswith(PNG)
    for context in ("features", "domain"):
        words = ("--network", "my_nets.py:Words", "--data", "my_data.py:loaders", "--out", tmp_path / "other")
        cli.refused("the network takes several", "train", *words, "--context", context)


def test_a_function_may_give_a_data_set_of_ours_or_images_to_prove_with(cli: Commands, tmp_path: Path) -> None:
    words = ("train", "--model", "lenet-300-100", "--data", "my_data.py:ours", "--out", tmp_path / "a", *QUICK)
    cli(*words, "--calibration", "300")
    assert cli.json("inspect", tmp_path / "a")["calibration_images"] == 300
    words = ("train", "--network", "my_nets.py:build", "--data", "my_data.py:with_calibration")
    cli(*words, "--out", tmp_path / "b", *QUICK)
    assert cli.json("inspect", tmp_path / "b")["calibration_images"] == 300
    asked = ("--classes", "0,1", "--max-error", "20", "--confidence", "0.9")
    assert "guarantee" in cli("compress", tmp_path / "b", *asked, "--out", tmp_path / "small.bhc").out
    told = cli.json(
        "evaluate", tmp_path / "small.bhc", "--data", "my_data.py:with_calibration", "--part", "calibration"
    )
    assert told["part"] == "calibration"
    cli.refused("has no test part", "evaluate", tmp_path / "small.bhc", "--data", "my_data.py:with_calibration")


def test_images_that_a_run_was_made_with_are_described(cli: Commands, images_run: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(images_run, tmp_path / "run")
    description = json.loads((changed / "run.json").read_text())
    description["training"]["images"] |= {"size": [8, 4], "channels": 3}
    (changed / "run.json").write_text(json.dumps(description))
    assert "reads images  8 x 4; in colour; mean 0.5; std 0.25" in cli("inspect", changed).out
    cli("compress", changed, "--classes", "3,4", "--out", tmp_path / "small.bhc")
    words = ("evaluate", tmp_path / "small.bhc", "--data", "images")
    hint = cli.refused("images has inputs of shape (3, 8, 4)", *words, "--run", changed)
    assert "--run RUN, or --size" in hint
    description["training"]["images"] = "nonsense"
    (changed / "run.json").write_text(json.dumps(description))
    assert "reads images" not in cli("inspect", changed).out
    assert cli.json(*words, "--run", changed)["test_error"] == cli.json(*words)["test_error"]


def test_many_images_are_looked_at_in_sight(
    cli: Commands, images_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("compress", images_run, "--classes", "d3,d4", "--out", tmp_path / "small.bhc")
    words = ("evaluate", tmp_path / "small.bhc", "--data", "images", "--run", images_run)
    assert "looking" not in cli(*words).err
    monkeypatch.setattr("bhc.cli.own_data.MANY", 100)
    assert "looking: 150/150" in cli(*words).err


def test_of_many_classes_the_worst_are_named(
    cli: Commands, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bhc.cli.evaluate.MOST_CLASSES", 2)
    cli("compress", run, "--classes", "2,3,4", "--threshold", "-2", "--out", tmp_path / "small.bhc")
    words = ("evaluate", tmp_path / "small.bhc", "--data", "digits")
    errors = sorted(cli.json(*words)["test_error_by_class"].items(), key=lambda each: -each[1])
    shown = ", ".join(f"{label}: {error:.2f} %" for label, error in errors[:2])
    said = cli(*words).out
    assert f"by class      {shown} and 1 more" in said
    assert "of classes 2, 3 and 1 more)" in said
