from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck

from bhc.posterior import (
    GroupNormalJeffreys,
    InputOutputNormalJeffreys,
    LayerMean,
    LayerPosterior,
    WeightMean,
    kl,
    kl_scales,
    kl_weights,
)

from .toys import CONVOLUTION, LINEAR, WEIGHTS, random_posterior, small_chain, small_layers


def slow_kl(posteriors):
    """Each layer's weights multiplied out, each group of scales on its own."""
    total = 0
    for layer in posteriors:
        squared_norm = layer.mean.weight.dense().square().flatten(1).sum(1)
        total = total + kl_weights(squared_norm, layer.weight_logvar)
        for rates in (layer.dropout.in_log_dropout, layer.dropout.out_log_dropout):
            total = total + (0 if rates is None else kl_scales(rates))
    return total


@pytest.mark.parametrize("weights", WEIGHTS)
def test_divergence_of_a_network_is_the_sum_over_weights_and_scales(weights):
    layers = [random_posterior(shape, weights=weights, seed=seed) for seed, shape in enumerate((CONVOLUTION, LINEAR))]
    given = kl(layers)
    assert given.shape == (2,)
    torch.testing.assert_close(given, slow_kl(layers))


def test_divergence_leaves_out_absent_scales():
    both = random_posterior(LINEAR)
    mean = LayerMean(both.mean.weight, both.mean.bias, None, both.mean.out_scale)
    layer = LayerPosterior(mean, both.weight_logvar, None, both.out_scale_logvar)
    torch.testing.assert_close(kl([layer]), slow_kl([layer]))


# all contexts into one number. The types allow this mixture and Linear.mean_and_variance handles it.
def test_divergence_of_a_shared_mean_with_variances_of_each_context():
    shared, own = random_posterior(LINEAR, weights="shared"), random_posterior(LINEAR)
    layer = replace(shared, weight_logvar=own.weight_logvar)
    torch.testing.assert_close(kl([layer]), slow_kl([layer]))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_gradient_of_the_divergence_is_numerically_right(weights):
    layer = random_posterior(LINEAR, weights=weights)
    mean = layer.mean
    free = [
        None if tensor is None else tensor.clone().requires_grad_()
        for tensor in (
            mean.weight.base,
            mean.weight.left,
            mean.weight.right,
            mean.in_scale,
            mean.out_scale,
            layer.weight_logvar,
            layer.in_scale_logvar,
            layer.out_scale_logvar,
        )
    ]

    def divergence(base, left, right, in_scale, out_scale, *logvars):
        return kl([LayerPosterior(LayerMean(WeightMean(base, left, right), None, in_scale, out_scale), *logvars)])

    assert gradcheck(divergence, free)


def test_one_group_scales_inputs_of_linear_layers_and_filters_of_convolutions():
    scales = [GroupNormalJeffreys().num_scales(layer) for layer in small_layers(small_chain())]
    assert scales == [(0, 3), (12, 0), (5, 0)]


def test_two_groups_scale_inputs_and_outputs():
    scales = [InputOutputNormalJeffreys().num_scales(layer) for layer in small_layers(small_chain())]
    assert scales == [(1, 3), (12, 5), (5, 4)]
