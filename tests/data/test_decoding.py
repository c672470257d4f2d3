"""What image files become, and what is not decoded."""

import numpy as np
import pytest
import torch
from PIL import Image

from bhc.data import ImageFolder
from bhc.errors import BhcError

from .pictures import TRUNCATED, pixels, png_of, spoil, write


def test_an_item_is_the_image_normalised_by_channel_and_its_class(root):
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    item, target = ImageFolder(root, mean=mean, std=std)[-1]
    expected = np.asarray(Image.open(root / "cat" / "3.png")) / 255
    np.testing.assert_allclose(item.permute(1, 2, 0), (expected - mean) / std, rtol=1e-5, atol=1e-6)
    assert (item.dtype, item.is_contiguous(), target, type(target)) == (torch.float32, True, 2, int)


def test_one_number_for_all_channels(root):
    plain, shifted = ImageFolder(root)[0][0], ImageFolder(root, mean=0.5, std=[0.25])[0][0]
    assert (plain.min() >= 0, plain.max() <= 1) == (True, True)
    torch.testing.assert_close(shifted, (plain - 0.5) / 0.25)


def slow_twin(path, height, width):
    """As torchvision describes ``Resize`` and ``CenterCrop``."""
    image = Image.open(path).convert("RGB")
    scale = max(height / image.height, width / image.width)
    high, wide = int(image.height * scale + 1e-9), int(image.width * scale + 1e-9)
    image = image.resize((wide, high), Image.Resampling.BILINEAR)
    top, left = round((high - height) / 2.0), round((wide - width) / 2.0)
    return np.asarray(image.crop((left, top, left + width, top + height)))


@pytest.mark.parametrize("size", [16, 7, 1, (16, 8), (5, 30), (30, 41)])
@pytest.mark.parametrize("stored", [(30, 41), (41, 30), (16, 16), (9, 200), (3, 2)])
def test_an_image_is_resized_to_cover_the_size_and_cropped_in_the_middle(tmp_path, size, stored):
    path = write(tmp_path / "a" / "1.png", pixels(0, stored))
    height, width = (size, size) if isinstance(size, int) else size
    images = ImageFolder(tmp_path, size=size)
    found = (images[0][0].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    assert images.image_shape == (3, height, width)
    np.testing.assert_array_equal(found, slow_twin(path, height, width))


def test_an_image_that_changes_its_size_later_is_named(root):
    images = ImageFolder(root)
    write(root / "ant" / "0.png", pixels(0, (8, 9)))
    with pytest.raises(BhcError, match=r"ant.0\.png is 8 x 9 .* 8 x 8"):
        images[0]


def test_grey_images_keep_one_channel_if_all_are_grey(tmp_path):
    for number, mode in enumerate(("L", "1", "LA")):
        path = tmp_path / "a" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels(number, channels=1)).convert(mode).save(path)
    images = ImageFolder(tmp_path)
    assert images.image_shape == (1, 8, 8)
    assert [tuple(image.shape) for image, _ in images] == [(1, 8, 8)] * 3
    np.testing.assert_allclose(images[0][0][0] * 255, pixels(0, channels=1), atol=1e-4)
    assert set(images[1][0].unique().tolist()) == {0.0, 1.0}
    colours = ImageFolder(tmp_path, channels=3)[0][0]
    assert torch.equal(colours, images[0][0].expand(3, 8, 8))
    write(tmp_path / "a" / "9.png")
    assert ImageFolder(tmp_path).image_shape == (3, 8, 8)


def test_a_colour_among_images_taken_for_grey_is_named(tmp_path):
    write(tmp_path / "a" / "1.png", pixels(0, channels=1))
    images = ImageFolder(tmp_path, size=4)
    path = write(tmp_path / "a" / "1.png")
    with pytest.raises(BhcError, match=r"1\.png has colours") as caught:
        images[0]
    assert "channels=3" in caught.value.hint
    luma = np.asarray(Image.open(path).convert("L").resize((4, 4), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(ImageFolder(tmp_path, size=4, channels=1)[0][0][0] * 255, luma, atol=1e-4)


def test_sixteen_bits_are_not_cut_off(tmp_path):
    values = np.array([[0, 300], [40_000, 65_535]], dtype=np.uint16)
    write(tmp_path / "a" / "1.png", values)
    np.testing.assert_allclose(ImageFolder(tmp_path)[0][0][0], values / 65_535, rtol=1e-5)
    np.testing.assert_allclose(ImageFolder(tmp_path, channels=3)[0][0][2], values / 65_535, rtol=1e-5)


@pytest.mark.parametrize("kind", ["RGBA", "palette", "palette with transparency", "CMYK", "EXIF"])
def test_other_ways_to_store_colours(tmp_path, kind):
    path, image = tmp_path / "a" / "1.png", Image.fromarray(pixels(0))
    path.parent.mkdir()
    if kind == "RGBA":
        image.putalpha(Image.fromarray(pixels(1, channels=1)))
        image.save(path)
    elif kind.startswith("palette"):
        image = image.quantize(8)
        image.save(path, **({"transparency": bytes(range(8))} if "with" in kind else {}))
    elif kind == "CMYK":
        path = path.with_suffix(".jpg")
        image.convert("CMYK").save(path)
    else:
        path = path.with_suffix(".jpg")
        turned = Image.Exif()
        turned[0x0112] = 6  # the orientation, which is not applied
        image.save(path, exif=turned)
    stored = Image.open(path)
    stored = stored.convert("RGBA") if "transparency" in stored.info else stored
    np.testing.assert_allclose(
        ImageFolder(tmp_path)[0][0].permute(1, 2, 0) * 255, np.asarray(stored.convert("RGB")), atol=1e-4
    )


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_a_truncated_image_is_named_when_it_is_decoded(tmp_path, suffix):
    path = write(tmp_path / "a" / f"1{suffix}", pixels(0, (64, 64)))
    spoil(path, TRUNCATED)
    images = ImageFolder(tmp_path)
    with pytest.raises(BhcError, match=rf"1\{suffix} cannot be read: .*truncated"):
        images[0]


@pytest.mark.parametrize(
    ("width", "height", "why"),
    [(9_000, 8_000, "9,000 x 8,000 pixels"), (60_000, 60_000, "bomb"), (1 << 31, 1, "bomb"), (0, 5, "header")],
)
def test_a_bomb_is_not_decoded(root, width, height, why):
    (root / "ant" / "0.png").write_bytes(png_of(width, height))
    with pytest.raises(BhcError, match=rf"ant.0\.png cannot be read: .*{why}"):
        ImageFolder(root)
    images = ImageFolder(root, size=4, channels=3)
    with pytest.raises(BhcError, match=rf"ant.0\.png cannot be read: .*{why}"):
        images[0]
    assert len(ImageFolder(root, on_error="skip")) == 11


def test_a_thin_image_does_not_become_a_bomb(tmp_path):
    write(tmp_path / "a" / "1.png", np.zeros((1, 1 << 19), dtype=np.uint8))
    images = ImageFolder(tmp_path, size=1_000)
    with pytest.raises(BhcError, match=r"524,288,000 x 1,000 pixels"):
        images[0]
