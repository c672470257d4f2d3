"""Recordings: ``.wav`` files of one channel in, samples of one length out."""

import io
import wave
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bhc.errors import BhcError
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
