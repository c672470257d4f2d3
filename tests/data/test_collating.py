"""Items in one batch: lists of numbers, and texts of different lengths."""

import doctest
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from bhc.data import PadTexts
from bhc.errors import BhcError
from bhc.examples import put_together, split

TOKENS: list[dict[str, Any]] = [
    {"input_ids": [5, 6, 7], "token_type_ids": [0, 0, 1], "attention_mask": [1, 1, 1], "label": 2, "text": "a b c"},
    {"input_ids": [8], "token_type_ids": [0], "attention_mask": [1], "label": 0, "text": "d"},
]


def test_the_example_of_its_docstring_is_what_it_gives() -> None:
    assert doctest.testmod(split, extraglobs={"bhc": __import__("bhc")}).failed == 0


@pytest.mark.parametrize(
    "kind",
    [list, torch.tensor, np.array, lambda text: torch.tensor(text, dtype=torch.int32)],
    ids=["list", "tensor", "array", "int32"],
)
def test_texts_in_every_form_are_filled_up_to_the_longest(kind: Any) -> None:
    batch, targets = PadTexts()([(kind([5, 6, 7]), 1), (kind([8, 9]), 0), (kind([3]), 1)])
    assert batch.tolist() == [[5, 6, 7], [8, 9, 0], [3, 0, 0]]
    assert targets.tolist() == [1, 0, 1]
    assert not batch.is_floating_point()


def test_dicts_as_tokenisers_give_them_keep_what_is_no_text() -> None:
    batch = PadTexts()(TOKENS)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["label"].tolist() == [2, 0]
    assert batch["text"] == ["a b c", "d"]


def test_masks_and_types_are_filled_with_zeros_whatever_words_are_filled_with() -> None:
    batch = PadTexts(1)(TOKENS)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 1], [0, 0, 0]]


def test_each_name_may_be_filled_with_a_number_of_its_own() -> None:
    batch = PadTexts({"input_ids": 3, "token_type_ids": 4})(TOKENS)
    assert [batch[name][1].tolist() for name in ("input_ids", "token_type_ids", "attention_mask")] == [
        [8, 3, 3],
        [0, 4, 4],
        [1, 0, 0],
    ]


def test_texts_alone_and_several_of_one_item_are_taken() -> None:
    assert PadTexts()([torch.tensor([1, 2]), torch.tensor([3])]).tolist() == [[1, 2], [3, 0]]
    assert PadTexts()([[1, 2], [3]]).tolist() == [[1, 2], [3, 0]]  # a text of two numbers is no pair
    (words, tags), targets = PadTexts()([(([1, 2], [5]), 0.5), (([3], [6, 7]), 1.5)])
    assert (words.tolist(), tags.tolist(), targets.tolist()) == ([[1, 2], [3, 0]], [[5, 0], [6, 7]], [0.5, 1.5])
    named, _ = PadTexts()([({"ids": [1, 2]}, 0), ({"ids": [3]}, 1)])
    assert named["ids"].tolist() == [[1, 2], [3, 0]]


def test_a_length_is_that_of_every_batch() -> None:
    assert PadTexts(length=5)([[1, 2, 3, 4], [5]]).shape == (2, 5)
    assert PadTexts(length=2, truncate=True)([[1, 2, 3], [4]]).tolist() == [[1, 2], [4, 0]]
    assert PadTexts(length=3)([[1, 2, 3]]).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("collate", "items", "problem"),
    [
        (PadTexts(length=2), [[1], [1, 2, 3]], "item 1: a text has 3 numbers, and there is room for 2"),
        (PadTexts(length=2), TOKENS, "item 0: input_ids has 3 numbers"),
        (PadTexts(), [[1], []], "item 1: a text is empty"),
        (PadTexts(), [{"ids": [1], "mask": [1]}, {"ids": [1]}], "item 1: it has no 'mask'"),
    ],
)
def test_an_item_that_does_not_fit_is_named_with_its_place(collate: PadTexts, items: list[Any], problem: str) -> None:
    with pytest.raises(BhcError, match=problem):
        collate(items)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"padding": 0.5}, "0.5"),
        ({"padding": {"input_ids": None}}, "None"),
        ({"length": 0}, "given 0"),
        ({"length": 2.0}, "given 2.0"),
        ({"truncate": True}, "without a length"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(BhcError, match=problem):
        PadTexts(**wrong)


def test_the_loader_of_torch_takes_it_with_processes_too() -> None:
    loader = DataLoader(TOKENS * 2, batch_size=2, collate_fn=PadTexts(), num_workers=1)  # type: ignore[arg-type]
    assert [batch["input_ids"].shape for batch in loader] == [(2, 3), (2, 3)]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([{"x": [1, 2, 3], "y": 0}, {"x": [4, 5, 6], "y": 1}], {"x": [[1, 2, 3], [4, 5, 6]], "y": [0, 1]}),
        ([([0.5, 1.5], 0), ([2.5, 3.5], 1)], [[[0.5, 1.5], [2.5, 3.5]], [0, 1]]),
        ([([[1, 2], [3, 4]], [1, 0])] * 2, [[[[1, 2], [3, 4]]] * 2, [[1, 0]] * 2]),  # rows of rows
        ([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]),
        ([({"x": [1, 2]}, 0), ({"x": [3, 4]}, 1)], [{"x": [[1, 2], [3, 4]]}, [0, 1]]),
        ([(([1, 2], [3]), 0), (([4, 5], [6]), 1)], [[[[1, 2], [4, 5]], [[3], [6]]], [0, 1]]),  # two inputs
        ([(5, 1), (6, 0)], [[5, 6], [1, 0]]),  # a pair of numbers
        ([{"x": [1.5], "note": None}, {"x": [2.5], "note": "b"}], {"x": [[1.5], [2.5]], "note": [None, "b"]}),
        ([{"x": 1, "said": ["a"]}, {"x": 2, "said": ["b", "c"]}], {"x": [1, 2], "said": [["a"], ["b", "c"]]}),
    ],
)
def test_lists_of_numbers_are_rows_of_a_batch(items: list[Any], expected: Any) -> None:
    assert plain(put_together(items)) == expected


def test_what_is_no_list_of_numbers_is_put_together_as_torch_does_it() -> None:
    items = [(torch.ones(2), "a"), (torch.zeros(2), "b")]
    assert plain(put_together(items)) == [[[1.0, 1.0], [0.0, 0.0]], ["a", "b"]]
    with pytest.raises(RuntimeError):
        put_together([([1, 2], 0), ([3], 1)])
    with pytest.raises(BhcError, match="item 1: it has no 'y'"):
        put_together([{"x": 1, "y": 2}, {"x": 1}])


def plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    return list(map(plain, batch)) if isinstance(batch, list | tuple) else getattr(batch, "tolist", lambda: batch)()
