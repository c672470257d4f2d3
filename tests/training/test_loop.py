from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.training import Point, RunFolder, Silent, largest_within
from bhc.training.learning import Learn
from bhc.training.stages import BatchSource, Loss, StepScalars
from tests.training.runs import RECIPE, StopAt, Stopped, assert_same_bits, bits, fit


def test_training_changes_the_network_and_lowers_the_divergence(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    recipe = (bhc.Learn(steps=200, kl_weight=0.1, warm_up=0.1, contexts=4, examples=8),)
    fit(digits, pretrained, run=tmp_path / "run", recipe=recipe)
    records = RunFolder(tmp_path / "run").metrics.read()
    assert [record["step"] for record in records] == [50, 100, 150, 200]
    assert records[-1]["kl"] < 0.7 * records[0]["kl"]
    assert {"stage", "cross_entropy", "kl_weight", "ratio", "seconds"} <= records[0].keys()


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(
    digits: DataSet, pretrained: torch.nn.Module
) -> None:
    one, same, other = (fit(digits, pretrained, seed=seed) for seed in (1, 1, 2))
    assert_same_bits(one, same)
    with pytest.raises(AssertionError):
        assert_same_bits(one, other)


@pytest.mark.parametrize(("stop", "stage"), [(40, "learning"), (20, "consolidating")])
def test_a_runbroken_off_in_either_stage_resumes_to_the_same_bits(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path, stop: int, stage: str
) -> None:
    whole = fit(digits, pretrained, run=tmp_path / "whole", checkpoint_every=7)
    with pytest.raises(Stopped):
        fit(digits, pretrained, run=tmp_path / "cut", checkpoint_every=7, progress=StopAt(stop, stage))
    with pytest.raises(BhcError, match="unfinished run"):
        bhc.load(tmp_path / "cut")
    resumed = fit(digits, pretrained, run=tmp_path / "cut", checkpoint_every=7, resume=True)
    assert_same_bits(whole, resumed)
    assert_same_bits(whole, bhc.load(tmp_path / "cut"))
    steps = [record["step"] for record in RunFolder(tmp_path / "cut").metrics.read()]
    assert steps == [record["step"] for record in RunFolder(tmp_path / "whole").metrics.read()]
    clocks = [model.model.training.pop("seconds") for model in (whole, resumed)]
    assert all(0 < seconds < 600 for seconds in clocks)
    assert whole.model.training == resumed.model.training


def test_a_run_that_was_given_ratios_resumes_to_the_same_thresholds(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    recipe = (RECIPE[0], bhc.Consolidate(steps=20, ratios=(1.2, 2.0), contexts=4, examples=8))
    whole = fit(digits, pretrained, recipe=recipe, run=tmp_path / "whole", checkpoint_every=7)
    stop = StopAt(20, "consolidating")
    with pytest.raises(Stopped):
        fit(digits, pretrained, recipe=recipe, run=tmp_path / "cut", checkpoint_every=7, progress=stop)
    resumed = fit(digits, pretrained, recipe=recipe, run=tmp_path / "cut", checkpoint_every=7, resume=True)
    assert_same_bits(whole, resumed)
    assert whole.model.thresholds == resumed.model.thresholds == bhc.load(tmp_path / "cut").model.thresholds


def test_stage_two_of_a_budget_resumes_with_its_offsets_still_frozen(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    learn = bhc.Learn(steps=60, kl_weight=0.1, contexts=2, examples=8)
    recipe = bhc.two_stage_budget(learn, learn)

    def go(**options: object) -> bhc.Compressor:
        model = bhc.wrap(pretrained, bhc.BinaryBudget(), example_input=digits.train.inputs[:1])
        settings = {"recipe": recipe, "checkpoint_every": 7, "progress": Silent()} | options
        return bhc.fit(model, digits.train, digits.validation, **settings)  # type: ignore[arg-type]

    class StopInStageTwo(StopAt):
        begun = 0

        def begin(self, title: str, total: int, done: int = 0) -> None:
            self.begun += 1
            self.current = title if self.begun == 2 else ""

    whole = go(run=tmp_path / "whole")
    with pytest.raises(Stopped):
        go(run=tmp_path / "cut", progress=StopInStageTwo(40, "learning"))
    assert_same_bits(whole, go(run=tmp_path / "cut", resume=True))


def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted(
    digits: DataSet, pretrained: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_loss = Learn.loss

    taken = 0

    def sometimes_nan(self: Learn, network: object, draw: BatchSource, scalars: StepScalars) -> Loss:
        nonlocal taken
        taken += 1
        loss = plain_loss(self, network, draw, scalars)  # type: ignore[arg-type]
        return Loss(loss.total * float("nan"), loss.terms) if taken == 4 else loss

    monkeypatch.setattr(Learn, "loss", sometimes_nan)
    model = fit(digits, pretrained, recipe=(bhc.Learn(steps=6, contexts=2, examples=4),))
    assert model.model.training["skipped_steps"] == 1
    assert all(torch.isfinite(tensor).all() for tensor in bits(model).values())


def test_consolidation_keeps_the_masks_and_lowers_the_error(digits: DataSet, pretrained: torch.nn.Module) -> None:
    recipe = (
        bhc.Learn(steps=300, kl_weight=0.3, contexts=8, examples=8),
        bhc.Consolidate(steps=200, contexts=8, examples=8),
    )
    model = fit(digits, pretrained, recipe=recipe)
    before, after = (model.model.training["curves"][name] for name in ("before", "after"))
    assert [p["ratio_harmonic"] for p in before] == [p["ratio_harmonic"] for p in after]
    assert sum(p["error"] for p in after) < sum(p["error"] for p in before)


def test_the_default_threshold_is_the_smallest_network_within_the_error() -> None:
    points = [Point(t, 1, ratio, 1, error, 1) for t, ratio, error in [(-1, 90, 3.0), (0, 50, 1.4), (1, 20, 1.0)]]
    assert largest_within(points, 1.5).threshold == 0
    assert largest_within(points, 0.5).threshold == 1


def test_a_recipe_without_steps_is_refused(digits: DataSet, pretrained: torch.nn.Module) -> None:
    with pytest.raises(BhcError, match="no steps"):
        fit(digits, pretrained, recipe=())


def test_inputs_of_another_shape_are_refused(digits: DataSet, pretrained: torch.nn.Module) -> None:
    model = bhc.wrap(pretrained, bhc.ClassSubsets(10), example_input=digits.train.inputs[:1])
    wrong = (torch.zeros(20, 1, 7, 7, dtype=torch.uint8), torch.arange(20) % 10)
    with pytest.raises(BhcError, match="inputs of shape"):
        bhc.fit(model, wrong, wrong, recipe=RECIPE, progress=Silent())


def test_an_absent_device_is_refused(digits: DataSet, pretrained: torch.nn.Module) -> None:
    with pytest.raises(BhcError, match="cannot compute on"):
        fit(digits, pretrained, device="nonsense")


def test_the_deterministic_option_leaves_torch_as_it_was(digits: DataSet, pretrained: torch.nn.Module) -> None:
    fit(digits, pretrained, recipe=(bhc.Learn(steps=2, contexts=2, examples=2),), deterministic=True)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_second_training_learns_again(digits: DataSet, pretrained: torch.nn.Module) -> None:
    model = fit(digits, pretrained)
    name = "hypernet.vectors.logvar_map.offset"
    before = bits(model)[name].clone()
    bhc.fit(model, digits.train, digits.validation, recipe=RECIPE[:1], progress=Silent())
    assert model.network.hypernet.gates is None
    assert not torch.equal(before, bits(model)[name])


def test_training_that_diverges_ends_with_advice(
    digits: DataSet, pretrained: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_loss = Learn.loss

    def always_nan(self: Learn, network: object, draw: BatchSource, scalars: StepScalars) -> Loss:
        loss = plain_loss(self, network, draw, scalars)  # type: ignore[arg-type]
        return Loss(loss.total * float("nan"), loss.terms)

    monkeypatch.setattr(Learn, "loss", always_nan)
    with pytest.raises(BhcError, match="diverged"):
        fit(digits, pretrained, recipe=(bhc.Learn(steps=60, contexts=2, examples=4),))


def test_a_network_that_knows_nothing_neither_teaches_nor_is_compared_with(digits: DataSet) -> None:
    net = bhc.models.lenet_300_100(image_shape=(1, 8, 8), full_scale=16.0)
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=digits.train.inputs[:1], pretrained=False)
    recipe = (bhc.Learn(steps=250, kl_weight=0.05, contexts=8, examples=8), bhc.Consolidate(steps=100))
    bhc.fit(model, digits.train, digits.validation, recipe=recipe, progress=Silent())
    assert model.model.training["original_error"] is None
    small = model.compress(classes=[0, 1])
    assert small.report.error_before is None
    assert small.report.error is not None
    assert small.report.error < 20
