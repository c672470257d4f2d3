"""Networks for contexts in which some inputs are missing depend on none of those, in any form."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.contexts import ContextBatch, ListedFeatures
from bhc.data import DataSet
from bhc.emission import read
from bhc.formats import open_session
from bhc.layers import Normalise, is_weighted
from bhc.posterior import FreshNoise
from bhc.training import Silent

from ..formats.chains import TORCH_REMARKS
from ..hypernet.toys import perturb_

pytestmark = TORCH_REMARKS


class TwoReaders(nn.Module):
    """Both layers read the input."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.end = nn.Linear(12, 5), nn.Linear(12, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.end(F.relu(self.left(x)) + F.relu(self.right(x)))


def dense(*before: nn.Module) -> nn.Module:
    return nn.Sequential(*before, nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4))


def maps(*before: nn.Module) -> nn.Module:
    return nn.Sequential(
        *before, nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 4)
    )


CASES = {
    "values": (dense, (3, 2, 2), (3, 2, 2), [0, 3, 7]),
    "values after normalising": (lambda: dense(Normalise([9.0] * 3, [2.0] * 3)), (3, 2, 2), (3, 2, 2), [1, 11]),
    "channels of a dense network": (dense, (3, 2, 2), (3,), [2]),
    "two readers": (TwoReaders, (12,), (12,), [4, 5, 6]),
    "channels": (maps, (3, 4, 4), (3,), [0, 2]),
    "one channel after normalising": (lambda: maps(Normalise([9.0] * 3, [2.0] * 3)), (3, 4, 4), (3,), [1]),
}
EACH = pytest.mark.parametrize("name", CASES)


def build(name: str) -> tuple[bhc.Compressor, Tensor, Tensor, list[int]]:
    """A model that nobody trained, inputs, the same with other numbers at missing features, those that are there."""
    make, shape, features, there = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, x, other = make().eval(), torch.randn(6, *shape), 100 * torch.randn(6, *shape)
    space = bhc.FeatureSubsets(features)
    model = bhc.wrap(net, space, example_input=x[:1], initial=bhc.Initial())
    perturb_(model.network.hypernet, std=0.05)
    mask = space.resolve({"features": there}).features
    return model, x, x.where(space.presence.mask(mask[None], shape), other), there


def batch_of(model: bhc.Compressor, *requests: list[int]) -> ContextBatch:
    return ContextBatch.of([model.space.resolve({"features": there}) for there in requests], 4)


@EACH
@torch.no_grad()
def test_training_sees_nothing_of_missing_features(name: str) -> None:
    model, x, changed, there = build(name)
    batch = batch_of(model, there)
    for part in (None, torch.tensor(0.3)):
        first, second = (
            model.network.noisy(
                images, batch, noise=FreshNoise(torch.Generator().manual_seed(7)), dropped_fraction=part
            )[0]
            for images in (x, changed)
        )
        torch.testing.assert_close(first, second)


@EACH
@torch.no_grad()
def test_masked_networks_of_which_the_emitted_one_is_one_see_nothing_of_missing_features(name: str) -> None:
    model, x, changed, there = build(name)
    for threshold in (-5.0, -3.0, 0.0, 5.0):
        limit = torch.full((1, 1), threshold)
        first, second = (
            model.network.masked(images, batch_of(model, there), threshold=limit) for images in (x, changed)
        )
        torch.testing.assert_close(first, second)
        small = model.compress(features=there, threshold=threshold, quantisation=bhc.Float32())
        torch.testing.assert_close(small.module(x), first, rtol=1e-4, atol=1e-4)


@EACH
@torch.no_grad()
def test_each_context_of_a_batch_misses_its_own_features(name: str) -> None:
    model, x, changed, there = build(name)
    everything = list(range(model.space.num_features))
    batch = batch_of(model, there, everything)
    limit = torch.full((2, 1), 5.0)
    first, second = (
        model.network.masked(torch.cat([images, images]), batch, threshold=limit).chunk(2) for images in (x, changed)
    )
    torch.testing.assert_close(first[0], second[0])
    assert (first[1] - second[1]).abs().max() > 1e-2


@EACH
def test_the_first_layers_have_no_missing_inputs(name: str) -> None:
    model, _, _, there = build(name)
    small = model.compress(features=there, threshold=5.0)
    _, shape, features, _ = CASES[name]
    by_name = dict(small.module.named_modules())
    readers = [
        layer.name for layer in model.network.layers if hasattr(model.network.find_masks, f"features_{layer.name}")
    ]
    assert readers
    for reader in readers:
        layer = by_name[reader]
        assert is_weighted(layer)
        size = 1 if features == shape or isinstance(layer, nn.Conv2d) else 4  # values of a channel
        assert layer.weight.shape[1] == size * len(there)


@EACH
@torch.no_grad()
def test_the_emitted_network_in_every_form_sees_nothing_of_missing_features(name: str, tmp_path: Path) -> None:
    model, x, changed, there = build(name)
    small = model.compress(features=there, threshold=2.0)
    small.save(tmp_path / "small.bhc").to_onnx(tmp_path / "small.onnx")
    session = open_session((tmp_path / "small.onnx").read_bytes())
    packed = read(tmp_path / "small.bhc").module
    forms = {
        "module": small.module,
        "packed": packed,
        "onnx": lambda images: torch.from_numpy(session.run(["logits"], {"input": images.numpy()})[0]),
    }
    expected = small.module(x)
    assert expected.std(0).max() > 1e-3  # it does depend on what is there
    for form, answer in forms.items():
        torch.testing.assert_close(answer(x), answer(changed), msg=form)
        torch.testing.assert_close(answer(x), expected, rtol=1e-4, atol=1e-4, msg=form)


@EACH
@torch.no_grad()
def test_with_all_features_there_an_untrained_model_is_the_network_itself(name: str) -> None:
    make, shape, features, _ = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, x = make().eval(), torch.randn(6, *shape)
    model = bhc.wrap(net, bhc.FeatureSubsets(features), example_input=x[:1])
    small = model.compress(features=torch.ones(features, dtype=torch.bool), quantisation=bhc.Float32())
    torch.testing.assert_close(small.module(x), net(x), rtol=1e-4, atol=1e-4)


def test_the_error_before_is_that_of_the_full_network_with_zeros(digits: DataSet, pretrained: nn.Sequential) -> None:
    space = bhc.FeatureSubsets((1, 8, 8), ListedFeatures(((27,),)))
    model = bhc.wrap(pretrained, space, example_input=digits.train.inputs[:1])
    bhc.fit(model, digits.train, digits.validation, recipe=(bhc.Learn(steps=2),), progress=Silent())
    left = torch.zeros(1, 8, 8, dtype=torch.bool)
    left[..., :4] = True
    validation = model.model.validation
    zeroed = 100 * float((pretrained(validation.inputs * left).argmax(1) != validation.labels).float().mean())
    report = model.compress(features=left, threshold=1.0).report
    assert report.error_before == pytest.approx(zeroed)
    whole = model.compress(features=torch.ones(1, 8, 8, dtype=torch.bool), threshold=1.0).report
    assert whole.error_before < zeroed
    trained = model.compress(features=[27], threshold=1.0).report  # as training has it of what it was for
    assert model.model.training["original_error"] == pytest.approx(trained.error_before)
    assert trained.error_before > 50
