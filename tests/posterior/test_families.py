import math
from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck

from bhc.posterior import (
    FAMILIES,
    GroupHorseshoe,
    GroupNormalJeffreys,
    InputOutputNormalJeffreys,
    LogNormalScales,
    NormalScales,
    SparseVariationalDropout,
    WeightMean,
    kl_gamma,
    kl_inverse_gamma,
    kl_scales,
    kl_weights,
    log_dropout,
)

from .toys import CONVOLUTION, LINEAR, WEIGHTS, normals, posterior_of, random_posterior

TWO_GROUPS = InputOutputNormalJeffreys()
HORSESHOE = GroupHorseshoe()


def slow_kl(posteriors):
    """Each layer's weights multiplied out, each group of scales on its own."""
    total = 0
    for layer in posteriors:
        squared_norm = layer.mean.weight.dense().square().flatten(1).sum(1)
        total = total + kl_weights(squared_norm, layer.weight_logvar, layer.prior_std)
        for scales in (layer.in_scale, layer.out_scale):
            total = total + (0 if scales is None else kl_scales(scales.log_dropout))
    return total


@pytest.mark.parametrize("weights", WEIGHTS)
def test_divergence_of_a_network_is_the_sum_over_weights_and_scales(weights):
    layers = [random_posterior(shape, weights=weights, seed=seed) for seed, shape in enumerate((CONVOLUTION, LINEAR))]
    given = TWO_GROUPS.kl(layers)
    assert given.shape == (2,)
    torch.testing.assert_close(given, slow_kl(layers))


def test_divergence_of_a_shared_mean_with_variances_of_each_context_and_of_absent_scales():
    shared, own = random_posterior(LINEAR, weights="shared"), random_posterior(LINEAR)
    layer = replace(shared, weight_logvar=own.weight_logvar)
    torch.testing.assert_close(TWO_GROUPS.kl([layer]), slow_kl([layer]))
    one = replace(own, in_scale=None)
    torch.testing.assert_close(GroupNormalJeffreys().kl([one]), slow_kl([one]))
    assert (GroupNormalJeffreys().kl([one]) != TWO_GROUPS.kl([own])).all()


@pytest.mark.parametrize("name", ["gnj", "io-gnj", "ghs"])
def test_scales_start_at_one_but_for_a_little_noise(name):
    family = FAMILIES[name]
    means = family.initial_means(400, 1e-2, rng=torch.Generator().manual_seed(0))
    assert means.shape == (family.num_numbers(400),)
    scales = family.scales(means[None], torch.full_like(means, -30.0)[None]).mean
    assert scales.shape == (1, 400)
    assert 0 < (scales - 1).abs().max() < 0.1
    # Half of four independent numbers has the spread of one.
    assert scales.std().item() == pytest.approx(1e-2, rel=0.3)
    exact = family.initial_means(400, 0.0, rng=None)
    assert torch.equal(family.scales(exact[None], torch.full_like(exact, -200.0)[None]).mean, torch.ones(1, 400))


def scaled(layer, *scales):
    """The layer with scales of inputs and of outputs other than those it has."""
    return posterior_of(layer.mean.weight, layer.mean.bias, layer.weight_logvar, *scales)


