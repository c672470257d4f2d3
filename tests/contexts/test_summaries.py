import pytest
import torch

from bhc import contexts
from bhc.contexts import ClassSubsets, InputDomains, Joint, RandomSubsets, Spectrum
from bhc.errors import BhcError

SHAPE = (1, 1_000)


def space():
    return InputDomains(SHAPE, RandomSubsets((1, 2)), 32_768.0, summary=Spectrum(), num_sources=5)


def hum(pitch, count=20, seed=0):
    times = torch.arange(SHAPE[1]) / 8_000
    shifts = torch.rand(count, 1, 1, generator=torch.Generator().manual_seed(seed))
    return (9_000 * torch.sin(2 * torch.pi * (pitch * times + shifts))).to(torch.int16)


def test_a_voice_is_told_by_its_spectrum_and_not_by_when_it_speaks():
    low, high = (space().resolve({"domain": hum(pitch)}).domain for pitch in (300, 1_500))
    assert low.shape == (32,)
    assert low.argmax() < 10 < high.argmax()
    later = space().resolve({"domain": hum(300, seed=1)}).domain
    assert float((later - low).abs().max()) < 0.1 < float((low - high).abs().max())


def test_the_domain_of_drawn_examples_is_what_they_tell():
    batch = space().sample(3, 10, rng=torch.Generator().manual_seed(0))
    assert batch.source_rates.shape == (3, 5)
    torch.testing.assert_close(batch.source_rates.sum(1), torch.ones(3))
    x = torch.stack([hum(200), hum(500), hum(900)])
    observed = space().observe(batch, x)
    torch.testing.assert_close(observed.domain[1], space().resolve({"domain": x[1]}).domain)
    assert space().encode(observed)[0].shape == (3, 32)
    assert space().encode(batch)[0].shape == (3, 32)
    assert space().likelihoods()[0].num_numbers == 32


def test_silence_and_samples_between_minus_one_and_one_are_refused():
    sample = hum(300)
    sample[7] = 0
    for given, noun in ((sample, "recording 7"), (hum(300) / 32_768, "between -1 and 1")):
        with pytest.raises(BhcError, match=noun):
            space().resolve({"domain": given})


def test_beside_classes_a_speaker_who_is_not_told_is_anybody():
    joint = Joint(ClassSubsets(10), space(), missing=0.5)
    batch = joint.sample(200, 10, rng=torch.Generator().manual_seed(0))
    told = batch.domain_told
    assert 60 < int(told.sum()) < 140
    assert torch.equal(batch.source_rates[~told], torch.full((int((~told).sum()), 5), 0.2))
    assert (batch.source_rates[told] > 0).sum(1).max() <= 2


def test_an_unknown_summary():
    with pytest.raises(BhcError, match="kind of summary"):
        contexts.from_dict(space().to_dict() | {"summary": {"kind": "taste"}})
