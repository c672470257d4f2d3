"""What is done to examples before a network reads them: texts become the numbers of their words, and examples are
altered at random, so that more is learned from them."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bhc.errors import BhcError, renamed

PADDING, UNKNOWN = 0, 1  # no word, and a word that has no number of its own
RESERVED = ("<padding>", "<unknown>")
LARGEST = 1 << 24  # the whole numbers up to here are exact as 32-bit floats, which is what exported networks take

# A word, a number, or a single other sign; what TREC has set apart by spaces already comes out as it is.
_PIECES = re.compile(r"[^\W_]+(?:['.][^\W_]+)*|[^\w\s]|_")


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


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of the ``tokenizers`` library, by its JSON: what a network of pretrained words reads texts by."""

    text: str  # JSON

    @classmethod
    def of(cls, given: Any) -> "Tokenizer":
        """That of the ``tokenizers`` library, or a fast one of ``transformers``."""
        backend = getattr(given, "backend_tokenizer", given)
        if not callable(getattr(backend, "to_str", None)):
            raise BhcError(
                f"vocabulary is a {type(given).__name__}",
                hint="give a bhc.data.Vocabulary, a tokenizers.Tokenizer, or a fast tokenizer of transformers",
            )
        return cls(backend.to_str())

    @cached_property
    def _backend(self) -> Any:
        try:
            from tokenizers import Tokenizer as Backend
        except ImportError as error:
            raise BhcError("this run's texts need the package tokenizers", hint="pip install 'bhc[text]'") from error
        try:
            return Backend.from_str(self.text)
        except Exception as error:  # the library raises plain exceptions
            raise BhcError(f"the tokenizer cannot be read: {error}") from error

    def __len__(self) -> int:
        """How many numbers there are."""
        return int(self._backend.get_vocab_size())

    def encode(self, texts: str | Sequence[str]) -> dict[str, Tensor]:  # (N, T) each
        """Numbers of tokens and which of them are there, texts filled up to the longest."""
        rows = self._backend.encode_batch([texts] if isinstance(texts, str) else list(texts))
        longest = max(len(row.ids) for row in rows)
        columns = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
        return {
            name: torch.tensor([[*own, *[0] * (longest - len(own))] for own in numbers])
            for name, numbers in columns.items()
        }

    def decode(self, row: Tensor) -> list[str]:
        """The tokens of one text, but for what fills it up."""
        filling = self._backend.token_to_id("[PAD]")
        known = (self._backend.id_to_token(number) for number in row.tolist() if number != filling)
        return [token for token in known if token is not None]

    def numbers_of(self, words: Iterable[str]) -> list[int]:
        """The numbers of known tokens, ascending; an unknown one is refused by its name."""
        numbers = {word: self._backend.token_to_id(word) for word in words}
        unknown = [word for word, number in numbers.items() if number is None]
        if unknown:
            raise BhcError(f"the tokenizer has no token {unknown[0]!r}")
        return sorted(numbers.values())

    def to_dict(self) -> dict[str, Any]:
        return {"tokenizer": json.loads(self.text)}


AnyVocabulary = Vocabulary | Tokenizer


def vocabulary_from_dict(data: dict[str, Any]) -> AnyVocabulary:
    """What ``to_dict`` described."""
    return Tokenizer(json.dumps(data["tokenizer"])) if "tokenizer" in data else Vocabulary.from_dict(data)


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