def horseshoe_layer(shape, *, weights="own", seed=0):
    """Input groups of a linear layer, output groups of a convolution, as the family has them."""
    outputs, inputs, *kernel = shape
    numbers = HORSESHOE.num_numbers(outputs if kernel else inputs)
    scales = LogNormalScales(
        normals(2, numbers, std=0.5, seed=seed + 30), normals(2, numbers, centre=-1.0, seed=seed + 31)
    )
    sides = (None, scales) if kernel else (scales, None)
    return scaled(random_posterior(shape, weights=weights, seed=seed), *sides)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_divergence_of_the_horseshoe_is_the_sum_over_its_parts(weights):
    layers = [horseshoe_layer(shape, weights=weights, seed=seed) for seed, shape in enumerate((CONVOLUTION, LINEAR))]
    expected = torch.zeros(2, dtype=torch.float64)
    for layer in layers:
        expected += kl_weights(layer.mean.weight.dense().square().flatten(1).sum(1), layer.weight_logvar)
        scales = layer.in_scale or layer.out_scale
        units = scales.mean.shape[1]
        for place in range(2 * units + 2):
            part = scales.part_means[:, place : place + 1], scales.part_logvars[:, place : place + 1]
            if place == 2 * units:  # Gamma(1/2, 0.09): over 0.09 it is Gamma(1/2, 1)
                part = part[0] - math.log(0.09), part[1]
            divergence = kl_gamma if place < units or place == 2 * units else kl_inverse_gamma
            expected += divergence(*part)
    torch.testing.assert_close(GroupHorseshoe(global_scale=0.3).kl(layers), expected)


def test_a_small_global_scale_makes_living_groups_dear_and_dead_ones_free():
    """At scale one each group pays for a b_i of 1 / tau^2, half its logarithm; at the prior's own scale nothing."""
    families = [GroupHorseshoe(tau) for tau in (1e-3, 1e-5)]
    larger, smaller = (family.kl([started(family)]) for family in families)
    torch.testing.assert_close(smaller - larger, torch.full_like(larger, 12 * math.log(100)), rtol=1e-4, atol=0)
    larger, smaller = (family.kl([started(family, awake=False)]) for family in families)
    torch.testing.assert_close(smaller, larger)


def started(family, *, awake=True):
    """A linear layer of twelve inputs with its scales as they begin, or with local scales of one."""
    means = family.initial_means(12, 0.0, rng=None)[None].double()
    if not awake:
        means[:, :24] = 0.0
    return scaled(random_posterior((5, 12)), LogNormalScales(means, torch.full_like(means, -4.0)), None)


@pytest.mark.parametrize("weights", ["own", "shared"])
def test_divergence_of_single_weights_is_the_sum_over_all_of_them(weights):
    shapes = (CONVOLUTION, LINEAR)
    layers = [scaled(random_posterior(s, weights=weights, seed=n), None, None) for n, s in enumerate(shapes)]
    contexts = len(layers[0].weight_logvar)
    expected = torch.zeros(contexts, dtype=torch.float64)
    for layer in layers:
        rates = log_dropout(layer.mean.weight.base, layer.weight_logvar).flatten(1)
        for rate in rates.T:
            expected += kl_scales(rate[:, None])
    torch.testing.assert_close(SparseVariationalDropout().kl(layers), expected)


NUMBERS = normals(2, HORSESHOE.num_numbers(4), std=0.5, seed=30)
# The scales of inputs and of outputs, and what these are made of.
GRADIENTS = {
    "io-gnj": (
        TWO_GROUPS,
        lambda *numbers: (NormalScales(*numbers[:2]), NormalScales(*numbers[2:])),
        [normals(2, count, centre=1.0) for count in (4, 4, 3, 3)],
    ),
    "ghs": (
        GroupHorseshoe(global_scale=0.3),
        lambda *numbers: (LogNormalScales(*numbers), None),
        [NUMBERS, NUMBERS - 1.0],
    ),
    "sparse-vd": (SparseVariationalDropout(), lambda: (None, None), []),
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("family", "scales", "numbers"), GRADIENTS.values(), ids=GRADIENTS)
def test_gradient_of_the_divergence_is_numerically_right(family, scales, numbers, weights):
    layer = random_posterior(LINEAR, weights=weights)
    weight = layer.mean.weight
    free = [
        None if tensor is None else tensor.clone().requires_grad_()
        for tensor in (weight.base, weight.left, weight.right, layer.weight_logvar, *numbers)
    ]

    def divergence(base, left, right, logvar, *numbers):
        return family.kl([posterior_of(WeightMean(base, left, right), layer.mean.bias, logvar, *scales(*numbers))])

    assert gradcheck(divergence, free)
