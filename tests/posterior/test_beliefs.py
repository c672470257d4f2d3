import math
from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck

from bhc.posterior import LogNormalScales, NormalScales, WeightMean, log_dropout

from .toys import CONVOLUTION, LINEAR, WEIGHTS, assert_same_moments, normals, random_posterior

UNITS = 3
SAMPLES = 200_000


def normal_scales():
    mean = torch.tensor([[1.0, -0.5, 2.0], [0.3, 1.5, 1.0]]).double()
    return NormalScales(mean, normals(2, UNITS, centre=-2.0, std=0.5, seed=1))


def log_normal_scales():
    parts = 2 * UNITS + 2
    return LogNormalScales(normals(2, parts, std=0.5, seed=2), normals(2, parts, centre=-1.5, std=0.5, seed=3))


def drawn_normals(scales):
    """(K, samples, n): each scale drawn by its definition."""
    noise = normals(2, SAMPLES, UNITS, seed=4)
    return scales.mean[:, None] + scales.logvar.exp().sqrt()[:, None] * noise


def drawn_log_normals(scales):
    """``sqrt(a_i b_i) sqrt(s_a s_b)``, each of the four factors a log-normal variable of its own."""
    noise = normals(2, SAMPLES, 2 * UNITS + 2, seed=5)
    factors = (scales.part_means[:, None] + scales.part_logvars.exp().sqrt()[:, None] * noise).exp()
    first, second, shared = factors[..., :UNITS], factors[..., UNITS : 2 * UNITS], factors[..., 2 * UNITS :]
    return (first * second).sqrt() * shared.prod(2, keepdim=True).sqrt()


KINDS = {"normal": (normal_scales, drawn_normals), "log-normal": (log_normal_scales, drawn_log_normals)}


@pytest.mark.parametrize(("build", "draw"), KINDS.values(), ids=KINDS)
def test_multiplying_by_scales_has_the_moments_of_drawn_scales(build, draw):
    scales = build()
    h = torch.tensor([[1.0, -2.0, 0.5], [3.0, 1.0, -1.0]]).double()
    batch = h[:, None, :, None].expand(2, SAMPLES, UNITS, 1)
    given = scales.scale_units(batch, normals(2, SAMPLES, UNITS, seed=6))
    assert given.shape == batch.shape
    assert_same_moments(given[..., 0], h[:, None] * draw(scales))


@pytest.mark.parametrize(("build", "draw"), KINDS.values(), ids=KINDS)
def test_mean_and_dropout_rate_are_those_of_drawn_scales(build, draw):
    scales, drawn = build(), draw(build())
    standard_error = drawn.std(1) / math.sqrt(SAMPLES)
    assert ((drawn.mean(1) - scales.mean).abs() < 5 * standard_error).all()
    rate = (drawn.var(1) / drawn.mean(1).square()).log()
    torch.testing.assert_close(scales.log_dropout, rate, rtol=0, atol=0.06)


@pytest.mark.parametrize(("build", "draw"), KINDS.values(), ids=KINDS)
def test_one_scale_is_drawn_for_each_example_and_unit_and_spread_over_its_places(build, draw):
    scales, noise = build(), normals(2, 4, UNITS, seed=6)
    h = normals(2, 4, UNITS, 5, seed=7)
    ratio = scales.scale_units(h, noise) / h
    torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio))
    assert (ratio[:, 0] != ratio[:, 1]).all()


@pytest.mark.parametrize(("build", "draw"), KINDS.values(), ids=KINDS)
def test_gradients_of_scales_are_numerically_right(build, draw):
    kind, noise = type(build()), normals(2, 4, UNITS, seed=6)
    free = [tensor.clone().requires_grad_() for tensor in vars(build()).values()]
    h = normals(2, 4, UNITS, 2, seed=7).requires_grad_()
    assert gradcheck(lambda h, *numbers: kind(*numbers).scale_units(h, noise), (h, *free))
    assert gradcheck(lambda *numbers: (kind(*numbers).mean, kind(*numbers).log_dropout), free)


@pytest.mark.parametrize("logvar", [-9.0, -20.0, 1.0])
@pytest.mark.parametrize("kind", [NormalScales, LogNormalScales])
def test_gradients_of_scales_are_finite_from_sure_to_noisy(kind, logvar):
    count = UNITS if kind is NormalScales else 2 * UNITS + 2
    free = [torch.zeros(1, count, requires_grad=True), torch.full((1, count), logvar, requires_grad=True)]
    scales = kind(*free)
    drawn = scales.scale_units(torch.ones(1, 4, UNITS, 2), normals(1, 4, UNITS).float())
    (drawn.sum() + scales.mean.sum() + scales.log_dropout.sum()).backward()
    assert scales.log_dropout.isfinite().all()
    assert all(tensor.grad.isfinite().all() for tensor in free)
    assert (free[1].grad != 0).any()


# Means and rates of a layer


@pytest.mark.parametrize("shape", [LINEAR, CONVOLUTION])
def test_dense_adds_the_low_rank_part(shape):
    mean = random_posterior(shape, weights="low rank").mean.weight
    for context, dense in enumerate(mean.dense()):
        change = mean.left[context] @ mean.right.T
        torch.testing.assert_close(dense, mean.base[0] + change.reshape(shape))


@pytest.mark.parametrize("shape", [LINEAR, CONVOLUTION])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_squared_norm_is_that_of_the_dense_mean(shape, weights):
    mean = random_posterior(shape, weights=weights).mean.weight
    without = WeightMean(mean.base)
    assert without.dense() is mean.base
    own = replace(mean, base=random_posterior(shape).mean.weight.base)
    for each in (mean, own):
        torch.testing.assert_close(each.squared_norm(), each.dense().square().flatten(1).sum(1))
    if mean.left is not None:
        torch.testing.assert_close(without.squared_norm() + mean.low_rank_norm(), mean.squared_norm())


def test_dropout_holds_the_rates_of_both_groups_of_scales():
    posterior = random_posterior(LINEAR)
    dropout = posterior.dropout
    inputs = log_dropout(posterior.mean.in_scale, posterior.in_scale.logvar)
    outputs = log_dropout(posterior.mean.out_scale, posterior.out_scale.logvar)
    assert torch.equal(dropout.in_log_dropout, inputs)
    assert torch.equal(dropout.out_log_dropout, outputs)
    absent = replace(posterior, in_scale=None, out_scale=None).dropout
    assert (dropout.weights, *vars(absent).values()) == (None, None, None, None)
