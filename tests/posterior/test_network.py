import copy

import pytest
import torch

from bhc.posterior import BayesianGraph, LayerMask, LayerMean, NetworkMask, WeightMean, masked_mean

from .toys import Silence, branching_graph, layers_of, normals, silent, small_chain


def unscaled_means(layers, contexts):
    return [
        LayerMean(
            WeightMean(layer.module.weight[None]),
            layer.module.bias[None],
            torch.ones(contexts, 1 if layer.has_kernel else layer.num_inputs),
            torch.ones(contexts, layer.num_outputs),
        )
        for layer in layers
    ]


def random_scales(mean, seed):
    scales = (mean.in_scale, mean.out_scale)
    drawn = (normals(*each.shape, centre=1.0, seed=seed + 50 * n).float() for n, each in enumerate(scales))
    return LayerMean(mean.weight, mean.bias, *drawn)


def masks(layers, contexts, keep):
    of_layers = (
        LayerMask(keep(contexts, len(layer.reads)), keep(contexts, layer.num_outputs), torch.zeros(contexts).bool())
        for layer in layers
    )
    return NetworkMask(torch.ones(contexts, 0).bool(), tuple(of_layers))


IMAGES = normals(6, 1, 6, 6, seed=70).float()


def test_masks_and_scales_act_as_the_masked_weights_of_each_context():
    chain = small_chain()
    layers = layers_of(chain)
    rng = torch.Generator().manual_seed(1)
    kept = masks(layers, 2, lambda *shape: torch.rand(shape, generator=rng) < 0.7)
    means = [random_scales(mean, seed) for seed, mean in enumerate(unscaled_means(layers, 2))]
    given = BayesianGraph(chain, layers).masked(IMAGES, means, kept)
    for context, part in enumerate(IMAGES.chunk(2)):
        plain = copy.deepcopy(chain)
        for layer, mean, mask in zip(layers, means, kept.layers, strict=True):
            dense = masked_mean(mean.weight.base, mean.in_scale, mean.out_scale, mask.keep_in, mask.keep_out)[context]
            plain.get_submodule(layer.name).weight.data = dense
            plain.get_submodule(layer.name).bias.data = (mask.keep_out * mean.out_scale * mean.bias)[context]
        torch.testing.assert_close(given.chunk(2)[context], plain(part))


@pytest.mark.parametrize("build", [small_chain, branching_graph])
def test_all_units_at_scale_one_and_without_noise_are_the_network_itself(build):
    graph, x = build(), IMAGES
    layers = layers_of(graph)
    means, bayesian = unscaled_means(layers, 3), BayesianGraph(graph, layers)
    torch.testing.assert_close(
        bayesian.masked(x, means, masks(layers, 3, lambda *shape: torch.ones(shape).bool())), graph(x)
    )
    torch.testing.assert_close(bayesian.noisy(x, [silent(mean) for mean in means], noise=Silence()), graph(x))
