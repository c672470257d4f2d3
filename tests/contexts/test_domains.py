import numpy as np
import pytest
import torch

from bhc.contexts import ConsecutivePairs, Context, ContextBatch, InputDomains, RandomSubsets
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


@pytest.mark.parametrize("shape", [(1, 4, 3), (6, 4, 3), (6, 1, 3, 4), (6, 2, 4, 3), (6, 1, 4, 3, 1), (), (12,)])
def test_a_sample_of_another_shape_is_refused(shape):
    with pytest.raises(BhcError) as caught:
        resolve(torch.zeros(shape))
    assert caught.value.problem == f"a domain sample of shape {shape}"
    assert caught.value.hint == "it must have shape (samples, 1, 4, 3)"


@pytest.mark.parametrize("count", [0, 1, 15])
def test_a_sample_that_says_too_little_is_refused(count):
    with pytest.raises(BhcError, match=f"a domain sample of {count} inputs says too little") as caught:
        resolve(pixels(count))
    assert "at least 16" in caught.value.hint


@pytest.mark.parametrize("count", [16, 40])
def test_a_context_has_the_size_of_its_sample(count):
    assert resolve(pixels(count)).domain_size == count


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_sample_with_a_number_that_is_not_finite_is_refused(value):
    sample = pixels().float()
    sample[2, 0, 1, 1] = value
    with pytest.raises(BhcError, match="contains NaN or infinity"):
        resolve(sample)


def test_a_sample_whose_mean_is_not_finite_is_refused():
    with pytest.raises(BhcError, match="contains NaN or infinity"):
        resolve(torch.full((16, 1, 4, 3), 1e300, dtype=torch.float64))


@pytest.mark.parametrize("sample", ["images.npy", {}, [["a"]], [[1], [2, 3]]], ids=str)
def test_a_sample_that_is_not_numbers_is_refused(sample):
    with pytest.raises(BhcError):
        resolve(sample)


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


def test_a_training_domain_is_the_mean_of_the_examples_drawn_for_it():
    batch = SPACE.sample(2, 10, rng=torch.Generator().manual_seed(0))
    x = pixels(10).reshape(2, 5, 1, 4, 3)
    observed = SPACE.observe(batch, x)
    torch.testing.assert_close(observed.domain, x.float().mean(1))
    assert torch.equal(observed.class_rates, batch.class_rates)


def test_where_no_domain_is_told_zero_is_encoded_which_no_domain_has():
    (encoded,) = SPACE.encode(ContextBatch.unconditioned(2, 10))
    assert torch.equal(encoded, torch.zeros(2, 1, 4, 3))
    told, untold = resolve(pixels()), Context()
    (encoded,) = SPACE.encode(ContextBatch.of([told, untold], 10))
    torch.testing.assert_close(encoded[0], pixels().float().mean(0) / 255)
    assert not encoded[1].any()


def test_what_is_forgotten_is_encoded_as_untold():
    batch = SPACE.sample(3, 10, rng=torch.Generator().manual_seed(0))
    x = pixels(15).reshape(3, 5, 1, 4, 3)
    (encoded,) = SPACE.encode(SPACE.observe(SPACE.forget(batch, torch.tensor([True, False, True])), x))
    assert encoded.flatten(1).any(1).tolist() == [True, False, True]
    torch.testing.assert_close(encoded[2], x[2].float().mean(0) / 255)


def test_pairs_are_the_default():
    assert SPACE.sampler == ConsecutivePairs()
