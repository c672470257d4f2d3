"""Examples as training and emission take them: inputs with labels, changed at random, and texts as numbers of words."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bhc.errors import BhcError, renamed, warn

# What an example is stored as: its type, and its dimensions with that of the batch.
STORED = {
    torch.uint8: ("(N, C, H, W) uint8", 4),  # pixels
    torch.int16: ("(N, C, T) int16", 3),  # samples of sound
    torch.int32: ("(N, T) int32", 2),  # words of a vocabulary
}

PADDING, UNKNOWN = 0, 1  # no word, and a word that has no number of its own
RESERVED = ("<padding>", "<unknown>")
LARGEST = 1 << 24  # the whole numbers up to here are exact as 32-bit floats, which is what exported networks take

# A word, a number, or a single other sign; what TREC has set apart by spaces already comes out as it is.
_PIECES = re.compile(r"[^\W_]+(?:['.][^\W_]+)*|[^\w\s]|_")


@dataclass(frozen=True)
class Split:
    """Examples with their labels: pixels, samples of sound, or the numbers of words."""

    inputs: Tensor  # (N, C, H, W) uint8, (N, C, T) int16 or (N, T) int32
    labels: Tensor  # (N,) int64
    sources: Tensor | None = None  # (N,) int64, where each is from: who speaks

    def __post_init__(self) -> None:
        form, dimensions = STORED.get(self.inputs.dtype, ("", 0))
        if self.inputs.ndim != dimensions:
            allowed = form or " or ".join(form for form, _ in STORED.values())
            raise BhcError(f"inputs must be {allowed}, not {_described(self.inputs)}")
        for name, numbers in (("labels", self.labels), ("sources", self.sources)):
            if numbers is None:
                continue
            if numbers.ndim != 1 or numbers.dtype != torch.int64:
                raise BhcError(f"{name} must be (N,) int64, not {_described(numbers)}")
            if len(self.inputs) != len(numbers):
                raise BhcError(f"{len(self.inputs):,} inputs cannot have {len(numbers):,} {name}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def images(self) -> Tensor:
        """The old name of ``inputs``."""
        warn("Split.images is Split.inputs now", DeprecationWarning)
        return self.inputs

    @cached_property
    def present(self) -> tuple[int, ...]:
        return tuple(self.labels.unique().tolist())

    def places_of(self, classes: Iterable[int]) -> Tensor:
        wanted = torch.zeros(int(self.labels.max()) + 1, dtype=torch.bool, device=self.labels.device)
        wanted[list(classes)] = True
        return wanted[self.labels].nonzero().flatten()

    def restricted_to(self, classes: Iterable[int]) -> "Split":
        """Keep the images of these classes, in their order and with their labels as they are."""
        wanted = sorted(set(classes))
        if not wanted or not set(wanted) <= set(self.present):
            raise BhcError(
                f"cannot restrict the images to the classes {wanted}; there are images of {list(self.present)}",
                hint="name one or more of the classes there are",
            )
        if wanted == list(self.present):
            return self
        return self.at(self.places_of(wanted))

    def from_sources(self, sources: Iterable[int]) -> "Split":
        """Keep the examples from these sources, in their order."""
        wanted = sorted(set(sources))
        present = [] if self.sources is None else self.sources.unique().tolist()
        if self.sources is None or not wanted or not set(wanted) <= set(present):
            raise BhcError(
                f"there are no examples from the sources {wanted}; there are those of {present}",
                hint="name one or more of the sources there are",
            )
        return self.at(torch.isin(self.sources, torch.tensor(wanted, device=self.sources.device)))

    def at(self, places: Tensor | slice) -> "Split":
        """The examples at some places: a mask, numbers, or a slice."""
        if isinstance(places, Tensor) and places.dtype == torch.int64:
            inputs = self.inputs.index_select(0, places)  # several times faster
        else:
            inputs = self.inputs[places]
        return Split(inputs, self.labels[places], None if self.sources is None else self.sources[places])

    def to(self, device: torch.device) -> "Split":
        sources = None if self.sources is None else self.sources.to(device)
        return Split(self.inputs.to(device), self.labels.to(device), sources)


Split.__init__ = renamed(images="inputs")(Split.__init__)  # type: ignore[method-assign]


class Augmentation(Protocol):
    """A way to alter a batch at random."""

    def __call__(self, images: Tensor, *, rng: Generator) -> Tensor:
        """Altered images, or sounds or texts, of the same shape and type, on the same device as the generator is."""


@dataclass(frozen=True)
class Shift:
    """Each image moved by up to ``padding`` pixels down and across, zeros moving in: for digits, which no mirror keeps.

    The numbers drawn stay on the device of the images, so that nothing waits for them.
    """

    padding: int = 1

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise BhcError(f"images cannot be padded by {self.padding} pixels", hint="use 0 to leave them in place")

    @renamed(generator="rng")
    def __call__(self, images: Tensor, *, rng: Generator) -> Tensor:  # (N, C, H, W)
        count, channels, height, width = images.shape
        device = images.device
        top, left = torch.randint(0, 2 * self.padding + 1, (2, count, 1), generator=rng, device=device)
        rows = top + torch.arange(height, device=device)  # (N, H)
        columns = left + self._across(count, width, rng)  # (N, W)
        padded = F.pad(images, (self.padding,) * 4)
        taken = padded.gather(2, rows[:, None, :, None].expand(-1, channels, -1, padded.shape[3]))
        return taken.gather(3, columns[:, None, None, :].expand(-1, channels, height, -1))

    def _across(self, count: int, width: int, rng: Generator) -> Tensor:  # (N or 1, W)
        """Where the columns of each image come from before it is moved."""
        return torch.arange(width, device=rng.device)[None]


@dataclass(frozen=True)
class CropAndFlip(Shift):
    """Each image moved by up to ``padding`` pixels down and across, zeros moving in, and every other one mirrored."""

    padding: int = 4

    def _across(self, count: int, width: int, rng: Generator) -> Tensor:
        device = rng.device
        across = torch.arange(width, device=device)
        mirrored = torch.randint(0, 2, (count, 1), generator=rng, device=device, dtype=torch.bool)
        return torch.where(mirrored, across.flip(0), across)


@dataclass(frozen=True)
class ShiftAndNoise:
    """Each recording earlier or later, louder or softer, and under noise as loud as a part of it.

    Up to ``shift`` samples of zeros move in. The factor of its loudness lies between one over ``gain`` and ``gain``.
    The noise is white, and its part of the recording's own size is drawn between 0 and ``noise``.
    """

    shift: int = 800
    gain: float = 2.0
    noise: float = 0.05

    def __post_init__(self) -> None:
        if self.shift < 0 or self.gain < 1 or self.noise < 0:
            raise BhcError(
                f"sounds shifted by {self.shift} samples, {self.gain:g} times as loud, with {self.noise:g} of noise",
                hint="a shift and a noise of 0 or more, and a gain of 1 or more",
            )

    @renamed(generator="rng")
    def __call__(self, images: Tensor, *, rng: Generator) -> Tensor:  # (N, C, T) int16
        count, channels, samples = images.shape
        device = images.device
        start = torch.randint(0, 2 * self.shift + 1, (count, 1, 1), generator=rng, device=device)
        places = start + torch.arange(samples, device=device)
        moved = F.pad(images, (self.shift, self.shift)).gather(2, places.expand(-1, channels, -1)).float()
        loud, noisy = torch.rand(2, count, 1, 1, generator=rng, device=device)
        size = moved.square().mean(2, keepdim=True).sqrt()
        hiss = torch.randn(moved.shape, generator=rng, device=device) * size * self.noise * noisy
        louder = (moved + hiss) * self.gain ** (2 * loud - 1)
        return louder.round().clamp(-32_768, 32_767).to(images.dtype)


@dataclass(frozen=True)
class DropWords:
    """Such a part of the words of each text replaced by the unknown word."""

    part: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.part <= 1:
            raise BhcError(f"the part of the words that is dropped lies between 0 and 1, given {self.part}")

    @renamed(generator="rng")
    def __call__(self, images: Tensor, *, rng: Generator) -> Tensor:  # (N, T) int32
        drawn = torch.rand(images.shape, generator=rng, device=images.device)
        return images.masked_fill((drawn < self.part) & (images != PADDING), UNKNOWN)


def augmentation_for(images: Tensor) -> Augmentation:
    """What suits examples as they are stored: pixels, samples of sound, or words."""
    suits: dict[torch.dtype, Augmentation] = {torch.int16: ShiftAndNoise(), torch.int32: DropWords()}
    return suits.get(images.dtype, CropAndFlip())


def split_words(text: str) -> list[str]:
    """The words of a text in lower case, signs apart: ``Who's that?`` has ``who's``, ``that`` and ``?``."""
    return _PIECES.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """The words that have a number, from 2 on; 0 is no word, and 1 any other word.

    ``length`` is how many words a text may have; shorter ones are filled up with 0. The same words always give the
    same numbers, on every machine.
    """

    words: tuple[str, ...]
    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        if len(set(self.words)) < len(self.words) or not all(split_words(word) == [word] for word in self.words):
            raise BhcError("a vocabulary has each word once, in lower case and without spaces")
        if self.length < 1 or len(self) > LARGEST:
            raise BhcError(f"texts of {self.length} words out of {len(self):,}", hint="there must be one or more")

    @classmethod
    def of(cls, texts: Iterable[str], *, length: int, least: int = 2) -> "Vocabulary":
        """The words that occur ``least`` times or more, the most frequent first, equals by the alphabet."""
        counts = Counter(word for text in texts for word in split_words(text))
        often = sorted(
            (word for word, count in counts.items() if count >= least), key=lambda word: (-counts[word], word)
        )
        return cls(tuple(often), length)

    def __len__(self) -> int:
        """How many numbers there are, 0 and 1 included."""
        return len(self.words) + len(RESERVED)

    def __contains__(self, word: str) -> bool:
        return word in self._numbers

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=len(RESERVED))}

    def encode(self, texts: str | Sequence[str]) -> Tensor:  # (N, length) int32
        """The numbers of each text's words. A text without words, or with too many, is refused."""
        rows = [self._row(text) for text in ([texts] if isinstance(texts, str) else texts)]
        return torch.tensor(rows, dtype=torch.int32).reshape(-1, self.length)

    def _row(self, text: str) -> list[int]:
        words = split_words(text)
        if not words:
            raise BhcError(f"there is no word in the text {text[:60]!r}", hint="leave empty texts out")
        if len(words) > self.length:
            raise BhcError(
                f"a text of {len(words)} words, {text[:60]!r}...; at most {self.length} are read",
                hint="shorten it: words that are cut off in silence could be those that matter",
            )
        numbers = [self._numbers.get(word, UNKNOWN) for word in words]
        return numbers + [PADDING] * (self.length - len(numbers))

    def decode(self, row: Tensor) -> list[str]:
        """The words of one text as far as they are known."""
        return [(*RESERVED, *self.words)[number] for number in row.tolist() if number != PADDING]

    def numbers_of(self, words: Iterable[str]) -> list[int]:
        """The numbers of known words, ascending; an unknown one is refused by its name."""
        wanted = dict.fromkeys(word.lower() for word in words)
        unknown = [word for word in wanted if word not in self._numbers]
        if unknown:
            more = f" and {len(unknown) - 3:,} more" if len(unknown) > 3 else ""
            raise BhcError(
                f"the vocabulary has no word {', '.join(map(repr, unknown[:3]))}{more}",
                hint="name words that training has seen twice or more; all others are one word to the network",
            )
        return sorted(self._numbers[word] for word in wanted)

    def restricted_to(self, numbers: Iterable[int]) -> "Restricted":
        """The same numbering for a network that has rows for these words alone: others are unknown to it."""
        return Restricted(self, frozenset(numbers) | {PADDING, UNKNOWN})

    def to_dict(self) -> dict[str, Any]:
        return {"words": list(self.words), "length": self.length}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Vocabulary":
        """The vocabulary that ``to_dict`` described."""
        return cls(tuple(map(str, data["words"])), int(data["length"]))


@dataclass(frozen=True)
class Restricted:
    """A vocabulary of which only some words are known."""

    vocabulary: Vocabulary
    known: frozenset[int]

    def encode(self, texts: str | Sequence[str]) -> Tensor:  # (N, length) int32
        """As the whole vocabulary does it, with 1 for each word that is not known here."""
        numbers = self.vocabulary.encode(texts)
        return numbers.where(torch.isin(numbers, torch.tensor(sorted(self.known))), UNKNOWN)


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}".replace("torch.", "")
