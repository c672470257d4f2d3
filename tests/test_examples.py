"""The examples: short enough to read, and each runs to the files that it promises."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import bhc

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
MOST_LINES = 80
RUNS = {
    "huggingface": (["--steps", "4"], ["small"]),
    "image_folder": (["pictures", "--workers", "1", "--steps", "4"], ["small"]),
    "own_loss": (["--steps", "20"], ["proved", "smallest"]),
    "own_network": (["--data", "digits", "--steps", "20"], ["3-4", "8-9"]),
    "sensors": (["--steps", "4"], ["all", "without-3", "worn"]),
    "tabular": (["--steps", "20"], ["four-columns", "two-growers"]),
}
NEEDS = {"huggingface": "transformers"}


def imported(path: Path) -> ModuleType:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem], reason=f"{path.stem}.py needs {NEEDS[path.stem]}: pip install 'bhc[dev]'")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Few enough to be read in a moment, three classes of them."""
    digits = load_digits(n_class=3)
    for number, (pixels, label) in enumerate(zip(digits.images[:60], digits.target, strict=False)):
        folder = tmp_path / "pictures" / "train" / f"digit-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((15 * pixels).astype("uint8")).save(folder / f"{number}.png")
    return tmp_path / "pictures"


def test_every_example_is_run() -> None:
    assert [path.stem for path in EXAMPLES] == sorted(RUNS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < MOST_LINES


# A moment's training narrows nothing, and may cut where it was not consolidated.
@pytest.mark.filterwarnings("ignore::bhc.emission.ThresholdWarning")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_to_its_files(
    path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options, written = RUNS[path.stem]
    monkeypatch.chdir(pictures.parent)
    monkeypatch.setattr("sys.argv", [path.name, "--out", "files", *options])
    imported(path).main()
    assert capsys.readouterr().out.count("architecture  ") == len(written)
    files = Path("files")
    assert sorted(file.stem for file in files.glob("*.bhc")) == written
    for name in written:
        small = bhc.read(files / f"{name}.bhc")
        given = small.network.signature.zeros(3)
        x = tuple(torch.rand_like(one) if one.is_floating_point() else one + 1 for one in given)
        x = x[0] if len(x) == 1 else x
        deployed = bhc.open_deployed(files / f"{name}.onnx").logits(x)
        torch.testing.assert_close(deployed, small.outputs(x), atol=1e-3, rtol=1e-3)


def test_the_digits_are_written_where_no_folder_is_given(tmp_path: Path) -> None:
    (path,) = (path for path in EXAMPLES if path.stem == "image_folder")
    splits = bhc.data.image_folders(imported(path).write_digits(tmp_path))
    assert (len(splits.train) + len(splits.validation), splits.train.image_shape) == (1797, (1, 8, 8))
