"""The examples: short enough to read, and their networks are such as the library takes."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import bhc

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
MOST_LINES = 80


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_has_a_main(path: Path) -> None:
    assert len(path.read_text().splitlines()) < MOST_LINES
    assert callable(imported(path).main)


def test_a_network_of_one_s_own_goes_all_the_way(tmp_path: Path) -> None:
    """The network of the example, with random weights, to a file and back."""
    (path,) = (path for path in EXAMPLES if path.stem == "own_network")
    images = torch.randint(0, 256, (2, 1, 28, 28), dtype=torch.uint8)
    model = bhc.wrap(imported(path).Digits(255.0), bhc.ClassSubsets(10), example_input=images)
    small = model.compress(classes=[3, 4], threshold=0.0).save(tmp_path / "small.bhc")
    assert torch.equal(bhc.read(tmp_path / "small.bhc").module(images), small.module(images))
