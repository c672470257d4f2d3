import pytest
import torch

from bhc.data import PADDING, UNKNOWN, Vocabulary
from bhc.errors import BhcError
from bhc.examples import split_words

TEXTS = ("Who was Galileo ?", "What was the name of it ?", "Who was it ?")
VOCABULARY = Vocabulary.of(TEXTS, length=8)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Who's that?", ["who's", "that", "?"]),
        ("What county is Modesto , California in ?", ["what", "county", "is", "modesto", ",", "california", "in", "?"]),
        ("the U.S. in 1,000 days", ["the", "u.s", ".", "in", "1", ",", "000", "days"]),
        ("café_x", ["café", "_", "x"]),
        (" \n", []),
    ],
)
def test_words_are_in_lower_case_and_signs_apart(text, words):
    assert split_words(text) == words


def test_words_that_occur_twice_have_numbers_the_most_frequent_first():
    assert VOCABULARY.words == ("?", "was", "it", "who")
    assert len(VOCABULARY) == 6
    assert "who" in VOCABULARY
    assert "galileo" not in VOCABULARY


def test_texts_become_numbers_filled_up_with_padding():
    rows = VOCABULARY.encode(["Who was Galileo ?", "it"])
    assert rows.dtype == torch.int32
    assert rows.tolist() == [[5, 3, UNKNOWN, 2, *[PADDING] * 4], [4, *[PADDING] * 7]]
    assert VOCABULARY.decode(rows[0]) == ["who", "was", "<unknown>", "?"]
    assert torch.equal(VOCABULARY.encode("it"), rows[1:])


def test_the_same_texts_always_give_the_same_numbers():
    assert Vocabulary.of(reversed(TEXTS), length=8) == VOCABULARY
    assert Vocabulary.from_dict(VOCABULARY.to_dict()) == VOCABULARY


@pytest.mark.parametrize("text", ["", "   "])
def test_a_text_without_words_is_refused(text):
    with pytest.raises(BhcError, match="there is no word in the text"):
        VOCABULARY.encode(["who", text])


def test_a_text_that_is_too_long_is_refused_and_not_cut():
    with pytest.raises(BhcError, match=r"a text of 9 words, .* at most 8 are read"):
        VOCABULARY.encode("who was it who was it who was it")


def test_unknown_words_of_a_subset_are_refused_by_name():
    assert VOCABULARY.numbers_of(["it", "WHO", "it"]) == [4, 5]
    with pytest.raises(BhcError, match="the vocabulary has no word 'galileo', 'x', 'y' and 1 more"):
        VOCABULARY.numbers_of(["who", "galileo", "x", "y", "z"])


def test_a_restricted_vocabulary_knows_the_others_as_one_word():
    rows = VOCABULARY.restricted_to(VOCABULARY.numbers_of(["who", "?"])).encode("Who was it ?")
    assert rows.tolist() == [[5, UNKNOWN, UNKNOWN, 2, *[PADDING] * 4]]


@pytest.mark.parametrize("words", [("a", "a"), ("A",), ("two words",), ("",)])
def test_what_is_no_vocabulary(words):
    with pytest.raises(BhcError, match="a vocabulary has each word once"):
        Vocabulary(words, 4)


def test_texts_of_no_length():
    with pytest.raises(BhcError, match="texts of 0 words"):
        Vocabulary(("a",), 0)
