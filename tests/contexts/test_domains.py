import numpy as np
import pytest
import torch

from bhc.contexts import (
    ClassSubsets,
    ConsecutivePairs,
    ContextBatch,
    InputDomains,
    Joint,
    RandomSubsets,
    SampleMean,
    Spectrum,
)
from bhc.errors import BhcError

SPACE = InputDomains((1, 4, 3))


def resolve(sample):
    return SPACE.resolve({"domain": sample})


def pixels(count=20):
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 1, 4, 3), generator=rng, dtype=torch.uint8)


def test_a_domain_is_told_by_the_mean_of_its_sample():
    sample = pixels()
    expected = sample.double().mean(0).float()
    for given in (sample, sample.numpy(), sample.tolist(), sample.numpy().astype(np.float64)):
        torch.testing.assert_close(resolve(given).domain, expected)
        assert resolve(given).domain_size == 20
    assert resolve(pixels(16)).domain_size == 16


def spoiled(value):
    sample = pixels().float()
    sample[2, 0, 1, 1] = value
    return sample


@pytest.mark.parametrize(
    ("sample", "problem", "hint"),
    [
        *(
            (torch.zeros(shape), f"a domain sample of shape {shape}", "it must have shape (samples, 1, 4, 3)")
            for shape in ((1, 4, 3), (6, 4, 3), (6, 1, 3, 4), (6, 2, 4, 3), (6, 1, 4, 3, 1), (), (12,))
        ),
        *((pixels(count), f"a domain sample of {count} inputs", "at least 16") for count in (0, 1, 15)),
        *((spoiled(float(value)), "contains NaN or infinity", "remove") for value in ("nan", "inf", "-inf")),
        # finite numbers whose mean is not
        (torch.full((16, 1, 4, 3), 1e300, dtype=torch.float64), "contains NaN or infinity", "remove"),
        *((sample, "not an array of numbers", "") for sample in ({}, [["a"]], [[1], [2, 3]])),
        ("images.npy", "neither", "give an array"),
        (pixels() / 255, "lies between 0 and 1", "up to 255"),
        (SampleMean(torch.zeros(1, 4, 3), 15), "the mean of 15 inputs", "16 or more"),
        (SampleMean(torch.zeros(1, 3, 4), 20), "the mean of 20 inputs of shape (1, 3, 4)", "(1, 4, 3)"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_sample_that_tells_no_domain_is_refused(sample, problem, hint):
    with pytest.raises(BhcError) as caught:
        resolve(sample)
    assert problem in caught.value.problem
    assert hint in caught.value.hint


def test_the_mean_of_a_sample_may_be_given_instead():
    context = resolve(SampleMean(torch.ones(1, 4, 3), 16))
    assert torch.equal(context.domain, torch.ones(1, 4, 3))
    assert context.domain_size == 16


def test_means_are_encoded_on_a_scale_of_one():
    batch = ContextBatch.of([resolve(torch.full((16, 1, 4, 3), 255.0)), resolve(pixels())], 10)
    (encoded,) = SPACE.encode(batch)
    assert encoded.shape == (2, 1, 4, 3)
    torch.testing.assert_close(encoded[0], torch.ones(1, 4, 3))
    torch.testing.assert_close(encoded[1], pixels().float().mean(0) / 255)


def test_a_training_domain_mixes_the_sampler_s_classes_and_keeps_all_outputs():
    space = InputDomains((1, 4, 3), RandomSubsets((3,)))
    batch = space.sample(50, 10, rng=torch.Generator().manual_seed(0))
    assert batch.outputs.all()
    assert (batch.class_rates > 0).sum(1).unique().tolist() == [3]
    torch.testing.assert_close(batch.class_rates.sum(1), torch.ones(50))
    assert batch.domain is None


def test_pairs_are_the_default():
    assert SPACE.sampler == ConsecutivePairs()


# Voices are told by their spectra.
SHAPE = (1, 1_000)
SPECTRA = InputDomains(SHAPE, RandomSubsets((1, 2)), 32_768.0, summary=Spectrum(), num_sources=5)


def hum(pitch, count=20, seed=0):
    times = torch.arange(SHAPE[1]) / 8_000
    shifts = torch.rand(count, 1, 1, generator=torch.Generator().manual_seed(seed))
    return (9_000 * torch.sin(2 * torch.pi * (pitch * times + shifts))).to(torch.int16)


def test_a_voice_is_told_by_its_spectrum_and_not_by_when_it_speaks():
    low, high = (SPECTRA.resolve({"domain": hum(pitch)}).domain for pitch in (300, 1_500))
    assert low.shape == (32,)
    assert low.argmax() < 10 < high.argmax()
    later = SPECTRA.resolve({"domain": hum(300, seed=1)}).domain
    assert float((later - low).abs().max()) < 0.1 < float((low - high).abs().max())


def test_the_domain_of_drawn_examples_is_what_they_tell():
    batch = SPECTRA.sample(3, 10, rng=torch.Generator().manual_seed(0))
    assert batch.source_rates.shape == (3, 5)
    torch.testing.assert_close(batch.source_rates.sum(1), torch.ones(3))
    x = torch.stack([hum(200), hum(500), hum(900)])
    observed = SPECTRA.observe(batch, x)
    torch.testing.assert_close(observed.domain[1], SPECTRA.resolve({"domain": x[1]}).domain)
    assert SPECTRA.encode(observed)[0].shape == (3, 32)
    assert SPECTRA.encode(batch)[0].shape == (3, 32)
    assert SPECTRA.likelihoods()[0].num_numbers == 32


def test_silence_and_samples_between_minus_one_and_one_are_refused():
    sample = hum(300)
    sample[7] = 0
    for given, noun in ((sample, "recording 7"), (hum(300) / 32_768, "between -1 and 1")):
        with pytest.raises(BhcError, match=noun):
            SPECTRA.resolve({"domain": given})


def test_beside_classes_a_speaker_who_is_not_told_is_anybody():
    joint = Joint(ClassSubsets(10), SPECTRA, missing=0.5)
    batch = joint.sample(200, 10, rng=torch.Generator().manual_seed(0))
    told = batch.domain_told
    assert 60 < int(told.sum()) < 140
    assert torch.equal(batch.source_rates[~told], torch.full((int((~told).sum()), 5), 0.2))
    assert (batch.source_rates[told] > 0).sum(1).max() <= 2
