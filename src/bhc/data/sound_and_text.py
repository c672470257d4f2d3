"""Recordings and questions: .wav files as samples of one length, more voices by other speeds, and lines of words.

The Free Spoken Digit Dataset, six people who say ten digits fifty times each, is published as a folder of
``{digit}_{speaker}_{index}.wav`` files. Here the whole of it is one content, whichever way it came: recordings by their
names in the order of the alphabet, each as a name and its samples. The TREC questions are a class and a question a
line.
"""

import io
import re
import struct
import tarfile
import wave
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bhc.data.archives import opened
from bhc.data.dataset import DataSet, Splits
from bhc.data.sources import FileLocation, Form, PackedFile, Unavailable
from bhc.errors import BhcError
from bhc.examples import Split, Vocabulary
from bhc.files import read_bytes

RATE = 8_000  # samples a second
LENGTH = 6_400  # samples that a network reads: 0.8 seconds
_BYTES = 2  # of a sample
_LARGEST = 64 << 20  # bytes of a file


def parse_wav(content: bytes, *, where: str) -> NDArray[np.int16]:  # (samples,)
    """The samples of a ``.wav`` file: one channel, 16 bits, 8,000 a second, some of them not zero."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            channels, width, rate, count = file.getparams()[:4]
            frames = file.readframes(count)
    except (wave.Error, EOFError, OSError, ValueError) as error:
        raise BhcError(
            f"{where} is not a .wav file of plain samples: {error}", hint="convert it to 16-bit PCM"
        ) from error
    if channels != 1:
        raise BhcError(f"{where} has {channels} channels", hint="mix them to one: sox in.wav out.wav remix -")
    if rate != RATE:
        raise BhcError(
            f"{where} has {rate:,} samples a second instead of {RATE:,}",
            hint=f"convert it, for example: sox in.wav -r {RATE} out.wav",
        )
    if width != _BYTES:
        raise BhcError(f"{where} has {8 * width} bits a sample instead of 16", hint="sox in.wav -b 16 out.wav")
    samples = np.frombuffer(frames, dtype="<i2").astype(np.int16)
    check_audible(samples, where=where)
    return samples


def check_audible(samples: NDArray[np.int16], *, where: str) -> None:
    """Raise if there is nothing to hear."""
    if not samples.size:
        raise BhcError(f"{where} is empty: it has no samples", hint="leave it out")
    if samples.min() == samples.max():
        raise BhcError(f"{where} is silent: all of its samples are {int(samples[0])}", hint="leave it out")


def fit_length(samples: NDArray[np.int16], length: int = LENGTH) -> NDArray[np.int16]:  # (length,)
    """Shorter recordings in the middle of zeros; of longer ones the stretch with the most energy."""
    spare = length - len(samples)
    if spare >= 0:
        return np.pad(samples, (spare // 2, spare - spare // 2))
    energy = np.concatenate([[0.0], np.cumsum(samples.astype(np.float64) ** 2)])
    start = int(np.argmax(energy[length:] - energy[:-length]))
    return samples[start : start + length]


def read_recordings(paths: Iterable[Path | str]) -> Tensor:  # (N, 1, length) int16
    """Recordings as a network takes them, from ``.wav`` files."""
    recordings = [
        fit_length(parse_wav(read_bytes(Path(path), limit=_LARGEST), where=str(path))) for path in map(Path, paths)
    ]
    if not recordings:
        raise BhcError("there are no recordings", hint="give one or more .wav files")
    return torch.from_numpy(np.stack(recordings)).unsqueeze(1)


def recordings_in(folder: Path) -> Tensor:  # (N, 1, length) int16
    """All ``.wav`` files of a folder, by their names."""
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".wav")
    if not paths:
        raise BhcError(f"{folder} has no .wav files", hint="give a folder of recordings")
    return read_recordings(paths)


def with_voices(dataset: DataSet, speeds: Sequence[float]) -> DataSet:
    """The data set with all recordings once more at each of these speeds, as sources of their own; test data stays.

    Played faster a voice is higher, and its owner smaller. From a handful of speakers one learns what these sound like;
    from many voices between and beyond them, what voices have in common.
    """
    if not speeds or any(not (isfinite(speed) and speed > 0) or speed == 1 for speed in speeds):
        raise BhcError(f"speeds of {list(speeds)}", hint="give some numbers around 1, such as 0.8 and 1.25, without 1")
    if not dataset.source_names:
        raise BhcError(f"{dataset.name} does not say who speaks", hint="make voices of a data set with sources: fsdd")
    speakers = dataset.source_names
    train, validation = (_more(split, speeds, len(speakers)) for split in (dataset.train, dataset.validation))
    names = [f"{name} at {speed:g}" for speed in speeds for name in speakers]
    return replace(dataset, train=train, validation=validation, source_names=(*speakers, *names))


def _more(split: Split, speeds: Sequence[float], speakers: int) -> Split:
    assert split.sources is not None
    return Split(
        torch.cat([split.tensor, *(at_speed(split.tensor, speed) for speed in speeds)]),
        split.known_labels.repeat(len(speeds) + 1),
        torch.cat([split.sources + speakers * place for place in range(len(speeds) + 1)]),
    )


def at_speed(recordings: Tensor, speed: float) -> Tensor:  # (N, C, T) int16
    """Recordings faster or slower around their middle, between two samples on a straight line; silence moves in."""
    samples = recordings.shape[-1]
    middle = (samples - 1) / 2
    places = middle + (torch.arange(samples, dtype=torch.float64) - middle) * speed
    below = places.floor().long()
    part = (places - below).float()
    padded = torch.nn.functional.pad(recordings.float(), (1, 1))
    left, right = (padded.index_select(-1, (index + 1).clamp(0, samples + 1)) for index in (below, below + 1))
    return torch.lerp(left, right, part).round().to(recordings.dtype)


Recordings = dict[str, NDArray[np.int16]]

SPOKEN_DIGITS = "fsdd.recordings"
FOLDER = "recordings"
ARRAYS = "fsdd.npz"
_NAME = re.compile(r"([0-9])_([a-z]+)_([0-9]{1,2})")
_LARGEST_WAV, _LARGEST_ARCHIVE, _LARGEST_UNPACKED, _MOST = 1 << 20, 64 << 20, 256 << 20, 3_000
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
        with opened(packed, total=_LARGEST_UNPACKED, where=self.title) as archive:
            recordings = dict(self._read(archive))
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


@dataclass(frozen=True)
class SpokenDigitsLayout:
    """Recordings by their index: the first ``test`` of each speaker and digit, then ``validation``, the rest is train.

    So every split has every speaker and digit equally often.
    """

    test: int
    validation: int

    def splits(self, contents: Mapping[str, bytes]) -> Splits:
        recordings = parse_recordings(contents[SPOKEN_DIGITS], where=SPOKEN_DIGITS)
        titles = [Title.of(name) for name in recordings]
        speakers = tuple(sorted({title.speaker for title in titles}))
        samples = torch.from_numpy(np.stack([fit_length(recording) for recording in recordings.values()]))
        every = Split(
            samples.unsqueeze(1),
            torch.tensor([title.digit for title in titles]),
            torch.tensor([speakers.index(title.speaker) for title in titles]),
        )
        index = torch.tensor([title.index for title in titles])
        known = self.test + self.validation
        parts = (index >= known, (index >= self.test) & (index < known), index < self.test)
        if not all(bool(part.any()) for part in parts):
            raise BhcError(f"{SPOKEN_DIGITS} lacks the recordings of a split")
        train, validation, test = (every.at(part) for part in parts)
        return Splits(train, validation, test, source_names=speakers)


TRAIN_QUESTIONS, TEST_QUESTIONS = "TREC.train.all", "TREC.test.all"
COARSE = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")  # by their numbers
ENCODING = "latin-1"
_LONGER = 2  # times as long with names for classes


def parse_questions(content: bytes, *, where: str) -> tuple[list[int], list[str]]:
    """Labels and questions of ``label text`` lines."""
    labels, texts = [], []
    for number, line in enumerate(content.decode(ENCODING).splitlines(), start=1):
        label, _, text = line.partition(" ")
        if not (label.isascii() and label.isdigit()) or int(label) >= len(COARSE) or not text.strip():
            raise BhcError(
                f"line {number} of {where} is {line[:60]!r}; expected is a class from 0 to {len(COARSE) - 1},"
                " a space and a question"
            )
        labels.append(int(label))
        texts.append(text)
    if not texts:
        raise BhcError(f"{where} has no questions")
    return labels, texts


@dataclass(frozen=True)
class FineQuestions(Form):
    """The form with fine classes, ``LOC:city What county is Modesto in ?``, under the names that are given to it."""

    train: str
    test: str

    def stored_name(self, file: PackedFile) -> str:
        return {TRAIN_QUESTIONS: self.train, TEST_QUESTIONS: self.test}[file.name]

    def limit(self, file: PackedFile) -> int:
        return _LONGER * file.size

    def content(self, stored: bytes, file: PackedFile, *, where: str) -> bytes:
        lines = []
        for number, line in enumerate(stored.decode(ENCODING).split("\n")[:-1], start=1):
            coarse, _, rest = line.partition(":")
            _, _, text = rest.partition(" ")
            if coarse not in COARSE:
                raise BhcError(f"line {number} of {where} is {line[:60]!r}; expected is CLASS:detail and a question")
            lines.append(f"{COARSE.index(coarse)} {text}\n")
        content = "".join(lines).encode(ENCODING)
        file.check(content, where=where)
        return content


@dataclass(frozen=True)
class QuestionsLayout:
    """Two files: the last ``validation`` questions of the training file are held back.

    The vocabulary is that of the train split: words that occur there twice or more.
    """

    validation: int
    length: int  # the most words of a question

    def splits(self, contents: Mapping[str, bytes]) -> Splits:
        labels, texts = parse_questions(contents[TRAIN_QUESTIONS], where=TRAIN_QUESTIONS)
        kept = len(texts) - self.validation
        if kept < 1:
            raise BhcError(f"{TRAIN_QUESTIONS} has {len(texts):,} questions; over {self.validation:,} are needed")
        vocabulary = Vocabulary.of(texts[:kept], length=self.length)
        known = Split(vocabulary.encode(texts), torch.tensor(labels))
        test_labels, test_texts = parse_questions(contents[TEST_QUESTIONS], where=TEST_QUESTIONS)
        test = Split(vocabulary.encode(test_texts), torch.tensor(test_labels))
        return Splits(known.at(slice(kept)), known.at(slice(kept, None)), test, vocabulary=vocabulary)
