"""Runs in folders with a model card, which need nothing of the hub."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.errors import BhcError
from tests.quick_model import same_model

DESCRIPTION, CARD = "run.json", "README.md"


def code_in(card: str) -> str:
    return re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)[0]


def wrapped(space: bhc.ContextSpace, digits: DataSet, pretrained: torch.nn.Module) -> bhc.Compressor:
    """Not trained; with a sample to look at."""
    model = bhc.wrap(pretrained, space, example_input=digits.train.inputs[:1])
    return bhc.Compressor(replace(model.model, validation=digits.validation))


def test_a_folder_is_read_back_with_and_without_its_card(quick_model: bhc.Compressor, tmp_path: Path) -> None:
    quick_model.save_pretrained(tmp_path / "run")
    assert same_model(bhc.from_pretrained(tmp_path / "run"), quick_model)
    (tmp_path / "run" / CARD).unlink()
    assert same_model(bhc.from_pretrained(str(tmp_path / "run")), quick_model)


def test_the_card_tells_the_figures_of_the_run(quick_model: bhc.Compressor, tmp_path: Path) -> None:
    quick_model.save_pretrained(tmp_path)
    card, trained = (tmp_path / CARD).read_text(), quick_model.model
    assert card.startswith("---\nlibrary_name: bhc\ntags:\n- bhc\n")
    assert "license" not in card
    rows = [line.strip("| ").split(" | ") for line in card.splitlines() if line.startswith("| ")]
    for point in trained.training["curves"]["after"]:
        told = [f"{point[name]:.2f}" for name in ("threshold", "ratio_mean", "error", "error_max")]
        assert told in [row[:4] for row in rows]
    figures = {row[0]: row[1] for row in rows if len(row) == 2}
    assert figures["network"] == "50,200 weights in 3 layers"
    assert figures["error of the pretrained network"].startswith(f"{trained.training['original_error']:.2f} %")
    assert figures["validation examples"] == f"{len(trained.validation or ())}"
    assert figures["thresholds covered"] == "-2 to 1"
    told = {name.strip("`") for name in figures if name.startswith("`") and "." in name}
    assert told == {path.name for path in tmp_path.iterdir()} - {CARD}


def test_the_card_of_a_model_that_was_never_trained_has_no_figures_of_training(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    model = bhc.wrap(pretrained, bhc.Budgets(), example_input=digits.train.inputs[:1])
    model.save_pretrained(tmp_path / "run", license="cc-by-4.0")
    card = (tmp_path / "run" / CARD).read_text()
    assert "%" not in card
    assert "Trade-off" not in card
    assert "validation examples" not in card
    assert "\nlicense: cc-by-4.0\n" in card


SPACES = [
    bhc.ClassSubsets(10),
    bhc.InputDomains((1, 8, 8)),
    bhc.Joint(bhc.ClassSubsets(10), bhc.Budgets()),
    bhc.SingleContext(),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.kind)
def test_the_code_of_a_card_runs(
    space: bhc.ContextSpace,
    digits: DataSet,
    pretrained: torch.nn.Module,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    wrapped(space, digits, pretrained).save_pretrained("run")
    code = code_in(Path("run", CARD).read_text())
    assert max(map(len, code.splitlines())) < 120
    exec(code, {})
    assert bhc.read("small.bhc").report.weights_after


def test_names_of_classes_do_not_break_the_card(quick_model: bhc.Compressor, tmp_path: Path) -> None:
    names = ("<b>a|b\nc", *map(str, range(1, 30)))
    bhc.Compressor(replace(quick_model.model, class_names=names)).save_pretrained(tmp_path / "run")
    card = (tmp_path / "run" / CARD).read_text()
    assert "&lt;b>a\\|b c, 1, 2" in card
    assert "19 and 10 more" in card


def test_a_folder_that_holds_a_run_or_a_card_is_left_alone(quick_model: bhc.Compressor, tmp_path: Path) -> None:
    (tmp_path / CARD).write_text("my own words")
    with pytest.raises(BhcError, match=CARD):
        quick_model.save_pretrained(tmp_path)
    assert not (tmp_path / DESCRIPTION).exists()
    (tmp_path / CARD).unlink()
    quick_model.save_pretrained(tmp_path)
    with pytest.raises(BhcError, match="holds a run"):
        quick_model.save_pretrained(tmp_path)
    quick_model.save_pretrained(tmp_path, overwrite=True)
