import pytest
import torch

from bhc.contexts import Context, ContextBatch
from bhc.data import DataSet, Split
from bhc.errors import BhcError
from bhc.training.batches import ClassIndex, blend


def test_examples_belong_to_their_context_and_carry_their_own_labels(digits: DataSet) -> None:
    index = ClassIndex(digits.train, 10)
    batch = ContextBatch.of([Context(classes=(3, 4)), Context(classes=(0, 8, 9))], 10)
    places, labels = index.draw(batch, 50, rng=torch.Generator().manual_seed(0))
    assert set(labels[:50].tolist()) == {3, 4}
    assert set(labels[50:].tolist()) == {0, 8, 9}
    assert torch.equal(digits.train.labels[places], labels)


def test_classes_are_drawn_at_the_given_rates(digits: DataSet) -> None:
    index = ClassIndex(digits.train, 10)
    batch = ContextBatch.of([Context(classes=(1, 2), appearance=(1.0, 0.25))], 10)
    _, labels = index.draw(batch, 20_000, rng=torch.Generator().manual_seed(0))
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
        ClassIndex(Split(digits.train.inputs[:0], digits.train.labels[:0]), 10)


def blended(part: float, *, contexts: int = 3, examples: int = 4, seed: int = 0) -> torch.Tensor:
    """Which share (K, B, B) each example has of each of its context; to other contexts it has none."""
    own = torch.eye(contexts * examples)
    (mixed,) = blend((own,), contexts, part=part, rng=torch.Generator().manual_seed(seed))
    shares = mixed.reshape(contexts, examples, contexts, examples)
    for one in range(contexts):
        for other in range(contexts):
            assert one == other or not shares[one, :, other].any()
    return torch.stack([shares[context, :, context] for context in range(contexts)])


def test_a_blend_is_of_two_examples_of_one_context_and_at_most_half_is_the_second() -> None:
    shares = blended(1.0, contexts=5, examples=200)
    torch.testing.assert_close(shares.sum(2), torch.ones(5, 200))
    assert ((shares > 0).sum(2) == 2).all()
    own = shares.diagonal(dim1=1, dim2=2)
    assert 0.5 <= own.min() < 0.51
    assert 0.99 < own.max() < 1
    assert own.mean().item() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("part", [0.0, 0.3, 1.0])
def test_such_a_part_of_the_examples_is_blended_and_the_others_are_as_they_were(part: float) -> None:
    own = blended(part, contexts=10, examples=200).diagonal(dim1=1, dim2=2)
    assert (own < 1).float().mean().item() == pytest.approx(part, abs=0.04 if 0 < part < 1 else 0)


def test_images_and_targets_are_blended_alike() -> None:
    values = torch.arange(1.0, 9)
    images, targets = values[:, None, None, None].expand(8, 1, 2, 3), torch.stack((values, -values), 1)
    images, targets = blend((images, targets), 2, part=0.7, rng=torch.Generator().manual_seed(0))
    assert images.shape == (8, 1, 2, 3)
    torch.testing.assert_close(targets, torch.stack((images[:, 0, 1, 2], -images[:, 0, 0, 0]), 1))
    assert not torch.equal(targets[:, 0], values)


def test_numbers_that_are_whole_become_parts() -> None:
    images = torch.tensor([[0], [255]], dtype=torch.uint8)
    images, told = blend((images, images > 0), 1, part=1.0, rng=torch.Generator().manual_seed(0))
    torch.testing.assert_close(images, 255 * told)
    assert 0 < told[0].item() < 0.5 < told[1].item() < 1


def test_equal_seeds_give_equal_blends() -> None:
    assert torch.equal(blended(0.5, seed=3), blended(0.5, seed=3))
    assert not torch.equal(blended(0.5, seed=3), blended(0.5, seed=4))


def test_an_example_by_itself_has_nothing_to_be_blended_with() -> None:
    assert torch.equal(blended(1.0, examples=1), torch.ones(3, 1, 1))
