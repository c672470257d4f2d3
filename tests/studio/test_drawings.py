"""What an input is drawn as: the rules, and what is told of one example."""

import base64
import io
import json

import matplotlib.image
import numpy as np
import pytest
import torch
from torch import Tensor

from bhc.studio.drawings import Image, Lines, Row, Words, renderer_of
from tests.studio.inputs import VOCABULARY, texts

RULES = [
    ((1, 28, 28), torch.uint8, "image"),
    ((3, 32, 48), torch.float32, "image"),
    ((1, 16, 16), torch.bfloat16, "image"),
    ((3, 16, 16), torch.bool, "image"),
    ((32, 48, 3), torch.uint8, "image"),
    ((28, 28, 1), torch.float32, "image"),
    ((28, 28), torch.float32, "image"),
    ((8, 8), torch.uint8, "image"),
    ((40, 101), torch.float32, "image"),
    ((1, 16000), torch.int16, "waveform"),
    ((1, 100), torch.int16, "waveform"),
    ((2, 4000), torch.float32, "waveform"),
    ((4000, 1), torch.float32, "waveform"),
    ((16000,), torch.float32, "waveform"),
    ((3, 32), torch.float32, "series"),
    ((6, 128), torch.float64, "series"),
    ((128, 9), torch.float32, "series"),
    ((6, 1, 128), torch.float32, "series"),
    ((6, 128, 1), torch.float32, "series"),
    ((12, 29), torch.float32, "series"),
    ((1, 22, 1000), torch.float32, "series"),
    ((64, 512), torch.float32, "series"),
    ((2, 100), torch.float32, "series"),
    ((5, 5), torch.int64, "series"),
    ((30,), torch.float32, "row"),
    ((30,), torch.int64, "row"),
    ((), torch.float32, "row"),
    ((4, 7, 9, 9), torch.float32, "none"),
    ((13, 64, 64), torch.float32, "none"),
    ((2, 64, 64), torch.float32, "none"),
    ((30,), torch.complex64, "none"),
    ((3, 0), torch.float32, "none"),
]


