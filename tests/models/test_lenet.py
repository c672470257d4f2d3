import pytest
import torch

from bhc import models
from bhc.errors import BhcError

LENETS = ("lenet-300-100", "lenet-5-caffe")


def count(net):
    return sum(parameter.numel() for name, parameter in net.named_parameters() if name.endswith("weight"))


def test_weights_of_the_literature():
    assert count(models.lenet_300_100()) == 266_200
    assert count(models.lenet_5_caffe()) == 430_500


@pytest.mark.parametrize("name", LENETS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 16, 19)])
def test_models_take_images_of_any_size(name, shape):
    net = models.build(name, image_shape=shape, num_classes=7)
    assert net(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", LENETS)
def test_models_take_stored_pixels(name):
    net = models.build(name, image_shape=(1, 28, 28), num_classes=10)
    pixels = torch.randint(0, 256, (2, 1, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert torch.equal(net(pixels), net(pixels.float()))


@pytest.mark.parametrize("sides", [(15, 28), (28, 15), (8, 8)])
def test_images_too_small_for_two_convolutions_are_refused(sides):
    with pytest.raises(BhcError, match=f"at least 16 x 16 pixels, these have {sides[0]} x {sides[1]}") as caught:
        models.lenet_5_caffe(image_shape=(1, *sides))
    assert "lenet-300-100" in caught.value.hint
