"""A hundred classes, and any number of them in a context."""

import pytest
import torch
from torch import nn

import bhc
from bhc.layers import Normalise
from bhc.training import Silent

SHAPE = (1, 4, 4)


@pytest.fixture(scope="module")
def images() -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 100
    marks = torch.randint(0, 200, (100, *SHAPE), generator=rng)
    noise = torch.randint(0, 50, (400, *SHAPE), generator=rng)
    return (marks[labels] + noise).to(torch.uint8), labels


@pytest.fixture(scope="module")
def model(images: tuple[torch.Tensor, torch.Tensor]) -> bhc.Compressor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(Normalise(128.0, 64.0), nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 100))
    space = bhc.ClassSubsets(100, bhc.RandomSubsets(range(1, 101)))
    wrapped = bhc.wrap(net.eval(), space, example_input=images[0][:1].float())
    recipe = (
        bhc.Learn(steps=8, contexts=4, examples=8),
        bhc.Consolidate(steps=4, contexts=4, examples=8),
    )
    return bhc.fit(wrapped, images, images, recipe=recipe, progress=Silent())


@pytest.mark.parametrize("count", [1, 2, 57, 100])
def test_any_number_of_a_hundred_classes_may_be_asked_for(
    model: bhc.Compressor, images: tuple[torch.Tensor, torch.Tensor], count: int
) -> None:
    classes = tuple(range(100 - count, 100))
    small = model.compress(classes=classes)
    assert small.classes == classes
    assert small.module(images[0].float()).shape == (400, count)
    assert set(small.predict(images[0]).labels.tolist()) <= set(classes)
    assert small.report.validation_images == 4 * count  # contexts of all sizes are judged
