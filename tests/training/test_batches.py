from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bhc
from bhc.contexts import Context, ContextBatch, Spectrum
from bhc.data import DataSet, Split
from bhc.errors import BhcError
from bhc.training import Silent
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


# Contexts that are sources: examples of some speakers, of all classes.
SAMPLES = 3_000


def split(count: int = 120, classes: int = 3, sources: int = 2) -> Split:
    """A hum for each class, twice as loud for the second speaker."""
    labels, speakers = torch.arange(count) % classes, (torch.arange(count) // classes) % sources
    times = torch.arange(SAMPLES) / 8_000
    pitch = (300 * (1 + labels))[:, None]
    hum = 4_000 * (1 + speakers)[:, None] * torch.sin(2 * torch.pi * pitch * times)
    noise = 200 * torch.randn(count, SAMPLES, generator=torch.Generator().manual_seed(0))
    return Split((hum + noise).to(torch.int16).unsqueeze(1), labels, speakers)


def test_examples_are_drawn_of_the_sources_and_classes_that_are_asked_for() -> None:
    data = split()
    index = ClassIndex(data, 3)
    batch = ContextBatch.unconditioned(2, 3)
    rates = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    classes = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    batch = replace(batch, source_rates=rates, class_rates=classes)
    places, labels = index.draw(batch, 200, rng=torch.Generator().manual_seed(0))
    assert torch.equal(data.labels[places], labels)
    loud = data.inputs[places].float().abs().amax((1, 2)) > 6_000
    assert loud[:200].all()
    assert 70 < int(loud[200:].sum()) < 130
    assert set(labels[:200].tolist()) == {0, 1}
    assert set(labels[200:].tolist()) == {2}
    assert index.context_sizes(batch).tolist() == [40.0, 40.0]


def test_sources_that_are_not_known_are_refused() -> None:
    data = split()
    batch = replace(ContextBatch.unconditioned(1, 3), source_rates=torch.ones(1, 1))
    with pytest.raises(BhcError, match="where its examples are from"):
        ClassIndex(Split(data.inputs, data.labels), 3).draw(batch, 4, rng=torch.Generator().manual_seed(0))


def test_a_model_for_speakers_is_trained_saved_and_asked(tmp_path: Path) -> None:
    data = split()
    net = bhc.models.build("speech-cnn", image_shape=(1, SAMPLES), num_classes=3, rng=torch.Generator().manual_seed(0))
    space = bhc.InputDomains((1, SAMPLES), bhc.RandomSubsets((1, 2)), 32_768.0, summary=Spectrum(), num_sources=2)
    model = bhc.wrap(net, space, example_input=data.inputs[:1])
    recipe = (bhc.Learn(steps=3, contexts=2, examples=8), bhc.Consolidate(steps=2, contexts=2, examples=8))
    bhc.fit(model, data, data, recipe=recipe, run=tmp_path / "run", progress=Silent())
    model = bhc.load(tmp_path / "run")
    assert model.model.validation is not None
    assert model.model.validation.sources is not None
    assert model.model.validation.inputs.dtype == torch.int16
    small = model.compress(domain=data.from_sources([1]).inputs[:20], threshold=0.0)
    assert small.report.domain_distance is not None
    assert small.report.domain_distance < 1.25
    assert small.predict(data.inputs[:4]).probabilities.shape == (4, 3)
