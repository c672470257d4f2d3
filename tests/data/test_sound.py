"""Recordings: read, fitted, altered, and spoken digits from every public form; more voices by other speeds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bhc.data import DataSet, ShiftAndNoise, Split, read_recordings, recordings_in, sound_and_text, with_voices
from bhc.data.catalogue import RECIPES, load_recipe
from bhc.data.sound_and_text import (
    LENGTH,
    SPOKEN_DIGITS,
    RecordingsArchive,
    RecordingsArrays,
    RecordingsFolder,
    SpokenDigitsLayout,
    Title,
    at_speed,
    fit_length,
    format_recordings,
    parse_recordings,
    parse_wav,
)
from bhc.data.sources import FolderSource, Plain
from bhc.errors import BhcError

from .tiny import packed_file
from .tiny_cifar import tar
from .tiny_signals import arrays_of, fill_wavs, recordings, tone, wav_of

HUM = tone(3, 0, 0)
EVERY = recordings()
CONTENT = format_recordings(EVERY)
FILE = packed_file(SPOKEN_DIGITS, CONTENT, Plain())
RECIPE = replace(RECIPES["fsdd"], files=(FILE,), sources=())


def test_a_file_of_samples_reads_back():
    np.testing.assert_array_equal(parse_wav(wav_of(HUM), where="hum.wav"), HUM)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (wav_of(HUM, rate=16_000), "16,000 samples a second"),
        (wav_of(HUM, channels=2), "2 channels"),
        (wav_of(HUM, width=1), "8 bits"),
        (wav_of(HUM[:0]), "empty"),
        (wav_of(np.zeros(50)), "silent: .* 0"),
        (wav_of(np.full(50, 7)), "silent: .* 7"),
        (b"RIFF nothing", "not a .wav file"),
        (b"", "not a .wav file"),
        (wav_of(HUM)[:30], "not a .wav file"),
    ],
)
def test_what_cannot_be_heard_is_refused_with_what_to_do(content, problem):
    with pytest.raises(BhcError, match=f"hum.wav .*{problem}") as caught:
        parse_wav(content, where="hum.wav")
    assert caught.value.hint


def test_short_recordings_stand_in_zeros_and_of_long_ones_the_loudest_stretch_is_kept():
    assert fit_length(np.array([1, 2, 3], dtype=np.int16), 6).tolist() == [0, 1, 2, 3, 0, 0]
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
    with pytest.raises(BhcError, match="wav files"):
        recordings_in(tmp_path)
    with pytest.raises(BhcError, match="no recordings"):
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
    with pytest.raises(BhcError, match="sounds"):
        ShiftAndNoise(**options)


def test_recordings_are_one_content_in_the_order_of_their_names():
    again = parse_recordings(CONTENT, where="here")
    assert list(again) == sorted(EVERY)
    assert all(np.array_equal(again[name], EVERY[name]) for name in EVERY)
    with pytest.raises(BhcError, match="list of recordings"):
        parse_recordings(CONTENT[:-1], where="here")


def test_a_name_tells_digit_speaker_and_index():
    assert Title.of("7_theo_12") == Title(7, "theo", 12)
    for name in ("7_theo", "x_theo_1", "7_theo_1_2", "7_theo_100", "../7_theo_1"):
        with pytest.raises(BhcError, match=name):
            Title.of(name)


@pytest.mark.parametrize("inside", ["", "recordings"])
def test_a_folder_of_wav_files(tmp_path, inside):
    fill_wavs(tmp_path / "fsdd" / inside)
    assert RecordingsFolder(tmp_path / "fsdd").fetch((FILE,)) == {SPOKEN_DIGITS: CONTENT}


def test_one_file_of_arrays(tmp_path):
    np.savez_compressed(tmp_path / "fsdd.npz", **arrays_of(EVERY))
    assert RecordingsArrays(tmp_path).fetch((FILE,)) == {SPOKEN_DIGITS: CONTENT}


def test_an_archive_of_a_release(tmp_path, monkeypatch):
    members = {f"it/recordings/{name}.wav": wav_of(samples) for name, samples in EVERY.items()}
    (tmp_path / "v1.tar.gz").write_bytes(tar(members | {"it/recordings/notes.txt": b"hello"}))
    source = RecordingsArchive(FolderSource(tmp_path), "v1.tar.gz", folder="it/recordings")
    assert source.fetch((FILE,)) == {SPOKEN_DIGITS: CONTENT}
    monkeypatch.setattr(sound_and_text, "_LARGEST_UNPACKED", 1 << 20)
    (tmp_path / "v1.tar.gz").write_bytes(tar(members | {"elsewhere/zeros": bytes(2 << 20)}))
    with pytest.raises(BhcError, match="decompresses"):
        source.fetch(())
    (tmp_path / "v1.tar.gz").write_bytes(b"no archive")
    with pytest.raises(BhcError, match="damaged"):
        source.fetch((FILE,))


def test_altered_recordings_are_refused(tmp_path):
    name = next(iter(EVERY))
    fill_wavs(tmp_path / "fsdd", EVERY | {name: -EVERY[name]})
    with pytest.raises(BhcError, match="content was altered"):
        RecordingsFolder(tmp_path / "fsdd").fetch((FILE,))


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays | {"length": arrays["length"][:-1]},
        lambda arrays: {key: value for key, value in arrays.items() if key != "speaker"},
        lambda arrays: arrays | {"speaker": np.array([object()] * len(arrays["length"]))},
    ],
)
def test_damaged_arrays_are_refused(tmp_path, change):
    np.savez(tmp_path / "fsdd.npz", **change(arrays_of(EVERY)))
    with pytest.raises(BhcError, match=r"fsdd.npz is (damaged|not an array file)"):
        RecordingsArrays(tmp_path).fetch((FILE,))


def test_splits_have_every_speaker_and_digit_equally_often(tmp_path):
    fill_wavs(tmp_path / "fsdd")
    data = load_recipe(RECIPE, data_dir=tmp_path)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [200, 100, 100]
    assert data.source_names == ("ann", "bob")
    assert data.image_shape == (1, 6_400)
    assert data.full_scale == 32_768
    for split, each in ((data.train, 10), (data.validation, 5), (data.test, 5)):
        cells = split.labels * 2 + split.sources
        assert torch.equal(torch.bincount(cells), torch.full((20,), each))


def test_a_split_without_recordings():
    few = format_recordings({name: samples for name, samples in EVERY.items() if name.endswith("_0")})
    with pytest.raises(BhcError, match="a split"):
        SpokenDigitsLayout(test=5, validation=5).splits({SPOKEN_DIGITS: few})


def test_a_silent_recording_is_refused_by_name():
    silent = format_recordings({"3_ann_0": np.zeros(9, dtype=np.int16)})
    with pytest.raises(BhcError, match="3_ann_0"):
        parse_recordings(silent, where="here")


SAMPLES = 801


def hum(hertz):
    """A tone around the middle of a recording of a tenth of a second."""
    times = (torch.arange(SAMPLES) - SAMPLES // 2) / 8_000
    return (10_000 * torch.cos(2 * torch.pi * hertz * times)).round().to(torch.int16).expand(1, 1, -1)


def spoken(*, sources=("ann", "bob")):
    images = torch.cat([hum(hertz) for hertz in (100, 200, 300, 400)])
    labels, who = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1])
    split = Split(images, labels, who if sources else None)
    return DataSet("hums", ("low", "high"), split, split, split, source_names=sources)


@pytest.mark.parametrize("speed", [0.8, 1.25, 1.5])
def test_a_faster_voice_is_higher(speed):
    given, expected = at_speed(hum(200), speed), hum(200 * speed)
    inside = slice(SAMPLES // 2 - 200, SAMPLES // 2 + 200)
    assert given.dtype == torch.int16
    assert given.shape == expected.shape
    # A straight line between samples is a little lower than an arc.
    assert (given[..., inside].int() - expected[..., inside].int()).abs().max() < 100


def test_silence_moves_in_from_both_sides():
    fast = at_speed(hum(200), 2.0)[0, 0]
    quarter = SAMPLES // 4
    assert not fast[: quarter - 2].any()
    assert not fast[-quarter + 2 :].any()
    assert fast[quarter + 2 : -quarter - 2].any()


def test_every_speed_is_a_source_of_its_own():
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
def test_speeds_that_make_no_voice_are_refused(speeds):
    with pytest.raises(BhcError, match="speeds") as caught:
        with_voices(spoken(), speeds)
    assert "around 1" in caught.value.hint


def test_without_speakers_there_are_no_voices():
    with pytest.raises(BhcError, match="hums"):
        with_voices(spoken(sources=()), [0.8])
