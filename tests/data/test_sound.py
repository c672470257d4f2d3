import numpy as np
import pytest
import torch

from bhc.data import ShiftAndNoise, read_recordings, recordings_in
from bhc.data.sound_and_text import LENGTH, fit_length, parse_wav
from bhc.errors import BhcError

from .tiny_signals import fill_wavs, tone, wav_of

HUM = tone(3, 0, 0)


def test_a_file_of_samples_reads_back():
    np.testing.assert_array_equal(parse_wav(wav_of(HUM), where="hum.wav"), HUM)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (wav_of(HUM, rate=16_000), "hum.wav has 16,000 samples a second instead of 8,000"),
        (wav_of(HUM, channels=2), "hum.wav has 2 channels"),
        (wav_of(HUM, width=1), "hum.wav has 8 bits a sample instead of 16"),
        (wav_of(HUM[:0]), "hum.wav is empty"),
        (wav_of(np.zeros(50)), "hum.wav is silent: all of its samples are 0"),
        (wav_of(np.full(50, 7)), "hum.wav is silent: all of its samples are 7"),
        (b"RIFF nothing", "hum.wav is not a .wav file"),
        (b"", "hum.wav is not a .wav file"),
        (wav_of(HUM)[:30], "hum.wav is not a .wav file"),
    ],
)
def test_what_cannot_be_heard_is_refused_with_what_to_do(content, problem):
    with pytest.raises(BhcError, match=problem) as caught:
        parse_wav(content, where="hum.wav")
    assert caught.value.hint


def test_short_recordings_stand_in_the_middle_of_zeros():
    assert fit_length(np.array([1, 2, 3], dtype=np.int16), 6).tolist() == [0, 1, 2, 3, 0, 0]


def test_of_long_recordings_the_loudest_stretch_is_kept():
    assert fit_length(np.array([1, 1, 9, -9, 1, 1], dtype=np.int16), 3).tolist() == [1, 9, -9]


def test_a_folder_of_recordings_is_read_by_its_names(tmp_path):
    fill_wavs(tmp_path / "voice", {"b": HUM, "a": -HUM})
    sample = recordings_in(tmp_path / "voice")
    assert sample.shape == (2, 1, LENGTH)
    assert sample.dtype == torch.int16
    start = (LENGTH - len(HUM)) // 2
    np.testing.assert_array_equal(sample[0, 0, start : start + len(HUM)].numpy(), -HUM)
    assert torch.equal(read_recordings([tmp_path / "voice/a.wav"]), sample[:1])


def test_nothing_to_read(tmp_path):
    with pytest.raises(BhcError, match=r"has no \.wav files"):
        recordings_in(tmp_path)
    with pytest.raises(BhcError, match="there are no recordings"):
        read_recordings([])


def test_sounds_move_and_change_their_loudness_and_nothing_else():
    x = torch.zeros(50, 1, 400, dtype=torch.int16)
    x[:, :, 200] = 1_000
    moved = ShiftAndNoise(shift=30, gain=2.0, noise=0.0)(x, rng=torch.Generator().manual_seed(0))
    assert moved.dtype == torch.int16
    peaks, places = moved[:, 0].max(1)
    assert (moved != 0).sum() == 50
    assert 170 <= places.min() < 185 < 215 < places.max() <= 230
    assert 500 <= peaks.min() < 700 < 1_500 < peaks.max() <= 2_000


def test_noise_is_a_part_of_the_sound():
    x = (1_000 * torch.sin(torch.arange(4_000) / 7)).to(torch.int16).expand(40, 1, -1)
    noisy = ShiftAndNoise(shift=0, gain=1.0, noise=0.1)(x, rng=torch.Generator().manual_seed(0))
    parts = (noisy.float() - x).std(2) / x.float().std(2)
    assert parts.max() < 0.105
    assert parts.min() < 0.02 < 0.08 < parts.max()


@pytest.mark.parametrize("options", [{"shift": -1}, {"gain": 0.5}, {"noise": -0.1}])
def test_sounds_cannot_be_altered_so(options):
    with pytest.raises(BhcError, match="sounds shifted by"):
        ShiftAndNoise(**options)
