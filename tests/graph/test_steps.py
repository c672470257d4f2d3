import pytest
import torch
from torch.nn import functional as F

from bhc.layers import Add, Affine, Concat, GlobalMean, Multiply, PadChannels, Select, Subsample

from .nets import seeded

PLACES = [(), (5,), (5, 4), (3, 5, 4)]


def test_select_keeps_the_listed_features_in_order() -> None:
    x, select = torch.arange(12.0).reshape(2, 6), Select(torch.tensor([5, 0, 2], dtype=torch.int32))
    assert torch.equal(select(x), x[:, [5, 0, 2]])
    assert select.state_dict()["index"].dtype == torch.int64


def test_values_are_added_and_multiplied() -> None:
    left, right = seeded(2, 3, 4, 4), seeded(2, 3, 4, 4).flip(0)
    assert torch.equal(Add()(left, right), left + right)
    assert torch.equal(Multiply()(left, right), left * right)
    gate = seeded(2, 3, 1, 1)
    assert torch.equal(Multiply()(left, gate), left * gate.expand_as(left))


@pytest.mark.parametrize("places", PLACES)
def test_values_stand_beside_each_other_along_the_channels(places: tuple[int, ...]) -> None:
    parts = [seeded(2, channels, *places) for channels in (1, 3, 2)]
    assert torch.equal(Concat()(*parts), torch.cat(parts, 1))


@pytest.mark.parametrize("places", PLACES)
def test_channels_of_zeros_are_put_before_and_after(places: tuple[int, ...]) -> None:
    x = seeded(2, 3, *places)
    padded = PadChannels(2, 1)(x)
    assert padded.shape == (2, 6, *places)
    assert torch.equal(padded[:, 2:5], x)
    assert not padded[:, [0, 1, 5]].any()


@pytest.mark.parametrize("places", PLACES[1:])
def test_every_second_place_is_kept(places: tuple[int, ...]) -> None:
    x = seeded(2, 3, *places)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(places) - 1]
    assert torch.equal(Subsample(2)(x), pool(x, 1, 2))


@pytest.mark.parametrize("places", PLACES[1:])
def test_the_mean_of_a_channel_is_over_all_of_its_places(places: tuple[int, ...]) -> None:
    x = seeded(2, 3, *places)
    torch.testing.assert_close(GlobalMean(False)(x), x.flatten(2).mean(2))
    assert GlobalMean(True)(x).shape == (2, 3, *[1] * len(places))


@pytest.mark.parametrize("places", PLACES)
def test_two_numbers_a_channel(places: tuple[int, ...]) -> None:
    affine, x = Affine(3), seeded(2, 3, *places)
    assert torch.equal(affine(x), x)
    affine.weight.data, affine.bias.data = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, -1.0, 1.0])
    for channel in range(3):
        assert torch.equal(affine(x)[:, channel], x[:, channel] * affine.weight[channel] + affine.bias[channel])
