"""Texts of different lengths, as a data set of dicts that is read while the run goes on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import bhc
from bhc.errors import BhcError
from bhc.training import Silent, batches

WORDS, CLASSES, LONGEST = 50, 3, 11
RECIPE = (bhc.Learn(steps=3, contexts=2, examples=4), bhc.Consolidate(steps=2, contexts=2, examples=4))


class MeanOfWords(nn.Module):
    """What a text says is the mean of its words; those that a mask takes away count nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.classify = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        there = mask[:, :, None].float()
        return self.classify((self.embed(ids) * there).sum(1) / there.sum(1))


def item(place: int, *, length: int | None = None) -> dict[str, Any]:
    """The longest texts come late: batches of those before are shorter."""
    length = length or 2 + place * (LONGEST - 2) // 119
    ids = [2 + (place + step) % (WORDS - 2) for step in range(length)]
    return {"ids": ids, "mask": [1] * length, "label": place % CLASSES}


ITEMS = [item(place) for place in range(120)]
PAD = bhc.data.PadTexts({"ids": 1})


def wrapped() -> bhc.Compressor:
    example = {name: torch.tensor([ITEMS[-1][name]]) for name in ("ids", "mask")}
    return bhc.wrap(MeanOfWords().eval(), bhc.ClassSubsets(CLASSES), example_input=example, dynamic_axes=(1,))


def fitted(train: Any, validation: Any = ITEMS, **options: Any) -> bhc.Compressor:
    return bhc.fit(wrapped(), train, validation, recipe=RECIPE, progress=Silent(), **options)


def own_collate(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    columns = {name: [torch.as_tensor(each[name]) for each in items] for name in items[0]}
    return {name: torch.stack(own) if name == "label" else pad_sequence(own, True) for name, own in columns.items()}


@pytest.mark.parametrize(
    ("train", "options", "padding"),
    [
        (ITEMS, {"collate": PAD}, 1),
        (ITEMS, {"collate": PAD, "workers": 1}, 1),
        (ITEMS, {"collate": own_collate}, 0),
    ],
    ids=["ours", "workers", "own"],
)
def test_what_a_run_keeps_of_texts_has_one_length(
    train: Any, options: dict[str, Any], padding: int, tmp_path: Path
) -> None:
    model = fitted(train, run=tmp_path / "run", **options)
    for sample in (model.model.validation, bhc.load(tmp_path / "run").model.validation):
        assert sample is not None
        ids, mask = sample.inputs
        assert ids.shape == mask.shape == (len(ITEMS), LONGEST)
        for row, there, own in zip(ids.tolist(), mask.tolist(), ITEMS, strict=True):
            missing = LONGEST - len(own["ids"])
            assert row == own["ids"] + [padding] * missing
            assert there == own["mask"] + [0] * missing


def test_a_loader_brings_its_collate_along() -> None:
    loader = DataLoader(ITEMS, batch_size=5, collate_fn=PAD)  # type: ignore[arg-type]
    sample = fitted(loader, loader).model.validation
    assert sample is not None
    assert sample.inputs[0].shape == (len(ITEMS), LONGEST)


def test_an_emitted_network_reads_texts_of_any_length(tmp_path: Path) -> None:
    small = fitted(ITEMS, collate=PAD).compress(classes=[0, 2])
    small.save(tmp_path / "small.bhc").to_onnx(tmp_path / "small.onnx")
    for items in ([item(0, length=20), item(7)], [item(3)]):
        x = {name: each for name, each in PAD(items).items() if name != "label"}
        assert torch.equal(bhc.read(tmp_path / "small.bhc").outputs(x), small.outputs(x))
        taken = small.network.signature.taken(x)
        deployed = bhc.open_deployed(tmp_path / "small.onnx").logits(taken)
        torch.testing.assert_close(deployed, small.outputs(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_text_that_is_too_long_is_named_by_its_number_in_the_data_set(workers: int) -> None:
    items = [*ITEMS[:100], item(100, length=20), *ITEMS[101:]]
    collate = bhc.data.PadTexts(length=LONGEST)
    with pytest.raises(
        BhcError, match="item 100 of the data set: ids has 20 numbers, and there is room for 11"
    ) as error:
        fitted(ITEMS, items, collate=collate, workers=workers)
    assert "truncate" in error.value.hint
    assert fitted(ITEMS, items, collate=bhc.data.PadTexts(length=LONGEST, truncate=True)).model.validation is not None


def test_without_a_collate_it_is_said_which_one_there_is() -> None:
    with pytest.raises(BhcError, match="item 1 of the data set is ids") as error:
        fitted(ITEMS[13:])
    assert "PadTexts" in error.value.hint


def in_memory(highest: int) -> tuple[dict[str, Tensor], Tensor]:
    ids = torch.arange(60).reshape(30, 2) % highest
    return {"ids": ids, "mask": torch.ones_like(ids)}, torch.arange(30) % CLASSES


def test_a_number_that_stands_for_no_word_is_refused_wherever_it_comes_from() -> None:
    assert fitted(in_memory(WORDS), in_memory(WORDS)).model.validation is not None
    with pytest.raises(BhcError, match=r"train_set: the number 50 stands for no word"):
        fitted(in_memory(WORDS + 1))
    wrong = [*ITEMS[:70], {"ids": [WORDS], "mask": [1], "label": 0}, *ITEMS[71:]]
    with pytest.raises(BhcError, match=r"validation_set: .* 50 stands for no word; .* from items 64"):
        fitted(ITEMS, wrong, collate=PAD)
    x, _ = in_memory(WORDS + 1)
    with pytest.raises(BhcError, match="50 stands for no word"):
        wrapped().compress(classes=[0, 1]).predict(x)


def test_a_sample_of_texts_has_room_for_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first text tells little of how long others are."""
    room = 30 * (2 * 8 * LONGEST + 4 * CLASSES + 8)  # two int64 a word, a logit a class, a label
    monkeypatch.setattr(batches, "MOST_BYTES", room)
    sample = fitted(ITEMS, collate=PAD).model.validation
    assert sample is not None
    assert len(sample) == 30
    assert sample.known_labels.bincount().tolist() == [10, 10, 10]
