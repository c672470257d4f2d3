"""Contexts that are sources: examples of some speakers, of all classes."""

from dataclasses import replace

import pytest
import torch

import bhc
from bhc.contexts import ContextBatch, Spectrum
from bhc.data import Split
from bhc.training import Silent
from bhc.training.batches import ClassIndex

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
    with pytest.raises(bhc.BhcError, match="does not say where its examples are from"):
        ClassIndex(Split(data.inputs, data.labels), 3).draw(batch, 4, rng=torch.Generator().manual_seed(0))


def test_a_model_for_speakers_is_trained_saved_and_asked(tmp_path) -> None:  # type: ignore[no-untyped-def]
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
