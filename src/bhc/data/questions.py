"""The TREC questions, a class and a question a line, and how they become splits."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from bhc.data.dataset import Splits
from bhc.data.sources import PackedFile
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
