"""Every family from a trained network to a small file, with contexts and without."""

from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.posterior import FAMILIES
from bhc.tensors import read_tensors, write_tensors
from bhc.training import Silent

RECIPE = (
    bhc.Learn(steps=40, kl_weight=0.1, contexts=4, examples=8),
    bhc.Consolidate(steps=20, contexts=4, examples=8),
)
ALONE = (
    bhc.Learn(steps=40, kl_weight=0.1, contexts=1, examples=32),
    bhc.Consolidate(steps=20, contexts=1, examples=32),
)
SPACES = {
    "subsets": (bhc.ClassSubsets(10), {"classes": [2, 7]}, RECIPE, (2, 7)),
    "single": (bhc.SingleContext(), {}, ALONE, tuple(range(10))),
    "single-classes": (bhc.SingleContext((7, 2)), {}, ALONE, (2, 7)),
}


def fit(digits: DataSet, net: torch.nn.Module, space: str, family: str, **options: object) -> bhc.Compressor:
    contexts, _, recipe, _ = SPACES[space]
    model = bhc.wrap(net, contexts, example_input=digits.train.inputs[:1], family=family)
    options = {"recipe": recipe, "progress": Silent()} | options
    return bhc.fit(model, digits.train, digits.validation, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_emits_and_comes_back_from_both_kinds_of_file(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path, family: str, space: str
) -> None:
    _, request, _, classes = SPACES[space]
    model = fit(digits, pretrained, space, family, run=tmp_path / "run")
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
    assert loaded.model.default_threshold == model.model.default_threshold
    assert loaded.network.state_dict().keys() == model.network.state_dict().keys()
    assert torch.equal(loaded.compress(**request).module(x), small.module(x))


@pytest.mark.parametrize("space", ["single", "single-classes"])
@pytest.mark.parametrize("request_", [{"classes": [2, 7]}, {"budget": 0}])
def test_a_model_of_one_context_refuses_a_condition(
    digits: DataSet, pretrained: torch.nn.Module, space: str, request_: dict[str, object]
) -> None:
    model = bhc.wrap(pretrained, SPACES[space][0], example_input=digits.train.inputs[:1])
    (name,) = request_
    with pytest.raises(BhcError, match=f"this model was not trained for a condition on {name}") as caught:
        model.compress(**request_)
    assert "made for one context" in caught.value.hint


def test_classes_that_the_network_lacks_are_refused(digits: DataSet, pretrained: torch.nn.Module) -> None:
    with pytest.raises(BhcError, match="0 to 9"):
        bhc.wrap(pretrained, bhc.SingleContext((3, 10)), example_input=digits.train.inputs[:1])


@pytest.mark.parametrize("family", FAMILIES)
def test_consolidation_keeps_the_cut_of_every_family_still(
    digits: DataSet, pretrained: torch.nn.Module, family: str
) -> None:
    first, second = (fit(digits, pretrained, "single", family, recipe=recipe) for recipe in (ALONE[:1], ALONE))
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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_of_every_family_resumes_to_the_same_bits(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path, family: str
) -> None:
    class Stopped(Exception):
        pass

    class StopWhileConsolidating(Silent):
        title = ""

        def begin(self, title: str, total: int, done: int = 0) -> None:
            self.title = title

        def update(self, done: int, terms: dict[str, float]) -> None:
            if self.title == "consolidating":
                raise Stopped

    whole = fit(digits, pretrained, "single", family)
    with pytest.raises(Stopped):
        fit(digits, pretrained, "single", family, run=tmp_path, checkpoint_every=7, progress=StopWhileConsolidating())
    resumed = fit(digits, pretrained, "single", family, run=tmp_path, checkpoint_every=7, resume=True)
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, resumed.network.state_dict()[name]), name


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


def test_a_checkpoint_of_another_device_is_refused_with_its_name(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bhc.wrap(pretrained, bhc.SingleContext(), example_input=digits.train.inputs[:1])
    monkeypatch.setattr("bhc.training.loop._Trainer.finished", _stop)
    with pytest.raises(KeyboardInterrupt):
        bhc.fit(model, digits.train, digits.validation, recipe=ALONE, run=tmp_path, progress=Silent())
    monkeypatch.undo()
    tensors, header = read_tensors(tmp_path / "checkpoint.safetensors")
    header["settings"]["device"] = "cuda"
    write_tensors(tmp_path / "checkpoint.safetensors", tensors, header)
    with pytest.raises(BhcError, match="another device"):
        bhc.fit(model, digits.train, digits.validation, recipe=ALONE, run=tmp_path, resume=True, progress=Silent())


def _stop(*arguments: object) -> None:
    raise KeyboardInterrupt
