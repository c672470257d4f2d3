"""A few recordings and questions, made here, in the public layouts."""

import io
import wave
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bhc.data import catalogue
from bhc.data.sound_and_text import SPOKEN_DIGITS, TEST_QUESTIONS, TRAIN_QUESTIONS, QuestionsLayout, format_recordings
from bhc.data.sources import Plain

from .tiny import packed_file

SPEAKERS = ("ann", "bob")
DIGITS, INDICES = 10, 20
QUESTION_WORDS = ("what", "which", "short", "who", "where", "many")


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


def recordings(speakers: Sequence[str] = SPEAKERS) -> dict[str, np.ndarray]:
    return {
        f"{digit}_{name}_{index}": tone(digit, speaker, index)
        for digit in range(DIGITS)
        for speaker, name in enumerate(speakers)
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


def questions(count: int) -> bytes:
    """Questions whose first word tells their class."""
    lines = [f"{n % 6} {QUESTION_WORDS[n % 6]} is the thing number {n % 7} ?" for n in range(count)]
    return "".join(f"{line}\n" for line in lines).encode()


def publish(folder: Path, patch: pytest.MonkeyPatch, *, speakers: Sequence[str] = SPEAKERS) -> Path:
    """A data folder with recordings and questions, which the readers take for the public ones from here on."""
    spoken = recordings(speakers)
    fill_wavs(folder / "fsdd" / "recordings", spoken)
    (folder / "trec").mkdir()
    train, test = questions(120), questions(30)
    (folder / "trec" / TRAIN_QUESTIONS).write_bytes(train)
    (folder / "trec" / TEST_QUESTIONS).write_bytes(test)
    recipes, plain = catalogue.RECIPES, partial(packed_file, packing=Plain())
    own = {
        "fsdd": replace(recipes["fsdd"], files=(plain(SPOKEN_DIGITS, format_recordings(spoken)),), sources=()),
        "trec": replace(
            recipes["trec"],
            files=(plain(TRAIN_QUESTIONS, train), plain(TEST_QUESTIONS, test)),
            sources=(),
            layout=QuestionsLayout(validation=30, length=12),
        ),
    }
    patch.setattr(catalogue, "RECIPES", recipes | own)
    return folder
