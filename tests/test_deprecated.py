"""Old names of arguments work for one version, and warn."""

import pytest
import torch
from torch import nn

import bhc
from bhc.data import DataSet


def test_old_names_work_and_warn(digits: DataSet, pretrained: nn.Module, quick_model: bhc.Compressor) -> None:
    with pytest.warns(DeprecationWarning, match="weight_generator="):
        model = bhc.wrap(
            pretrained, bhc.ClassSubsets(10), example_input=digits.train.inputs[:1], generator=bhc.LowRank(2)
        )
    assert model.network.design.weight_generator == bhc.LowRank(2)
    with pytest.warns(DeprecationWarning, match="quantisation="):
        small = quick_model.compress(classes=[3, 4], precision=bhc.Float32())
    assert set(small.report.bits) == {32}
    with pytest.warns(DeprecationWarning, match="quantisation="):
        (same,) = quick_model.compress_many([{"classes": [3, 4], "precision": bhc.Float32()}])
    assert same.to_bytes() == small.to_bytes()
    with pytest.warns(DeprecationWarning, match="autocast="), pytest.raises(bhc.BhcError, match="no steps"):
        bhc.fit(model, digits.train, digits.validation, recipe=(), precision=torch.bfloat16)


def test_what_moved_is_found_at_its_old_place(digits: DataSet) -> None:
    with pytest.warns(DeprecationWarning, match=r"bhc\.pretraining\.pretrain "):
        assert bhc.training.pretrain is bhc.pretrain
    with pytest.warns(DeprecationWarning, match="recipe="), pytest.raises(bhc.BhcError, match="batch"):
        bhc.pretrain("lenet-300-100", digits, plan=bhc.Pretraining(batch=100_000))
    with pytest.warns(DeprecationWarning, match=r"Split\.inputs"):
        assert digits.train.images is digits.train.inputs
    with pytest.raises(AttributeError, match="nothing"):
        bhc.training.nothing  # noqa: B018
