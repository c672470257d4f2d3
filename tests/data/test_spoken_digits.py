import hashlib
import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from bhc.data.catalogue import RECIPES, load_recipe
from bhc.data.sound_and_text import (
    SPOKEN_DIGITS,
    RecordingsArchive,
    RecordingsArrays,
    RecordingsFolder,
    SpokenDigitsLayout,
    Title,
    format_recordings,
    parse_recordings,
)
from bhc.data.sources import FolderSource, PackedFile, Plain
from bhc.errors import BhcError

from .tiny_signals import arrays_of, fill_wavs, recordings, wav_of

EVERY = recordings()
CONTENT = format_recordings(EVERY)
FILE = PackedFile(SPOKEN_DIGITS, len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), Plain())
RECIPE = replace(RECIPES["fsdd"], files=(FILE,), sources=())


def archive_of(folder, members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def test_recordings_are_one_content_in_the_order_of_their_names():
    again = parse_recordings(CONTENT, where="here")
    assert list(again) == sorted(EVERY)
    assert all(np.array_equal(again[name], EVERY[name]) for name in EVERY)
    with pytest.raises(BhcError, match="here is not a list of recordings"):
        parse_recordings(CONTENT[:-1], where="here")


def test_a_name_tells_digit_speaker_and_index():
    assert Title.of("7_theo_12") == Title(7, "theo", 12)
    for name in ("7_theo", "x_theo_1", "7_theo_1_2", "7_theo_100", "../7_theo_1"):
        with pytest.raises(BhcError, match="cannot be a recording of a digit"):
            Title.of(name)


@pytest.mark.parametrize("inside", ["", "recordings"])
def test_a_folder_of_wav_files(tmp_path, inside):
    fill_wavs(tmp_path / "fsdd" / inside)
    assert RecordingsFolder(tmp_path / "fsdd").fetch((FILE,)) == {SPOKEN_DIGITS: CONTENT}


def test_one_file_of_arrays(tmp_path):
    np.savez_compressed(tmp_path / "fsdd.npz", **arrays_of(EVERY))
    assert RecordingsArrays(tmp_path).fetch((FILE,)) == {SPOKEN_DIGITS: CONTENT}


def test_an_archive_of_a_release(tmp_path):
    members = {f"{name}.wav": wav_of(samples) for name, samples in EVERY.items()} | {"notes.txt": b"hello"}
    (tmp_path / "v1.tar.gz").write_bytes(archive_of("it/recordings", members))
    source = RecordingsArchive(FolderSource(tmp_path), "v1.tar.gz", folder="it/recordings")
    assert source.fetch((FILE,)) == {SPOKEN_DIGITS: CONTENT}
    (tmp_path / "v1.tar.gz").write_bytes(b"no archive")
    with pytest.raises(BhcError, match=r"cannot be read as a \.tar\.gz archive"):
        source.fetch((FILE,))


def test_altered_recordings_are_refused(tmp_path):
    name = next(iter(EVERY))
    fill_wavs(tmp_path / "fsdd", EVERY | {name: -EVERY[name]})
    with pytest.raises(BhcError, match="its content was altered"):
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
    with pytest.raises(BhcError, match="lacks the recordings of a split"):
        SpokenDigitsLayout(test=5, validation=5).splits({SPOKEN_DIGITS: few})


def test_a_silent_recording_is_refused_by_name():
    silent = format_recordings({"3_ann_0": np.zeros(9, dtype=np.int16)})
    with pytest.raises(BhcError, match="3_ann_0 in here is silent"):
        parse_recordings(silent, where="here")
