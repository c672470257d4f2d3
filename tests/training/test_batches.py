import pytest
import torch

from bhc.contexts import Context, ContextBatch
from bhc.data import DataSet, Split
from bhc.errors import BhcError
from bhc.training.batches import ClassIndex


def test_examples_belong_to_their_context_and_carry_their_own_labels(digits: DataSet) -> None:
    index = ClassIndex(digits.train, 10)
    batch = ContextBatch.of([Context(classes=(3, 4)), Context(classes=(0, 8, 9))], 10)
    images, labels = index.draw(batch, 50, generator=torch.Generator().manual_seed(0))
    assert set(labels[:50].tolist()) == {3, 4}
    assert set(labels[50:].tolist()) == {0, 8, 9}
    for image, label in zip(images, labels, strict=True):
        same = (digits.train.images == image).flatten(1).all(1)
        assert label in digits.train.labels[same]


def test_classes_are_drawn_at_the_given_rates(digits: DataSet) -> None:
    index = ClassIndex(digits.train, 10)
    batch = ContextBatch.of([Context(classes=(1, 2), appearance=(1.0, 0.25))], 10)
    _, labels = index.draw(batch, 20_000, generator=torch.Generator().manual_seed(0))
    assert (labels == 1).float().mean().item() == pytest.approx(0.8, abs=0.02)


def test_context_sizes_count_the_training_examples_of_the_classes(digits: DataSet) -> None:
    index = ClassIndex(digits.train, 10)
    batch = ContextBatch.of([Context(classes=(1, 2))], 10)
    expected = ((digits.train.labels == 1) | (digits.train.labels == 2)).sum()
    assert index.context_sizes(batch).item() == expected


def test_a_class_without_examples_is_refused(digits: DataSet) -> None:
    with pytest.raises(BhcError, match="no example of class 0"):
        ClassIndex(digits.train.restricted_to(range(1, 10)), 10)


def test_labels_beyond_the_network_are_refused(digits: DataSet) -> None:
    with pytest.raises(BhcError, match="labels from 0 to 4"):
        ClassIndex(digits.train, 5)
    with pytest.raises(BhcError, match="non-empty"):
        ClassIndex(Split(digits.train.images[:0], digits.train.labels[:0]), 10)
