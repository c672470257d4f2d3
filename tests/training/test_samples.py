"""What a run keeps of a user's data: no more than there is room for."""

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.errors import BhcError
from bhc.training import Silent, batches
from tests.tasks.own import DIGITS, SIZE, Segmentation, digits_on_noise

RECIPE = (bhc.Learn(steps=2, contexts=2, examples=4), bhc.Consolidate(steps=2, contexts=2, examples=4))


def fitted(validation: tuple[Tensor, Tensor]) -> bhc.Compressor:
    train, _ = digits_on_noise()
    net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1 + DIGITS, 3, padding=1))
    model = bhc.wrap(net, bhc.ClassSubsets(DIGITS), example_input=train[0][:1], task=Segmentation())
    return bhc.fit(model, train, validation, recipe=RECIPE, progress=Silent())


def test_maps_and_answers_to_them_need_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = SIZE * SIZE
    one = 4 * pixels + 8 * pixels + 4 * (1 + DIGITS) * pixels + 8  # a picture, its map, the answers to it, its class
    monkeypatch.setattr(batches, "MOST_BYTES", 20 * one + one // 2)
    model = fitted(digits_on_noise()[1]).model
    sample, answers = model.validation, model.base_logits
    assert sample is not None
    assert answers is not None
    assert len(sample) == 20
    assert sample.known_labels.bincount().tolist() == [5] * DIGITS
    tensors = (sample.tensor, sample.wanted, sample.known_labels, answers)
    assert sum(tensor.nbytes for tensor in tensors) <= batches.MOST_BYTES


def test_floats_are_rounded_only_where_a_task_has_answers_that_can_stay_the_same() -> None:
    """A map has no one answer: nothing would say whether rounding did harm."""
    _, (pictures, maps) = digits_on_noise()
    pictures = pictures + 1e-5  # no number of 16 bits
    sample = fitted((pictures, maps)).model.validation
    assert sample is not None
    assert torch.equal(sample.tensor, pictures)


NET = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
ROWS, LABELS = [[float(row + column) for column in range(4)] for row in range(30)], [row % 3 for row in range(30)]


@pytest.mark.parametrize(
    "given",
    [
        (ROWS, LABELS),
        list(zip(ROWS, LABELS, strict=True)),
        [{"x": x, "label": y} for x, y in zip(ROWS, LABELS, strict=True)],
    ],
    ids=["lists", "pairs", "dicts"],
)
def test_lists_of_numbers_are_data(given: object) -> None:
    model = bhc.wrap(NET, bhc.ClassSubsets(3), example_input=torch.zeros(1, 4))
    sample = bhc.fit(model, given, given, recipe=RECIPE, progress=Silent()).model.validation
    assert sample is not None
    assert sample.tensor.tolist() == ROWS
    assert sample.known_labels.tolist() == LABELS


def test_items_that_cannot_be_put_together_are_told_in_few_words() -> None:
    model = bhc.wrap(NET, bhc.ClassSubsets(3), example_input=torch.zeros(1, 4))
    items = [([0.0] * 400, 0), ([0.0] * 500, 1)]
    with pytest.raises(BhcError, match=r"item 1 .* \(list of 500, int\), item 0 is \(list of 400, int\)"):
        bhc.fit(model, items, items, recipe=RECIPE, progress=Silent())
