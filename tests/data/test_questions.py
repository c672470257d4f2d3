from dataclasses import replace

import pytest
import torch

from bhc.data import UNKNOWN, DropWords
from bhc.data.catalogue import RECIPES, load_recipe
from bhc.data.sound_and_text import TEST_QUESTIONS, TRAIN_QUESTIONS, FineQuestions, QuestionsLayout, parse_questions
from bhc.data.sources import Plain
from bhc.errors import BhcError

from .tiny import packed_file

FINE = FineQuestions(train="train_5500.label", test="TREC_10.label")
TRAIN = "".join(f"{label} What is the thing number {label} ?\n" for label in (0, 1, 2, 3, 4, 5) * 4).encode()
TRAIN_FINE = "".join(
    f"{name}:some What is the thing number {label} ?\n"
    for label, name in list(enumerate(("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM"))) * 4
).encode()
TEST = "3 Who is Señor ?\n4 Where is it ?\n".encode("latin-1")
TEST_FINE = "HUM:ind Who is Señor ?\nLOC:other Where is it ?\n".encode("latin-1")
FILES = (packed_file(TRAIN_QUESTIONS, TRAIN, Plain()), packed_file(TEST_QUESTIONS, TEST, Plain()))
RECIPE = replace(RECIPES["trec"], files=FILES, sources=(), layout=QuestionsLayout(validation=6, length=8))


@pytest.mark.parametrize("line", [b"6 Who ?", b"x Who ?", b"3", b"3 ", b"", "² Who ?".encode("latin-1")])
def test_other_lines_are_refused_with_their_number(line):
    with pytest.raises(BhcError, match="line 2 of test"):
        parse_questions(b"0 Why ?\n" + line + b"\n", where="test")


@pytest.mark.parametrize(
    "files",
    [
        {"TREC.train.all": TRAIN, "TREC.test.all": TEST},
        {"train_5500.label": TRAIN_FINE, "TREC_10.label": TEST_FINE},
        {"raw_TREC.train": TRAIN_FINE, "raw_TREC.test": TEST_FINE},
    ],
)
def test_every_public_form_gives_the_same_data_set(tmp_path, files):
    folder = tmp_path / "trec"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    data = load_recipe(RECIPE, data_dir=tmp_path)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [18, 6, 2]
    assert data.vocabulary is not None
    assert data.vocabulary.words[:4] == ("?", "is", "number", "the")
    assert data.test.inputs[0].tolist()[:4] == [UNKNOWN, 3, UNKNOWN, 2]
    assert data.full_scale == len(data.vocabulary) - 1
    assert data.image_shape == (8,)
    assert data.class_names[3] == "human"


def test_fine_classes_that_are_none():
    with pytest.raises(BhcError, match="WHO:x y"):
        FINE.content(b"WHO:x y\n", FILES[0], where="there")
    with pytest.raises(BhcError, match="damaged"):
        FINE.content(b"HUM:x y\n", FILES[0], where="there")


def test_too_few_questions():
    with pytest.raises(BhcError, match="no questions"):
        parse_questions(b"", where="test")
    with pytest.raises(BhcError, match="24 questions"):
        QuestionsLayout(validation=24, length=8).splits({TRAIN_QUESTIONS: TRAIN, TEST_QUESTIONS: TEST})


def test_words_are_dropped_and_padding_stays():
    x = torch.tensor([[5, 6, 7, 0, 0]], dtype=torch.int32).expand(2_000, -1)
    dropped = DropWords(0.25)(x, rng=torch.Generator().manual_seed(0))
    assert dropped.dtype == torch.int32
    assert (dropped[:, 3:] == 0).all()
    assert float((dropped[:, :3] == UNKNOWN).float().mean()) == pytest.approx(0.25, abs=0.02)
    assert ((dropped == x) | (dropped == UNKNOWN)).all()
    with pytest.raises(BhcError, match="0 and 1"):
        DropWords(1.5)
