import pytest
import torch

from bhc.data import DataSet, Split, with_voices
from bhc.data.sound_and_text import at_speed
from bhc.errors import BhcError

SAMPLES = 801


def hum(hertz: float) -> torch.Tensor:
    """A tone around the middle of a recording of a tenth of a second."""
    times = (torch.arange(SAMPLES) - SAMPLES // 2) / 8_000
    return (10_000 * torch.cos(2 * torch.pi * hertz * times)).round().to(torch.int16).expand(1, 1, -1)


def spoken(*, sources: tuple[str, ...] = ("ann", "bob")) -> DataSet:
    images = torch.cat([hum(hertz) for hertz in (100, 200, 300, 400)])
    labels, who = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1])
    split = Split(images, labels, who if sources else None)
    return DataSet("hums", ("low", "high"), split, split, split, source_names=sources)


@pytest.mark.parametrize("speed", [0.8, 1.25, 1.5])
def test_a_faster_voice_is_higher(speed: float) -> None:
    given, expected = at_speed(hum(200), speed), hum(200 * speed)
    inside = slice(SAMPLES // 2 - 200, SAMPLES // 2 + 200)
    assert given.dtype == torch.int16
    assert given.shape == expected.shape
    # A straight line between samples is a little lower than an arc.
    assert (given[..., inside].int() - expected[..., inside].int()).abs().max() < 100


def test_silence_moves_in_from_both_sides() -> None:
    fast = at_speed(hum(200), 2.0)[0, 0]
    quarter = SAMPLES // 4
    assert not fast[: quarter - 2].any()
    assert not fast[-quarter + 2 :].any()
    assert fast[quarter + 2 : -quarter - 2].any()


def test_every_speed_is_a_source_of_its_own() -> None:
    plain = spoken()
    data = with_voices(plain, [0.8, 1.25])
    assert data.source_names == ("ann", "bob", "ann at 0.8", "bob at 0.8", "ann at 1.25", "bob at 1.25")
    assert data.train.sources is not None
    assert data.train.sources.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert data.train.labels.tolist() == [0, 1] * 6
    assert torch.equal(data.train.inputs[:4], plain.train.inputs)
    assert torch.equal(data.train.inputs[8:], at_speed(plain.train.inputs, 1.25))
    assert data.validation.sources is not None
    assert data.validation.sources.tolist() == data.train.sources.tolist()
    assert data.test is plain.test


@pytest.mark.parametrize("speeds", [[], [1.0], [0.0], [-1.0], [float("nan")], [0.8, float("inf")]])
def test_speeds_that_make_no_voice_are_refused(speeds: list[float]) -> None:
    with pytest.raises(BhcError, match="speeds of") as caught:
        with_voices(spoken(), speeds)
    assert "around 1" in str(caught.value.hint)


def test_without_speakers_there_are_no_voices() -> None:
    with pytest.raises(BhcError, match="hums does not say who speaks"):
        with_voices(spoken(sources=()), [0.8])
