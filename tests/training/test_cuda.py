"""The same training on a GPU; runs only where there is one."""

from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.training import Silent
from tests.training.test_loop import RECIPE, StopAt, Stopped, assert_same_bits, fit

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("generator", [bhc.ScalesOnly(), bhc.LowRank(rank=2), bhc.Full()], ids=lambda g: g.kind)
def test_training_on_a_gpu_learns_what_a_cpu_learns(
    digits: DataSet, pretrained: torch.nn.Module, generator: bhc.ScalesOnly
) -> None:
    recipe = (bhc.Learn(steps=300, kl_weight=0.1, contexts=8, examples=8), bhc.Consolidate(steps=100))
    errors = []
    for device in ("cpu", "cuda"):
        model = bhc.wrap(pretrained, bhc.ClassSubsets(10), example_input=digits.train.images[:1], generator=generator)
        bhc.fit(model, digits.train, digits.validation, recipe=recipe, device=device, progress=Silent())
        assert model.network.device.type == "cpu"
        errors.append(model.model.training["curves"]["after"][-1]["error"])
        assert model.compress(classes=[3, 4]).predict(digits.test.images).labels.shape == (len(digits.test),)
    assert abs(errors[0] - errors[1]) < 3


def test_a_deterministic_run_on_a_gpu_resumes_to_the_same_bits(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path
) -> None:
    gpu = {"device": "cuda", "deterministic": True, "checkpoint_every": 7, "recipe": RECIPE}
    whole = fit(digits, pretrained, run=tmp_path / "whole", **gpu)
    with pytest.raises(Stopped):
        fit(digits, pretrained, run=tmp_path / "cut", **gpu, progress=StopAt(40, "learning"))
    resumed = fit(digits, pretrained, run=tmp_path / "cut", **gpu, resume=True)
    assert_same_bits(whole, resumed)
