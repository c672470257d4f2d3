"""Texts in the place of inputs, for runs that keep what takes them apart."""

import sys
from typing import Any

import pytest
import tokenizers
import torch
from torch import Tensor, nn

import bhc
from bhc.data import Split, Tokenizer
from bhc.studio.service import Service
from tests.studio.inputs import VOCABULARY, Reads, model_of, service_of, texts

WORDS = ["[UNK]", "[CLS]", *VOCABULARY.words]


def tokenizer() -> Tokenizer:
    """Words set apart by spaces, each text beginning with a sign of its own."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 1)])
    return Tokenizer.of(made)


class Masked(nn.Module):
    """Words that are there, by an embedding with rows to spare."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.end = nn.Embedding(len(WORDS) + 5, 8), nn.Linear(8, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        there = attention_mask[..., None].to(torch.float32)
        return self.end((self.embed(input_ids) * there).sum(1) / there.sum(1))


def masked(*, dynamic: bool) -> Service:
    ids = torch.randint(2, len(WORDS), (20, 6))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    axes = {"input_ids": (1,), "attention_mask": (1,)} if dynamic else ()
    model = bhc.wrap(Masked().eval(), bhc.ClassSubsets(4), example_input=inputs, dynamic_axes=axes)
    model.model.validation = Split((ids, torch.ones_like(ids)), None)
    model.model.vocabulary = tokenizer()
    return Service(model, "masked")


@pytest.mark.parametrize("dynamic", [True, False], ids=["any length", "one length"])
def test_a_tokenizer_makes_tokens_and_their_mask(dynamic: bool) -> None:
    service = masked(dynamic=dynamic)
    assert service.facts()["texts"]
    ids = [1, WORDS.index("who"), WORDS.index("is"), 0]
    short = 0 if dynamic else 2
    given = {"input_ids": ids + [0] * short, "attention_mask": [1] * 4 + [0] * short}
    asked = [service.answer({"classes": [0, 1], **each}) for each in ({"text": "who is nobody"}, {"input": given})]
    assert asked[0] == asked[1]


def test_examples_are_drawn_as_tokens() -> None:
    drawn = masked(dynamic=True).example_input(0)["drawing"]["parts"]
    assert set(drawn["input_ids"]["words"]) <= set(WORDS)
    assert drawn["attention_mask"]["kind"] == "row"


def test_a_vocabulary_takes_texts_too() -> None:
    service = service_of("words")
    assert service.facts()["texts"]
    rows = VOCABULARY.encode("who is the author ?")[0].tolist()
    asked = [service.answer({"classes": [0, 1], **each}) for each in ({"text": "Who is the author?"}, {"input": rows})]
    assert asked[0] == asked[1]


@pytest.mark.parametrize("text", ["", "  ", 3, ["who"], "x" * 30_000, "who is the author of this and that ?"])
def test_texts_that_do_not_fit_are_refused(text: Any) -> None:
    with pytest.raises(bhc.BhcError, match="text"):
        masked(dynamic=False).answer({"classes": [0, 1], "text": text})


@pytest.mark.parametrize("kind", ["row", "several", "image"])
def test_networks_of_other_inputs_read_no_texts(kind: str) -> None:
    service = service_of(kind)
    assert not service.facts()["texts"]
    with pytest.raises(bhc.BhcError, match="texts"):
        service.answer({"classes": [0, 1], "text": "who is the author ?"})


def test_without_the_package_numbers_are_drawn_and_texts_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    text = tokenizer().text
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    model = model_of(Reads(len(WORDS) + 5), texts(), labelled=False)
    model.model.vocabulary = Tokenizer(text)
    service = Service(model, "words")
    assert service.example_input(0)["drawing"]["words"][0].isdigit()
    with pytest.raises(bhc.BhcError, match="tokenizers") as caught:
        service.answer({"classes": [0, 1], "text": "who is the author ?"})
    assert "pip install" in caught.value.hint
