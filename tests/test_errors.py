"""Old names of arguments work for one version, and warn."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bhc
from bhc import contexts
from bhc.data import DataSet
from bhc.pretraining import usual_recipe


def test_old_names_work_and_warn(digits: DataSet, pretrained: nn.Module, quick_model: bhc.Compressor) -> None:
    with pytest.warns(DeprecationWarning, match="weight_generator="):
        model = bhc.wrap(
            pretrained, bhc.ClassSubsets(10), example_input=digits.train.inputs[:1], generator=bhc.LowRank(2)
        )
    assert model.network.design.weight_generator == bhc.LowRank(2)
    with pytest.warns(DeprecationWarning, match="quantisation=") as told:
        small = quick_model.compress(classes=[3, 4], precision=bhc.Float32())
    assert told[0].filename == __file__  # the line that is to be changed, not one of ours
    assert set(small.report.bits) == {32}
    with pytest.warns(DeprecationWarning, match="quantisation="):
        (same,) = quick_model.compress_many([{"classes": [3, 4], "precision": bhc.Float32()}])
    assert same.to_bytes() == small.to_bytes()
    with pytest.warns(DeprecationWarning, match="autocast="), pytest.raises(bhc.BhcError, match="no steps"):
        bhc.fit(model, digits.train, digits.validation, recipe=(), precision=torch.bfloat16)


BATCH = torch.arange(2 * 3 * 8 * 8).view(2, 3, 8, 8)
DRAWS: dict[str, Callable[..., Any]] = {
    "build": lambda **rng: bhc.models.build("text-cnn", image_shape=(4,), num_classes=2, full_scale=9, **rng).fc.weight,
    "pairs": lambda **rng: bhc.ConsecutivePairs().draw(9, 5, **rng),
    "subsets": lambda **rng: bhc.RandomSubsets(sizes=(1, 2)).draw(9, 5, **rng),
    "features": lambda **rng: contexts.ScatteredFeatures().draw(9, (4, 4), **rng),
    "blocks": lambda **rng: contexts.BlockFeatures().draw(9, (4, 4), **rng),
    "stripes": lambda **rng: contexts.StripedFeatures().draw(9, (4, 4), **rng),
    "listed": lambda **rng: contexts.ListedFeatures(((0,), (1, 2))).draw(9, (4,), **rng),
    "words": lambda **rng: contexts.WordsOfTexts((0.5, 0.1, 0.2)).draw(9, (3,), **rng),
    "mixed": lambda **rng: contexts.MixedFeatures((contexts.BlockFeatures(),)).draw(9, (4, 4), **rng),
    "images": lambda **rng: bhc.data.CropAndFlip()(BATCH.to(torch.uint8), **rng),
    "sounds": lambda **rng: bhc.data.ShiftAndNoise(shift=2)(BATCH[:, :, 0].to(torch.int16), **rng),
    "texts": lambda **rng: bhc.data.DropWords()(BATCH[0, 0].to(torch.int32), **rng),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_random_draws_take_their_generator_by_the_old_name(draw: Callable[..., torch.Tensor]) -> None:
    with pytest.warns(DeprecationWarning, match="rng="):
        old = draw(generator=torch.Generator().manual_seed(3))
    assert torch.equal(old, draw(rng=torch.Generator().manual_seed(3)))


def test_what_moved_is_found_at_its_old_place(digits: DataSet, quick_model: bhc.Compressor) -> None:
    with pytest.warns(DeprecationWarning, match=r"bhc\.pretraining\.pretrain "):
        assert bhc.training.pretrain is bhc.pretrain
    with pytest.warns(DeprecationWarning, match="recipe="), pytest.raises(bhc.BhcError, match="batch"):
        bhc.pretrain("lenet-300-100", digits, plan=bhc.Pretraining(batch=100_000))
    with pytest.warns(DeprecationWarning, match=r"Split\.inputs"):
        assert digits.train.images is digits.train.inputs
    with pytest.warns(DeprecationWarning, match="inputs="):
        assert len(bhc.data.Split(images=digits.test.inputs, labels=digits.test.labels)) == len(digits.test)
    with pytest.warns(DeprecationWarning, match="configure_process"):
        assert bhc.training.settle is bhc.training.configure_process
    with pytest.warns(DeprecationWarning, match="usual_recipe"):
        assert bhc.training.default_plan("vgg") == usual_recipe("vgg")
    with pytest.raises(TypeError, match="quantisation"):
        quick_model.compress(classes=[3, 4], quantisation=bhc.Float32(), precision=bhc.Float32())
    with pytest.raises(AttributeError, match="nothing"):
        bhc.training.nothing  # noqa: B018