@pytest.mark.parametrize(("shape", "dtype", "kind"), RULES, ids=str)
def test_a_kind_follows_from_shape_and_dtype(shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> None:
    sample = (100 * torch.rand(5, *shape)).to(dtype)
    renderer = renderer_of(sample)
    assert renderer.kind == kind
    for drawing in map(renderer.draw, range(5)):
        assert drawing.kind == kind
    assert renderer_of(sample[:0]).kind == kind
    assert (str(tuple(shape)) in (renderer.reason or "")) == (kind == "none")


def test_numbers_are_words_where_somebody_knows_them_as_such() -> None:
    known, unknown = renderer_of(texts(), known=VOCABULARY), renderer_of(texts(), words=True)
    assert known.draw(1) == Words(["what", "is", "this", "?"], 0)
    assert unknown.draw(1) == Words(["3", "5", "9", "10", "0", "0", "0"], 0)
    assert renderer_of(texts().float(), words=True).kind == "row"
    long = renderer_of(torch.arange(300)[None], words=True).draw(0)
    assert isinstance(long, Words)
    assert (len(long.words), long.left_out) == (64, 236)
    foreign = renderer_of(torch.tensor([[-1, 99, 2]]), known=VOCABULARY)
    assert foreign.draw(0) == Words(["<unknown>", "<unknown>", "who"], 0)


def decoded(drawing: object) -> np.ndarray:
    assert isinstance(drawing, Image)
    read = matplotlib.image.imread(io.BytesIO(base64.b64decode(drawing.png)), format="png")
    return (255 * read).round()


@pytest.mark.parametrize("layout", ["first", "last", "none"])
def test_floats_are_stretched_to_the_sample(layout: str) -> None:
    """However they were normalised, the picture is that of the pixels; a few outliers change nothing."""
    grey = torch.arange(256.0).reshape(1, 16, 16).expand(40, 16, 16)
    images = torch.stack([grey, grey / 7 - 3, -grey], 1) if layout != "none" else (grey[:, None] - 100) / 9
    images[7, :, 0, 0] = 1e6
    sample = {"first": images, "last": images.movedim(1, 3), "none": images[:, 0]}[layout]
    drawn = decoded(renderer_of(sample).draw(3)).reshape(16, 16, -1)
    expected = grey[0].numpy()[..., None] * np.ones(drawn.shape[2])
    if layout != "none":
        expected[..., 2] = 255 - expected[..., 2]
    assert np.abs(drawn - expected).max() < 4


def test_pixels_are_as_they_are_and_large_pictures_are_thinned() -> None:
    pixels = torch.randint(0, 17, (5, 3, 8, 9), dtype=torch.uint8)
    pixels[0, 0, 0, 0] = 16
    drawn = decoded(renderer_of(pixels).draw(2))
    assert (drawn == (pixels[2].float() * 255 / 16).round().permute(1, 2, 0).numpy()).all()
    assert decoded(renderer_of(torch.rand(2, 1, 600, 300)).draw(0)).shape == (200, 100)


def test_lines_have_few_points_and_all_peaks() -> None:
    sample = torch.randn(10, 20, 3000)
    sample[4, 2, 1234] = 9.5
    drawing = renderer_of(sample.transpose(1, 2)).draw(4)
    assert isinstance(drawing, Lines)
    assert (drawing.steps, drawing.left_out, len(drawing.lines)) == (3000, 4, 16)
    for line, channel in zip(drawing.lines, sample[4], strict=False):
        assert len(line) == 240
        assert max(filter(None, line)) == pytest.approx(float(channel.max()), rel=1e-4)
        assert min(filter(None, line)) == pytest.approx(float(channel.min()), rel=1e-4)
    assert 9.5 in drawing.lines[2]
    assert all(-4 < low < -2 < 2 < high < 4 for low, high in drawing.ranges)  # of the sample, but for its ends
    short = renderer_of(sample[:, :6, :200]).draw(4)
    assert isinstance(short, Lines)
    torch.testing.assert_close(torch.tensor(short.lines), sample[4, :6, :200], rtol=1e-4, atol=1e-4)


def test_sounds_are_drawn_around_zero() -> None:
    sample = torch.arange(-1000, 9000, dtype=torch.int16).repeat(3, 1)[:, None]
    drawing = renderer_of(sample).draw(0)
    assert isinstance(drawing, Lines)
    ((low, high),) = drawing.ranges
    assert -low == high == pytest.approx(8950, abs=10)


def test_rows_have_names_values_and_sizes() -> None:
    sample = torch.stack([torch.arange(101.0), torch.full((101,), 7.0), -torch.arange(101.0)], 1)
    drawing = renderer_of(sample, names=("age", "constant", "debt")).draw(25)
    assert isinstance(drawing, Row)
    assert drawing.columns == ["age", "constant", "debt"]
    assert drawing.values == [25.0, 7.0, -25.0]
    assert drawing.sizes == pytest.approx([0.25, 0.0, 0.75], abs=0.02)
    many = renderer_of(torch.arange(200).repeat(2, 1)).draw(0)
    assert isinstance(many, Row)
    assert (many.columns[-1], many.values[-1], len(many.sizes), many.left_out) == ("63", 63, 64, 136)


@pytest.mark.parametrize("shape", [(3, 16, 16), (6, 128), (2, 2000), (12,)], ids=str)
@pytest.mark.parametrize(
    "spoil", [lambda x: x[:2].fill_(torch.nan), lambda x: x.fill_(torch.inf), lambda x: x.fill_(3.0)]
)
def test_what_is_not_finite_or_all_the_same_is_drawn_too(shape: tuple[int, ...], spoil: object) -> None:
    sample = torch.randn(6, *shape)
    spoil(sample)  # type: ignore[operator]
    drawing = renderer_of(sample).draw(0)
    text = json.dumps(vars(drawing), allow_nan=False)
    assert ("null" in text) == (drawing.kind != "image" and not bool(sample[0].isfinite().all()))


def test_the_scale_of_a_large_sample_is_that_of_a_part() -> None:
    wide: Tensor = torch.rand(300, 5000) * torch.linspace(1, 2, 300)[:, None]
    (low, high), *_ = renderer_of(wide.repeat(1, 2)[:, None]).ranges  # type: ignore[attr-defined]
    assert -low == high == pytest.approx(1.9, abs=0.1)
