"""Learning with ``log p(c | z)``: contexts are read back from the masks."""

from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch

import bhc
from bhc.contexts import ContextSpace
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.files import read_tensors
from bhc.training import Learn, RunFolder, Stage
from tests.training import runs
from tests.training.runs import assert_same_bits, mlp

LEARN = bhc.Learn(steps=100, kl_weight=0.1, context_weight=0.3, rate=1e-2, contexts=16, examples=2)
NARROW = bhc.Narrow(steps=50, kl_weight=0.1, context_weight=0.3, contexts=16, examples=2, final_ratio=2.0)
CONSOLIDATE = bhc.Consolidate(steps=20, contexts=4, examples=4)
NOISY = replace(bhc.Initial.exact(), logvar=-2.0)  # so that scales soon decide something
PAIRS, DOMAINS = bhc.ClassSubsets(10, bhc.ConsecutivePairs()), bhc.InputDomains((1, 8, 8), full_scale=16.0)


def fit(
    digits: DataSet, *recipe: Stage, space: ContextSpace = PAIRS, family: str = "io-gnj", **options: object
) -> bhc.Compressor:
    return runs.fit(digits, mlp(), space, {"initial": NOISY, "family": family}, recipe=recipe, **options)


def read_back(path: Path) -> list[float]:
    """What the diary has of it."""
    return [record["context_nll"] for record in RunFolder(path).metrics.read() if "context_nll" in record]


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["float32", "bfloat16"])
def test_contexts_are_read_better_and_better_and_the_decoder_is_dropped(
    digits: DataSet, tmp_path: Path, autocast: torch.dtype | None
) -> None:
    model = fit(digits, replace(LEARN, steps=300), CONSOLIDATE, run=tmp_path / "run", autocast=autocast)
    assert model.model.training["skipped_steps"] == 0
    told = read_back(tmp_path / "run")
    assert len(told) == 6  # while learning alone
    assert told[-1] < 0.5 * told[0]
    assert model.network.decoder is None
    assert not [name for name in model.network.state_dict() if "decoder" in name]
    (file,) = (tmp_path / "run").glob("model-*.safetensors")
    assert read_tensors(file)[0].keys() == model.network.state_dict().keys()
    assert_same_bits(model, bhc.load(tmp_path / "run"))
    assert model.model.training["recipe"][0]["context_weight"] == 0.3


def test_without_a_weight_nothing_is_read_and_recipes_are_written_as_before(digits: DataSet, tmp_path: Path) -> None:
    model = fit(digits, replace(LEARN, context_weight=0.0), run=tmp_path / "run")
    assert read_back(tmp_path / "run") == []
    assert "context_weight" not in model.model.training["recipe"][0]
    with pytest.raises(AssertionError):
        assert_same_bits(model, fit(digits, LEARN))


def test_a_decoder_is_left_to_itself_by_stages_that_do_not_read(digits: DataSet, tmp_path: Path) -> None:
    fit(digits, replace(LEARN, steps=50), replace(NARROW, context_weight=0.0), run=tmp_path / "run")
    assert len(read_back(tmp_path / "run")) == 1


@pytest.mark.filterwarnings("ignore::bhc.training.CollapseWarning")  # it looks at every single step here
@pytest.mark.parametrize(
    ("space", "family"),
    [
        (bhc.ClassSubsets(10, bhc.ConsecutivePairs(), concentration=1.0), "io-gnj"),
        (PAIRS, "gnj"),
        (PAIRS, "ghs"),
        (DOMAINS, "io-gnj"),
        (bhc.Budgets(), "io-gnj"),
        (bhc.Joint(PAIRS, bhc.Budgets()), "io-gnj"),
    ],
    ids=["rates", "gnj", "ghs", "domain", "budget", "joint"],
)
def test_contexts_of_every_kind_are_read_back(
    digits: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, space: ContextSpace, family: str
) -> None:
    monkeypatch.setattr("bhc.fitting.LOG_EVERY", 1)
    model = fit(digits, replace(LEARN, steps=200), space=space, family=family, run=tmp_path / "run")
    assert model.model.training["skipped_steps"] == 0
    told = read_back(tmp_path / "run")
    assert mean(told[-50:]) < 0.9 * mean(told[:5])


@pytest.mark.parametrize(
    ("space", "stage", "message"),
    [
        (bhc.SingleContext(), LEARN, "nothing to read back"),
        (bhc.SingleContext((3, 4)), NARROW, "nothing to read back"),
        (bhc.Budgets(), bhc.Learn(budget=1.0, context_weight=0.1), "a stage at budget 1 has one context"),
    ],
)
def test_a_context_without_alternatives_is_refused(
    digits: DataSet, space: ContextSpace, stage: Learn, message: str
) -> None:
    with pytest.raises(BhcError, match=message):
        fit(digits, stage, space=space)
