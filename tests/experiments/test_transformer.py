"""The experiment on a small transformer: its page is that of its results, and what it trains is what it says."""

import json
from pathlib import Path

import pytest
import torch
from experiments import transformer

import bhc
from bhc.contexts import ConsecutivePairs

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_the_page_is_made_of_the_results() -> None:
    result = json.loads((RESULTS / "transformer.json").read_text())
    assert transformer.table(result["runs"], result["settings"]) == (RESULTS / "transformer.md").read_text()


@pytest.mark.parametrize("arm", transformer.ARMS)
def test_arms_differ_in_what_can_go_and_compute_the_same(arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, images = transformer.Transformer().eval(), torch.randint(0, 256, (40, 1, 28, 28), dtype=torch.uint8)
    monkeypatch.setattr(transformer, "ACTIVATIONS", 40)
    split = bhc.data.Split(images, torch.arange(40) % 10)
    space = bhc.ClassSubsets(10, ConsecutivePairs())
    model = bhc.wrap(net, space, example_input=images[:2], **transformer.options(arm, split))
    assert torch.allclose(model.network.base_model(images), net(images), atol=1e-4)
    units = model.network.units
    assert bool(units.heads) == (arm != transformer.ARMS[2])
    assert units.always[units.carried["patches"]].all() == (arm == transformer.ARMS[2])
