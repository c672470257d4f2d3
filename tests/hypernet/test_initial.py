import math

import pytest
import torch

from bhc.hypernet import Initial
from bhc.hypernet.generators import kaiming_uniform
from bhc.posterior import GroupNormalJeffreys

from .toys import seeded


def test_maps_are_kaiming_uniform_with_the_gain():
    given = kaiming_uniform(2000, 50, gain=0.5, rng=seeded())
    bound = 0.5 * math.sqrt(3 / 50)
    assert given.abs().max() <= bound
    assert given.std().item() == pytest.approx(0.5 / math.sqrt(50), rel=0.01)
    assert given.mean().abs() < 5 * bound / math.sqrt(given.numel())


def test_the_paper_s_values():
    initial = Initial()
    assert initial.map(2000, 100, rng=seeded()).std().item() == pytest.approx(0.05, rel=0.01)
    logvar = initial.log_variance(100, 200, rng=seeded())
    assert logvar.shape == (100, 200)
    assert logvar.mean().item() == pytest.approx(-9, abs=1e-3)
    assert logvar.var().item() == pytest.approx(1e-4, rel=0.05)
    scales = GroupNormalJeffreys().initial_means(20_000, initial.scale_std, rng=seeded())
    assert scales.mean().item() == pytest.approx(1, abs=1e-5)
    assert scales.double().var().item() == pytest.approx(1e-8, rel=0.05)


def test_an_exact_start_adds_nothing():
    exact = Initial.exact()
    assert torch.equal(exact.map(3, 4, rng=seeded()), torch.zeros(3, 4))
    assert torch.equal(GroupNormalJeffreys().initial_means(5, exact.scale_std, rng=seeded()), torch.ones(5))


@pytest.mark.parametrize("initial", [Initial(), Initial.exact()])
def test_a_map_from_an_embedding_of_no_numbers_is_empty(initial):
    assert initial.map(7, 0, rng=seeded()).shape == (7, 0)


def test_noise_starts_under_a_narrow_prior_and_as_published_under_a_wide_one():
    assert Initial().under(1.0) == Initial()
    narrow = Initial().under(0.004)
    assert narrow.logvar == pytest.approx(2 * math.log(0.004) - 3)
    assert narrow.map_gain == Initial().map_gain
