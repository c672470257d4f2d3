from dataclasses import replace

import pytest
import torch

from bhc.posterior import WeightMean, log_dropout

from .toys import CONVOLUTION, LINEAR, WEIGHTS, normals, random_posterior


@pytest.mark.parametrize("shape", [LINEAR, CONVOLUTION])
def test_dense_adds_the_low_rank_part(shape):
    mean = random_posterior(shape, weights="low rank").mean.weight
    for context, dense in enumerate(mean.dense()):
        change = mean.left[context] @ mean.right.T
        torch.testing.assert_close(dense, mean.base[0] + change.reshape(shape))


def test_dense_without_low_rank_is_the_base():
    base = normals(2, 3, 4)
    assert WeightMean(base).dense() is base


@pytest.mark.parametrize("shape", [LINEAR, CONVOLUTION])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_squared_norm_is_that_of_the_dense_mean(shape, weights):
    mean = random_posterior(shape, weights=weights).mean.weight
    torch.testing.assert_close(mean.squared_norm(), mean.dense().square().flatten(1).sum(1))


def test_squared_norm_of_a_low_rank_part_on_weights_of_each_context():
    low_rank, own = random_posterior(LINEAR, weights="low rank"), random_posterior(LINEAR)
    mean = replace(low_rank.mean.weight, base=own.mean.weight.base)
    torch.testing.assert_close(mean.squared_norm(), mean.dense().square().flatten(1).sum(1))


def test_low_rank_norm_is_what_the_low_rank_part_adds():
    mean = random_posterior(CONVOLUTION, weights="low rank").mean.weight
    without = WeightMean(mean.base).squared_norm()
    torch.testing.assert_close(without + mean.low_rank_norm(), mean.squared_norm())


def test_variance_is_the_exponential_of_the_log_variance():
    posterior = random_posterior(LINEAR)
    torch.testing.assert_close(posterior.weight_variance.log(), posterior.weight_logvar)


def test_dropout_holds_the_rates_of_both_groups_of_scales():
    posterior = random_posterior(LINEAR)
    dropout = posterior.dropout
    inputs = log_dropout(posterior.mean.in_scale, posterior.in_scale.logvar)
    outputs = log_dropout(posterior.mean.out_scale, posterior.out_scale.logvar)
    assert torch.equal(dropout.in_log_dropout, inputs)
    assert torch.equal(dropout.out_log_dropout, outputs)
    assert dropout.weights is None


def test_dropout_of_absent_scales_is_absent():
    dropout = replace(random_posterior(LINEAR), in_scale=None, out_scale=None).dropout
    assert dropout.in_log_dropout is None
    assert dropout.out_log_dropout is None
    assert dropout.weights is None
