"""Maps from embeddings to numbers, and where they start."""

import math

import pytest
import torch

from bhc.hypernet import Initial
from bhc.hypernet.generators import Constant, Map
from bhc.posterior import GroupNormalJeffreys

from .toys import seeded


def test_a_map_adds_a_product_with_the_embedding_to_its_offset():
    map_ = Map(torch.randn(3, 4, 2, generator=seeded()), 7, Initial(), rng=seeded(1))
    embedding = torch.randn(2, 7, generator=seeded(2))
    expected = map_.offset + torch.einsum("ne,ke->kn", map_.matrix, embedding).reshape(2, 3, 4, 2)
    torch.testing.assert_close(map_(embedding), expected)
    assert torch.equal(map_(torch.zeros(2, 7)), map_.offset.expand(2, 3, 4, 2))


def test_the_tensor_a_map_starts_from_is_copied():
    value = torch.zeros(2, 3)
    assert torch.equal(Constant(value)(torch.ones(5, 7)), value[None]), "a constant is the same in every context"
    for module in (Constant(value), Map(value, 7, Initial(), rng=seeded())):
        torch.nn.init.ones_(module.offset)
    assert torch.equal(value, torch.zeros(2, 3))


def test_the_paper_s_values():
    initial = Initial()
    map_ = initial.map(2000, 100, rng=seeded())
    assert map_.std().item() == pytest.approx(0.05, rel=0.01)
    assert map_.abs().max() <= 0.5 * math.sqrt(3 / 100)  # Kaiming's uniform numbers with a gain of a half
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
    assert [each.map(7, 0, rng=seeded()).shape for each in (Initial(), exact)] == [(7, 0)] * 2


def test_noise_starts_under_a_narrow_prior_and_as_published_under_a_wide_one():
    assert Initial().under(1.0) == Initial()
    narrow = Initial().under(0.004)
    assert narrow.logvar == pytest.approx(2 * math.log(0.004) - 3)
    assert narrow.map_gain == Initial().map_gain
