from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.posterior import FAMILIES
from bhc.training import Point, Recipe, RunFolder, largest_within
from tests.training.runs import (
    ALONE,
    RECIPE,
    Fit,
    StopAt,
    assert_same_bits,
    bits,
    mlp,
    multiplied,
    resumed,
    told,
    train,
    wrapped,
)


def test_training_changes_the_network_and_lowers_the_divergence(fit: Fit, tmp_path: Path) -> None:
    recipe = (bhc.Learn(steps=200, kl_weight=0.1, warm_up=0.1, contexts=4, examples=8),)
    fit(run=tmp_path / "run", recipe=recipe)
    records = RunFolder(tmp_path / "run").metrics.read()
    assert [record["step"] for record in records] == [50, 100, 150, 200]
    assert records[-1]["kl"] < 0.7 * records[0]["kl"]
    assert {"stage", "cross_entropy", "kl_weight", "ratio", "seconds"} <= records[0].keys()


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(fit: Fit) -> None:
    one, same, other = (fit(seed=seed) for seed in (1, 1, 2))
    assert_same_bits(one, same)
    with pytest.raises(AssertionError):
        assert_same_bits(one, other)


LEARN = bhc.Learn(steps=60, kl_weight=0.1, contexts=2, examples=8)
NARROWING = (RECIPE[0], bhc.Narrow(steps=150, kl_weight=0.1, contexts=4, examples=8, final_ratio=5.0))
READ = {"kl_weight": 0.1, "context_weight": 0.3, "contexts": 16, "examples": 2}
READING = (
    bhc.Learn(steps=100, rate=1e-2, **READ),  # type: ignore[arg-type]
    bhc.Narrow(steps=50, final_ratio=2.0, **READ),  # type: ignore[arg-type]
    bhc.Consolidate(steps=20, contexts=4, examples=4),
)
PAIRS, SINGLE = bhc.ClassSubsets(10, bhc.ConsecutivePairs()), bhc.SingleContext()
SMALLER = (torch.zeros(20, 1, 4, 4, dtype=torch.uint8), torch.arange(20) % 10)
RATIOS = (RECIPE[0], bhc.Consolidate(steps=20, ratios=(1.2, 2.0), contexts=4, examples=8))


# Noisy, so that scales soon decide something.
READ_BACK = {"space": PAIRS, "initial": replace(bhc.Initial.exact(), logvar=-2.0)}
BROKEN_OFF: dict[str, tuple[Recipe, StopAt, dict[str, Any]]] = {
    "learning": (RECIPE, StopAt(40, "learning"), {}),
    "ratios": (RATIOS, StopAt(20, "consolidating"), {}),
    "narrowing": (NARROWING, StopAt(100, "narrowing"), {"space": PAIRS}),
    "consolidating": (RECIPE, StopAt(20, "consolidating"), {}),
    "reading while learning": (READING, StopAt(50, "learning"), READ_BACK),
    "reading while narrowing": (READING, StopAt(50, "narrowing"), READ_BACK),
    "stage two of a budget": (  # with its offsets still frozen
        bhc.two_stage_budget(LEARN, LEARN),
        StopAt(40, "learning", stage=2),
        {"space": bhc.BinaryBudget()},
    ),
    "read before": (READING, StopAt(20, "consolidating"), READ_BACK),
    **{family: (ALONE, StopAt(0, "consolidating"), {"space": SINGLE, "family": family}) for family in FAMILIES},
}


@pytest.mark.parametrize(("recipe", "stop", "design"), BROKEN_OFF.values(), ids=BROKEN_OFF)
def test_a_run_that_is_broken_off_resumes_to_the_same_bits(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path, recipe: Recipe, stop: StopAt, design: dict[str, Any]
) -> None:
    net = mlp() if recipe is READING else pretrained
    whole, again = resumed(lambda: wrapped(digits, net, **design), digits, tmp_path, stop, recipe=recipe)
    for model in (again, bhc.load(tmp_path / "cut")):
        assert_same_bits(whole, model)
        assert model.model.thresholds == whole.model.thresholds
    assert told(tmp_path / "cut") == told(tmp_path / "whole")
    assert sum("context_nll" in record for record in told(tmp_path / "cut")) == (3 if recipe is READING else 0)
    clocks = [model.model.training.pop("seconds") for model in (whole, again)]
    assert all(0 < seconds < 600 for seconds in clocks)
    assert whole.model.training == again.model.training


def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted_and_many_end_the_run(
    fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = (bhc.Learn(steps=60, contexts=2, examples=4),)
    with monkeypatch.context() as patch:
        multiplied(patch, lambda step: float("nan") if step == 4 else 1.0)
        model = fit(recipe=recipe)
    assert model.model.training["skipped_steps"] == 1
    assert all(torch.isfinite(tensor).all() for tensor in bits(model).values())
    multiplied(monkeypatch, lambda step: float("nan"))
    with pytest.raises(BhcError, match="diverged"):
        fit(recipe=recipe)


def test_consolidation_keeps_the_masks_and_lowers_the_error(fit: Fit) -> None:
    size = {"contexts": 8, "examples": 8}
    model = fit(recipe=(bhc.Learn(steps=300, kl_weight=0.3, **size), bhc.Consolidate(steps=200, **size)))
    before, after = (model.model.training["curves"][name] for name in ("before", "after"))
    assert [p["ratio_harmonic"] for p in before] == [p["ratio_harmonic"] for p in after]
    assert sum(p["error"] for p in after) < sum(p["error"] for p in before)


def test_the_default_threshold_is_the_smallest_network_within_the_error() -> None:
    points = [Point(t, 1, ratio, 1, error, 1) for t, ratio, error in [(-1, 90, 3.0), (0, 50, 1.4), (1, 20, 1.0)]]
    assert largest_within(points, 1.5).threshold == 0
    assert largest_within(points, 0.5).threshold == 1


@pytest.mark.parametrize(
    ("options", "noun"),
    [
        ({"recipe": ()}, "no steps"),
        ({"device": "nonsense"}, "nonsense"),
        ({"calibration_set": SMALLER}, r"calibration_set.*\(20, 1, 4, 4\)"),
        ({"resume": True}, "no folder was given"),
    ],
)
def test_options_that_cannot_be_are_refused(fit: Fit, options: dict[str, object], noun: str) -> None:
    with pytest.raises(BhcError, match=noun):
        fit(**options)


def test_inputs_of_another_shape_are_refused(wrap: Fit) -> None:
    with pytest.raises(BhcError, match="inputs of shape"):
        bhc.fit(wrap(), SMALLER, SMALLER, recipe=RECIPE)


def test_a_second_training_learns_again(fit: Fit, digits: DataSet) -> None:
    model = fit()
    name = "hypernet.vectors.logvar_map.offset"
    before = bits(model)[name].clone()
    train(model, digits, recipe=RECIPE[:1])
    assert model.network.hypernet.gates is None
    assert not torch.equal(before, bits(model)[name])


def test_a_network_that_knows_nothing_neither_teaches_nor_is_compared_with(digits: DataSet) -> None:
    net = bhc.models.lenet_300_100(image_shape=(1, 8, 8), full_scale=16.0)
    recipe = (bhc.Learn(steps=250, kl_weight=0.05, contexts=8, examples=8), bhc.Consolidate(steps=100))
    model = train(wrapped(digits, net, pretrained=False), digits, recipe=recipe)
    assert model.model.training["original_error"] is None
    small = model.compress(classes=[0, 1])
    assert small.report.error_before is None
    assert small.report.error is not None
    assert small.report.error < 20
