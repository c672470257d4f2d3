"""How sounds and texts become splits; the TREC questions, a class and a question a line."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from bhc.data.layout import Splits
from bhc.data.packed import PackedFile
from bhc.data.sound import fit_length
from bhc.data.spoken_digits import Title, parse_recordings
from bhc.errors import BhcError
from bhc.examples import Split, Vocabulary

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
class FineQuestions:
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


SPOKEN_DIGITS = "fsdd.recordings"


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
