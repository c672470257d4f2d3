import pytest
import torch
from torch import nn

from bhc import models
from bhc.errors import BhcError
from bhc.models.networks import CIFAR10, IMAGENET


def weights(net):
    """Weights of linear and convolution layers; no biases, no batch norm."""
    return sum(module.weight.numel() for module in net.modules() if isinstance(module, nn.Linear | nn.Conv2d))


def test_weights_of_the_literature():
    assert weights(models.outline("lenet-300-100")) == 266_200
    assert weights(models.outline("lenet-5-caffe")) == 430_500
    assert weights(models.outline("vgg")) == 15_239_872
    assert sum(parameter.numel() for parameter in models.outline("resnet-20").parameters()) == 269_722
    assert [weights(models.outline(f"resnet-{depth}")) for depth in (20, 32, 44, 56)] == [
        268_336,
        461_872,
        655_408,
        848_944,
    ]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet-300-100", (3, 16, 19)),
        ("lenet-5-caffe", (3, 16, 19)),
        ("vgg", (1, 32, 32)),
        ("vgg", (3, 47, 64)),
        ("resnet-20", (1, 28, 28)),
        ("resnet-20", (3, 33, 17)),
    ],
)
def test_images_of_other_sizes_and_channels(name, shape):
    net = models.build(name, image_shape=shape, num_classes=7)
    assert net(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(("name", "smallest"), [("lenet-5-caffe", 16), ("vgg", 32), ("resnet-56", 8)])
def test_images_that_are_too_small_are_refused(name, smallest):
    for sides in ((smallest - 1, 40), (40, smallest - 1)):
        with pytest.raises(BhcError, match=f"{smallest} x {smallest} .* {sides[0]} x {sides[1]}") as caught:
            models.build(name, image_shape=(3, *sides), num_classes=10)
        assert "lenet-300-100" in caught.value.hint


@pytest.mark.parametrize("depth", [8, 20, 110])
def test_depths_that_are_six_times_something_and_two(depth):
    assert sum(isinstance(module, nn.Conv2d) for module in models.resnet(depth).modules()) == depth - 1


@pytest.mark.parametrize("depth", [-4, 0, 2, 18, 21])
def test_other_depths_are_refused(depth):
    with pytest.raises(BhcError, match=f"{depth} layers") as caught:
        models.resnet(depth)
    assert "6 n + 2" in caught.value.hint


def test_a_shortcut_thins_out_and_pads_on_both_sides():
    x = torch.arange(2 * 3 * 5 * 4.0).view(2, 3, 5, 4) + 1
    given = models.SubsampleAndPad(stride=2, before=1, after=2)(x)
    assert given.shape == (2, 6, 3, 2)
    assert torch.equal(given[:, 1:4], x[:, :, [0, 2, 4]][:, :, :, [0, 2]])
    assert not given[:, [0, 4, 5]].any()


def test_a_block_adds_its_input():
    net = models.resnet_20().eval()
    block = net.layer2[0]
    nn.init.zeros_(block.bn2.weight)
    x = torch.rand(2, 16, 8, 8)
    with torch.no_grad():
        assert torch.equal(block(x), block.shortcut(x))
        assert block(x).shape == (2, 32, 4, 4)
    assert isinstance(net.layer2[1].shortcut, nn.Identity)


def test_photographs_are_normalised_by_channel():
    x = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    for name, statistics in (("vgg", CIFAR10), ("resnet-20", IMAGENET)):
        given = models.build(name, image_shape=(3, 32, 32), num_classes=10).normalise(x)[0, :, 0, 0]
        expected = [(1 - mean) / std for mean, std in zip(statistics.mean, statistics.std, strict=True)]
        torch.testing.assert_close(given, torch.tensor(expected))


def test_other_images_are_normalised_by_the_average():
    normalise = models.build("vgg", image_shape=(1, 32, 32), num_classes=10, full_scale=10.0).normalise
    assert normalise.mean.shape == ()
    torch.testing.assert_close(float(normalise.mean), 10 * sum(CIFAR10.mean) / 3)
