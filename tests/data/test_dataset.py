import pytest
import torch

from bhc.data import DataSet, Split
from bhc.errors import BhcError


def split(labels, *, size=2):
    images = torch.arange(len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, size, size)
    return Split(images, torch.tensor(labels, dtype=torch.int64))


def test_restricted_to_keeps_order_and_labels():
    part = split([3, 1, 0, 3, 2, 1]).restricted_to((1, 3, 3))
    assert part.labels.tolist() == [3, 1, 3, 1]
    assert part.inputs[:, 0, 0, 0].tolist() == [0, 1, 3, 5]


def test_restricted_to_every_class_copies_nothing():
    whole = split([2, 0, 1])
    assert whole.restricted_to(range(3)) is whole


@pytest.mark.parametrize("classes", [(), (1, 7), (-1,)])
def test_restricted_to_classes_that_are_not_there(classes):
    with pytest.raises(BhcError, match=r"\[0, 1\]"):
        split([0, 1, 1]).restricted_to(classes)


PIXELS = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
NUMBERS = torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("inputs", "labels", "why"),
    [
        (torch.tensor(1.0), NUMBERS, "a tensor of examples"),
        ((), NUMBERS, "inputs"),
        ((PIXELS, PIXELS[:2].float()), NUMBERS, r"2 inputs\[1\]"),
        (PIXELS, NUMBERS[:, None], r"\(3, 1\) int64"),
        (PIXELS, NUMBERS.to(torch.uint8), r"\(3,\) uint8"),
        (PIXELS, NUMBERS[:2], "2 labels"),
    ],
)
def test_examples_and_labels_of_another_kind(inputs, labels, why):
    with pytest.raises(BhcError, match=why):
        Split(inputs, labels)


def test_images_held_out_are_the_last_and_gone_from_training():
    whole = DataSet("toy", ("a", "b", "c"), split([0, 1, 2, 1, 0]), split([0]), split([1]))
    rest, held = whole.held_out(2)
    assert rest.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert held.inputs[:, 0, 0, 0].tolist() == [3, 4]
    assert held.labels.tolist() == [1, 0]
    assert rest.validation is whole.validation
    assert rest.test is whole.test


@pytest.mark.parametrize("count", [0, -1, 3, 4])
def test_some_images_must_be_held_out_and_some_left(count):
    whole = DataSet("toy", ("a", "b"), split([0, 1, 1]), split([0]), split([1]))
    with pytest.raises(BhcError, match="3 training images") as caught:
        whole.held_out(count)
    assert "1 to 2" in caught.value.hint


def test_splits_of_different_shapes():
    with pytest.raises(BhcError, match=r"\(1, 3, 3\)"):
        DataSet("some", ("a",), train=split([0]), validation=split([0]), test=split([0], size=3))


@pytest.mark.parametrize("label", [-1, 2])
def test_labels_without_a_class_name(label):
    with pytest.raises(BhcError, match="validation labels"):
        DataSet("some", ("a", "b"), train=split([0, 1]), validation=split([label]), test=split([0]))


def of_speakers(sources):
    count = len(sources)
    images = torch.arange(count, dtype=torch.int16).reshape(-1, 1, 1).expand(-1, 1, 4)
    return Split(images, torch.arange(count) % 2, torch.tensor(sources))


def test_examples_from_some_sources():
    split = of_speakers([0, 1, 2, 1])
    assert split.from_sources([1]).inputs[:, 0, 0].tolist() == [1, 3]
    assert split.from_sources([2, 0]).sources.tolist() == [0, 2]
    with pytest.raises(BhcError, match=r"\[5\].*\[0, 1, 2\]"):
        split.from_sources([5])
    with pytest.raises(BhcError, match="sources"):
        Split(split.inputs, split.labels).from_sources([0])


def test_a_source_is_left_out_of_all_splits():
    names = ("ann", "bob", "cy")
    data = DataSet("voices", ("a", "b"), *(of_speakers([0, 1, 2, 1]) for _ in range(3)), source_names=names)
    rest, left_out = data.without_source("bob")
    assert rest.name == "voices-without-bob"
    assert rest.source_names == ("ann", "cy")
    for split in (rest.train, rest.validation, rest.test):
        assert split.sources.tolist() == [0, 1]
        assert split.inputs[:, 0, 0].tolist() == [0, 2]
    assert left_out.inputs[:, 0, 0].tolist() == [1, 3] * 3
    with pytest.raises(BhcError, match="'dan'") as caught:
        data.without_source("dan")
    assert "ann, bob, cy" in caught.value.hint
