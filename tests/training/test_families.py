"""Every family from a trained network to a small file, with contexts and without."""

from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.posterior import FAMILIES
from bhc.training import RunFolder
from tests.training.runs import ALONE, RECIPE, Fit

SPACES = {
    "subsets": (bhc.ClassSubsets(10), {"classes": [2, 7]}, RECIPE, (2, 7)),
    "single": (bhc.SingleContext(), {}, ALONE, tuple(range(10))),
    "single-classes": (bhc.SingleContext((7, 2)), {}, ALONE, (2, 7)),
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_emits_and_comes_back_from_both_kinds_of_file(
    digits: DataSet, fit: Fit, tmp_path: Path, family: str, space: str
) -> None:
    contexts, request, recipe, classes = SPACES[space]
    model = fit(contexts, {"family": family}, recipe=recipe, run=tmp_path / "run", class_names=digits.class_names)
    assert model.model.training["skipped_steps"] == 0
    x = digits.test.inputs
    small = model.compress(**request).save(tmp_path / "small.bhc")
    assert small.predict(x).classes == classes
    assert small.report.error is not None
    assert small.report.error < 25
    again = bhc.read(tmp_path / "small.bhc")
    assert torch.equal(again.module(x), small.module(x))
    assert again.predict(x).classes == classes

    loaded = bhc.load(tmp_path / "run")
    assert loaded.network.design.family == family
    assert loaded.space == model.space
    assert loaded.model.class_names == digits.class_names
    assert loaded.model.default_threshold == model.model.default_threshold
    assert loaded.model.thresholds == model.model.thresholds == model.network.hypernet.family.thresholds
    assert loaded.network.state_dict().keys() == model.network.state_dict().keys()
    assert not RunFolder(tmp_path / "run").checkpoint.exists()
    other = loaded.compress(**request)
    assert torch.equal(other.module(x), small.module(x))
    assert other.report.error == small.report.error


@pytest.mark.parametrize("family", FAMILIES)
def test_consolidation_keeps_the_cut_of_every_family_still(fit: Fit, family: str) -> None:
    design = {"family": family}
    first, second = (fit(bhc.SingleContext(), design, recipe=recipe) for recipe in (ALONE[:1], ALONE))
    rates = [model.network.hypernet.dropouts((torch.zeros(1, 0),)) for model in (first, second)]
    moved = False
    for one, other in zip(*rates, strict=True):
        for kind in ("in_log_dropout", "out_log_dropout", "weights"):
            before, after = getattr(one, kind), getattr(other, kind)
            assert before is after is None or torch.equal(before, after)
    for name, tensor in first.network.hypernet.weights.state_dict().items():
        changed = not torch.equal(tensor, second.network.hypernet.weights.state_dict()[name])
        assert changed == ("mean.offset" in name), name
        moved |= changed
    assert moved


def test_single_weights_may_go_from_every_channel_of_an_image() -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 10)
    )
    images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    model = bhc.wrap(net, bhc.SingleContext(), example_input=images[:1].float(), family="sparse-vd")
    with torch.no_grad():
        # All weights of one colour are noise: they go, the colour itself still arrives.
        model.network.hypernet.weight_heads[0].shared_logvar.offset[:, 1] = 9.0  # type: ignore[union-attr,operator]
    small = model.compress(threshold=3.0, quantisation=bhc.Float32())
    first = small.network.layers[0].module.weight
    assert first.shape[1] == 3
    assert (first[:, 1] == 0).all()
    assert (first[:, 0] != 0).any()
    assert small.module(images.float()).shape == (6, 10)
