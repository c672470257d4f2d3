import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from bhc.data import CropAndFlip, Shift
from bhc.errors import BhcError


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def distinct(count, *, channels=3, height=5, width=6):
    """The same image ``count`` times, no two of its pixels alike and none of them zero."""
    pixels = channels * height * width
    return torch.arange(1, pixels + 1, dtype=torch.uint8).view(1, channels, height, width).repeat(count, 1, 1, 1)


def possible(image, padding):
    """Every crop and its mirror image, by the place of the crop."""
    _, height, width = image.shape
    padded = F.pad(image, (padding,) * 4)
    crops = {
        (top, left): padded[:, top : top + height, left : left + width]
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
    }
    return {
        (place, mirrored): crop.flip(2) if mirrored else crop for place, crop in crops.items() for mirrored in (0, 1)
    }


def seen(given, choices):
    """Which of the choices the images are; each must be one of them."""
    return [next(key for key, choice in choices.items() if torch.equal(image, choice)) for image in given]


@pytest.mark.parametrize("padding", [0, 2])
def test_every_shift_occurs_equally_often_and_nothing_is_mirrored(padding):
    given = seen(Shift(padding)(distinct(2000), rng=rng()), possible(distinct(1)[0], padding))
    assert {mirrored for _, mirrored in given} == {0}
    counts = [given.count(choice) for choice in set(given)]
    assert len(counts) == (2 * padding + 1) ** 2
    assert min(counts) > 0.6 * 2000 / len(counts)


@pytest.mark.parametrize("padding", [0, 1])
def test_every_crop_and_mirror_image_occurs_equally_often_and_nothing_else(padding):
    choices = possible(distinct(1)[0], padding)
    given = seen(CropAndFlip(padding)(distinct(4000), rng=rng()), choices)
    counts = torch.tensor([given.count(choice) for choice in choices])
    assert counts.min() > 0.67 * 4000 / len(choices)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.int64])
def test_the_type_stays_and_the_draws_do_not_depend_on_it(dtype):
    expected = CropAndFlip()(distinct(20), rng=rng())
    given = CropAndFlip()(distinct(20).to(dtype), rng=rng())
    assert given.dtype == dtype
    assert torch.equal(given, expected.to(dtype))


def test_the_generator_decides_and_what_is_given_is_left_alone():
    images, source = distinct(50), rng(3)
    first, second = CropAndFlip()(images, rng=source), CropAndFlip()(images, rng=source)
    assert not torch.equal(first, second)
    assert torch.equal(first, CropAndFlip()(images, rng=rng(3)))
    before = torch.get_rng_state()
    CropAndFlip()(images, rng=source)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(images, distinct(50))  # as they were given


class Operations(TorchDispatchMode):
    """Notes the names of the operations that torch carries out inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("augment", [CropAndFlip(), Shift()], ids=str)
def test_no_value_is_waited_for(augment):
    """Reading a number, or counting what is not zero, would make a GPU finish all that it was given before."""
    with Operations() as operations:
        augment(distinct(7), rng=rng())
    assert "aten.gather.default" in operations.names
    assert not [name for name in operations.names if "scalar_dense" in name or "nonzero" in name]


def test_a_negative_padding_is_refused():
    with pytest.raises(BhcError, match="-1 pixels"):
        CropAndFlip(-1)
