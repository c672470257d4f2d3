import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bhc.graph import find_layers
from bhc.posterior import (
    BayesianChain,
    FreePosterior,
    FreshNoise,
    GroupNormalJeffreys,
    InputOutputNormalJeffreys,
    kl,
)

from .toys import small_chain, small_layers

FAMILIES = [GroupNormalJeffreys(), InputOutputNormalJeffreys()]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def size(scales):
    return 0 if scales is None else scales.shape[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_starts_at_the_weights_of_the_network_with_scales_near_one(family):
    layers = small_layers(small_chain())
    for layer, belief in zip(layers, FreePosterior(layers, family, generator=seeded()).posterior(), strict=True):
        mean = belief.mean
        assert torch.equal(mean.weight.base[0], layer.module.weight)
        assert torch.equal(mean.bias[0], layer.module.bias)
        assert (size(mean.in_scale), size(mean.out_scale)) == family.num_scales(layer)
        for scales in (mean.in_scale, mean.out_scale):
            assert scales is None or (scales - 1).abs().max() < 1e-3
        torch.testing.assert_close(belief.weight_logvar, torch.full_like(belief.weight_logvar, -9), atol=0.1, rtol=0)


def test_a_layer_without_bias_stays_without():
    layers = find_layers(nn.Sequential(nn.Linear(3, 2, bias=False)), torch.zeros(1, 3))
    (belief,) = FreePosterior(layers, FAMILIES[0], generator=seeded()).posterior()
    assert belief.mean.bias is None


def test_the_network_it_starts_from_is_left_alone():
    chain = small_chain()
    free = FreePosterior(small_layers(chain), FAMILIES[1], generator=seeded())
    with torch.no_grad():
        for parameter in free.parameters():
            parameter.add_(1.0)
    for given, expected in zip(chain.parameters(), small_chain().parameters(), strict=True):
        assert torch.equal(given, expected)


def test_equal_seeds_give_equal_bits():
    layers = small_layers(small_chain())
    first, second = (FreePosterior(layers, FAMILIES[1], generator=seeded(3)) for _ in range(2))
    other = FreePosterior(layers, FAMILIES[1], generator=seeded(4))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_steps_without_a_hypernetwork_lower_the_loss(family):
    chain = small_chain()
    layers = small_layers(chain)
    free, bayesian = FreePosterior(layers, family, generator=seeded()), BayesianChain(chain, layers)
    x = torch.randn(200, 1, 6, 6, generator=seeded(1))
    y = small_chain(seed=9)(x).argmax(1)
    optimiser = torch.optim.Adam(free.parameters(), lr=1e-2)

    def loss(seed):
        beliefs = free.posterior()
        logits = bayesian.noisy(x, beliefs, noise=FreshNoise(seeded(seed)))
        return F.cross_entropy(logits, y) + kl(beliefs)[0] / 10_000

    before = loss(0).item()
    for step in range(40):
        optimiser.zero_grad()
        loss(step).backward()
        optimiser.step()
    assert loss(0).item() < 0.7 * before
