import math

import pytest
import torch
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Normal

from bhc.contexts import (
    Bernoulli,
    Budgets,
    ClassSubsets,
    Gaussian,
    InputDomains,
    Joint,
    PooledGaussian,
    RandomSubsets,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_zeros_and_ones_cost_what_their_probabilities_say():
    logits, part = torch.randn(4, 5, generator=seeded()), (torch.rand(4, 5, generator=seeded(1)) > 0.5).float()
    expected = -TorchBernoulli(logits=logits).log_prob(part).sum(1)
    torch.testing.assert_close(Bernoulli(5).nll(logits, part), expected)


def test_numbers_cost_what_a_normal_density_says_but_for_its_constant():
    means, part = torch.randn(4, 5, generator=seeded()), torch.randn(4, 5, generator=seeded(1))
    constant = 5 * (math.log(0.3) + 0.5 * math.log(2 * math.pi))
    expected = -Normal(means, 0.3).log_prob(part).sum(1) - constant
    torch.testing.assert_close(Gaussian(5, std=0.3).nll(means, part), expected)


def test_an_image_is_told_by_the_means_of_its_regions():
    image = torch.randn(2, 3, 8, 8, generator=seeded())
    regions = image.reshape(2, 3, 4, 2, 4, 2).mean((3, 5)).flatten(1)
    likelihood = PooledGaussian(3, side=4, std=0.1)
    torch.testing.assert_close(likelihood.nll(regions, image), torch.zeros(2))
    torch.testing.assert_close(likelihood.nll(regions + 0.1, image), torch.full((2,), 0.5 * 48))


@pytest.mark.parametrize(
    ("space", "image_shape"),
    [
        (ClassSubsets(10, RandomSubsets((2, 3))), (1, 2, 2)),
        (ClassSubsets(10, RandomSubsets((2, 3)), concentration=1.0), (1, 2, 2)),
        (InputDomains((3, 9, 7)), (3, 9, 7)),
        (Budgets(), (1, 2, 2)),
        (Joint(Budgets(), InputDomains((1, 8, 8)), ClassSubsets(10)), (1, 8, 8)),
    ],
    ids=["classes", "rates", "domain", "budget", "joint"],
)
def test_every_encoded_part_has_a_likelihood_that_prefers_what_is_there(space, image_shape):
    batch = space.sample(6, 10, rng=seeded())
    batch = space.observe(batch, 255 * torch.rand(6, 2, *image_shape, generator=seeded(1)))
    for likelihood, part in zip(space.likelihoods(), space.encode(batch), strict=True):
        numbers = torch.zeros(6, likelihood.num_numbers, requires_grad=True)
        told = likelihood.nll(numbers, part)
        assert told.shape == (6,)
        optimizer = torch.optim.Adam([numbers], lr=0.1)
        for _ in range(100):
            optimizer.zero_grad()
            likelihood.nll(numbers, part).sum().backward()
            optimizer.step()
        learnt = likelihood.nll(numbers, part)
        assert (learnt <= told).all()
        assert learnt.sum() < 0.8 * told.sum()
        assert likelihood.nll(numbers, part.roll(1, 0)).sum() > learnt.sum()
