"""The Free Spoken Digit Dataset: six people say ten digits fifty times each.

It is published as a folder of ``{digit}_{speaker}_{index}.wav`` files. Here the whole of it is one content, whichever
way it came: recordings by their names in the order of the alphabet, each as a name and its samples.
"""

import io
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bhc.data.packed import PackedFile
from bhc.data.sound import check_audible, parse_wav
from bhc.data.source import FileLocation, Unavailable
from bhc.errors import BhcError
from bhc.files import read_bytes

Recordings = dict[str, NDArray[np.int16]]

FOLDER = "recordings"
ARRAYS = "fsdd.npz"
_NAME = re.compile(r"([0-9])_([a-z]+)_([0-9]{1,2})")
_LARGEST_WAV, _LARGEST_ARCHIVE, _MOST = 1 << 20, 64 << 20, 3_000
_NAMES_ARE = "recordings are called {digit}_{speaker}_{index}.wav, such as 7_theo_12.wav"


@dataclass(frozen=True)
class Title:
    """What the name of a recording tells."""

    digit: int
    speaker: str
    index: int

    @classmethod
    def of(cls, name: str) -> "Title":
        parts = _NAME.fullmatch(name)
        if parts is None:
            raise BhcError(f"{name!r} cannot be a recording of a digit", hint=_NAMES_ARE)
        return cls(int(parts[1]), parts[2], int(parts[3]))


def format_recordings(recordings: Recordings) -> bytes:
    """All recordings as one content."""
    parts = []
    for name in sorted(recordings):
        samples = np.asarray(recordings[name], dtype="<i2")
        parts.append(struct.pack("<BI", len(name), len(samples)) + name.encode() + samples.tobytes())
    return b"".join(parts)


def parse_recordings(content: bytes, *, where: str) -> Recordings:
    """Read what ``format_recordings`` wrote."""
    recordings: Recordings = {}
    at, head = 0, struct.calcsize("<BI")
    try:
        while at < len(content):
            letters, samples = struct.unpack_from("<BI", content, at)
            at += head
            name = content[at : at + letters].decode()
            at += letters
            recordings[name] = np.frombuffer(content, "<i2", samples, at).astype(np.int16)
            at += 2 * samples
    except (struct.error, ValueError) as error:
        raise BhcError(f"{where} is not a list of recordings: {error}") from error
    for name, recording in recordings.items():
        check_audible(recording, where=f"{name} in {where}")
    return recordings


@dataclass(frozen=True)
class RecordingsFolder:
    """The ``.wav`` files in a folder, or in the folder ``recordings`` of it."""

    folder: Path

    @property
    def title(self) -> str:
        return f"folder {self.folder}"

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        for folder in (self.folder / FOLDER, self.folder):
            paths = sorted(folder.glob("*.wav")) if folder.is_dir() else []
            if paths:
                return _checked(dict(self._read(paths)), files, where=str(folder))
        raise Unavailable("it has no .wav files")

    def _read(self, paths: list[Path]) -> Iterator[tuple[str, NDArray[np.int16]]]:
        for path in paths:
            Title.of(path.stem)
            yield path.stem, parse_wav(read_bytes(path, limit=_LARGEST_WAV), where=str(path))


@dataclass(frozen=True)
class RecordingsArrays:
    """One ``fsdd.npz`` file: all samples end to end, and for each recording length, label, speaker and index."""

    folder: Path

    @property
    def title(self) -> str:
        return str(self.folder / ARRAYS)

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        path = self.folder / ARRAYS
        if not path.is_file():
            raise Unavailable(f"it lacks {ARRAYS}")
        return _checked(_from_arrays(read_bytes(path, limit=_LARGEST_ARCHIVE), where=str(path)), files, where=str(path))


@dataclass(frozen=True)
class RecordingsArchive:
    """The ``.tar.gz`` archive of a release, with the ``.wav`` files in one folder of it."""

    place: FileLocation
    name: str
    folder: str

    @property
    def title(self) -> str:
        return self.place.address_of(self.name)

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        packed = self.place.read(self.name, limit=_LARGEST_ARCHIVE)
        try:
            with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
                recordings = dict(self._read(archive))
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise BhcError(f"{self.title} is damaged: it cannot be read as a .tar.gz archive ({error})") from error
        return _checked(recordings, files, where=self.title)

    def _read(self, archive: tarfile.TarFile) -> Iterator[tuple[str, NDArray[np.int16]]]:
        found = 0
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            # Names are compared and never used as paths; sizes are looked at before a byte is read.
            if folder != self.folder or not name.endswith(".wav") or not member.isreg() or member.size > _LARGEST_WAV:
                continue
            file, found = archive.extractfile(member), found + 1
            if file is None or found > _MOST:
                raise BhcError(f"{self.title} is damaged: it has more than {_MOST:,} recordings")
            yield name.removesuffix(".wav"), parse_wav(file.read(), where=f"{name} in {self.title}")


def _from_arrays(content: bytes, *, where: str) -> Recordings:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_ARCHIVE:
                raise ValueError("it decompresses to more than such a file may have")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            parts: dict[str, Any] = {name: arrays[name] for name in ("audio", "length", "label", "speaker", "index")}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BhcError(f"{where} is not an array file of recordings: {error}") from error
    ends = np.cumsum(parts["length"], dtype=np.int64)
    if not len(ends) or parts["length"].min() < 0 or ends[-1] != len(parts["audio"]):
        raise BhcError(f"{where} is damaged: its lengths do not add up to its samples")
    starts = ends - parts["length"]
    titles = zip(parts["label"], parts["speaker"], parts["index"], strict=True)
    names = [f"{label}_{speaker}_{index}" for label, speaker, index in titles]
    samples = parts["audio"].astype(np.int16)
    return {name: samples[start:end] for name, start, end in zip(names, starts, ends, strict=True)}


def _checked(recordings: Recordings, files: tuple[PackedFile, ...], *, where: str) -> dict[str, bytes]:
    content = format_recordings(recordings)
    (file,) = files
    file.check(content, where=f"{file.name}, made from {where},")
    return {file.name: content}
