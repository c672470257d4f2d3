"""A few recordings and questions, made here, in the public layouts."""

import io
import wave
from pathlib import Path

import numpy as np

SPEAKERS = ("ann", "bob")
DIGITS, INDICES = 10, 20


def tone(digit: int, speaker: int, index: int, samples: int = 2_000) -> np.ndarray:
    """A hum whose pitch tells the digit, and whose loudness the speaker."""
    times = np.arange(samples) / 8_000
    wobble = np.random.default_rng(100 * digit + 10 * speaker + index).normal(0, 20, samples)
    hum = np.sin(2 * np.pi * (200 + 150 * digit) * times) * (3_000 + 4_000 * speaker)
    return (hum + wobble).astype(np.int16)


def wav_of(samples: np.ndarray, *, rate: int = 8_000, channels: int = 1, width: int = 2) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def recordings() -> dict[str, np.ndarray]:
    return {
        f"{digit}_{name}_{index}": tone(digit, speaker, index)
        for digit in range(DIGITS)
        for speaker, name in enumerate(SPEAKERS)
        for index in range(INDICES)
    }


def fill_wavs(folder: Path, names: dict[str, np.ndarray] | None = None) -> Path:
    folder.mkdir(parents=True)
    for name, samples in (recordings() if names is None else names).items():
        (folder / f"{name}.wav").write_bytes(wav_of(samples))
    return folder


def arrays_of(every: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As ``fsdd.npz`` has it."""
    parts = [name.split("_") for name in every]
    return {
        "audio": np.concatenate([*every.values()]),
        "length": np.array([len(samples) for samples in every.values()], dtype=np.int32),
        "label": np.array([int(digit) for digit, _, _ in parts], dtype=np.uint8),
        "speaker": np.array([speaker for _, speaker, _ in parts]),
        "index": np.array([int(index) for _, _, index in parts], dtype=np.uint8),
    }
