"""Recordings: .wav files of one channel in, samples of one length out; more voices by other speeds."""

import io
import wave
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bhc.data.dataset import DataSet
from bhc.errors import BhcError
from bhc.examples import Split
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
        torch.cat([split.inputs, *(at_speed(split.inputs, speed) for speed in speeds)]),
        split.labels.repeat(len(speeds) + 1),
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
