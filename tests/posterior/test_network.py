import copy

import torch
from torch import nn

from bhc.graph import INPUT, Graph, Step
from bhc.layers import Add, Concat, GlobalMean
from bhc.posterior import (
    BayesianGraph,
    FreshNoise,
    LayerMask,
    LayerMean,
    NormalScales,
    WeightMean,
    masked_mean,
)

from .toys import Silence, layers_of, normals, posterior_of, random_posterior, small_chain, small_layers


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
    return LayerMean(
        mean.weight,
        mean.bias,
        normals(*mean.in_scale.shape, centre=1.0, seed=seed).float(),
        normals(*mean.out_scale.shape, centre=1.0, seed=seed + 50).float(),
    )


def masks(layers, contexts, keep):
    return [
        LayerMask(keep(contexts, layer.num_inputs), keep(contexts, layer.num_outputs), torch.zeros(contexts).bool())
        for layer in layers
    ]


def everything(*shape):
    return torch.ones(shape).bool()


def images(count):
    return normals(count, 1, 6, 6, seed=70).float()


def test_all_units_at_scale_one_are_the_network_itself():
    chain = small_chain()
    layers = small_layers(chain)
    x = images(6)
    masked = BayesianGraph(chain, layers).masked(x, unscaled_means(layers, 3), masks(layers, 3, everything))
    torch.testing.assert_close(masked, chain(x))


def test_the_noisy_network_without_noise_is_the_network_itself():
    chain = small_chain()
    layers = small_layers(chain)
    never = torch.full((), -torch.inf)
    beliefs = [
        posterior_of(
            mean.weight,
            mean.bias,
            never.expand(mean.weight.base.shape),
            NormalScales(mean.in_scale, never.expand(mean.in_scale.shape)),
            NormalScales(mean.out_scale, never.expand(mean.out_scale.shape)),
        )
        for mean in unscaled_means(layers, 2)
    ]
    x = images(6)
    noisy = BayesianGraph(chain, layers).noisy(x, beliefs, noise=Silence())
    torch.testing.assert_close(noisy, chain(x))


def test_masks_and_scales_act_as_the_masked_weights_of_each_context():
    chain = small_chain()
    layers = small_layers(chain)
    rng = torch.Generator().manual_seed(1)
    kept = masks(layers, 2, lambda *shape: torch.rand(shape, generator=rng) < 0.7)
    means = [random_scales(mean, seed) for seed, mean in enumerate(unscaled_means(layers, 2))]
    x = images(6)
    given = BayesianGraph(chain, layers).masked(x, means, kept)
    for context, part in enumerate(x.chunk(2)):
        plain = copy.deepcopy(chain)
        for layer, mean, mask in zip(layers, means, kept, strict=True):
            dense = masked_mean(mean.weight.base, mean.in_scale, mean.out_scale, mask.keep_in, mask.keep_out)[context]
            plain.get_submodule(layer.name).weight.data = dense
            plain.get_submodule(layer.name).bias.data = (mask.keep_out * mean.out_scale * mean.bias)[context]
        torch.testing.assert_close(given.chunk(2)[context], plain(part))


def test_outputs_outside_the_context_are_zero():
    chain = small_chain()
    layers = small_layers(chain)
    kept = masks(layers, 1, everything)
    classes = torch.tensor([[True, False, True, False]])
    kept[-1] = LayerMask(kept[-1].keep_in, classes, kept[-1].rescued)
    given = BayesianGraph(chain, layers).masked(images(3), unscaled_means(layers, 1), kept)
    assert torch.equal(given[:, 1::2], torch.zeros(3, 2))
    assert (given[:, ::2] != 0).all()


def test_equal_noise_gives_equal_bits():
    chain = small_chain()
    layers = small_layers(chain)
    beliefs = [random_posterior(layer.weight_shape, contexts=1, weights="shared") for layer in layers]

    def sample(seed):
        noise = FreshNoise(torch.Generator().manual_seed(seed))
        return BayesianGraph(chain, layers).noisy(images(3).double(), beliefs, noise=noise)

    assert torch.equal(sample(0), sample(0))
    assert not torch.equal(sample(0), sample(1))


def test_a_branching_network_without_noise_is_the_network_itself():
    graph = Graph(
        [
            Step("stem", nn.Conv2d(1, 4, 3, padding=1), (INPUT,)),
            Step("branch", nn.Conv2d(4, 4, 3, padding=1, groups=2), ("stem",)),
            Step("sum", Add(), ("stem", "branch")),
            Step("beside", Concat(), ("sum", "stem")),
            Step("relu", nn.ReLU(), ("beside",)),
            Step("mean", GlobalMean(False), ("relu",)),
            Step("end", nn.Linear(8, 3), ("mean",)),
        ]
    )
    layers, x = layers_of(graph), images(6)
    means = unscaled_means(layers, 3)
    kept = [
        LayerMask(everything(3, len(layer.reads)), everything(3, layer.num_outputs), torch.zeros(3).bool())
        for layer in layers
    ]
    never = torch.full((), -torch.inf)
    beliefs = [
        posterior_of(
            mean.weight,
            mean.bias,
            never.expand(mean.weight.base.shape),
            *(NormalScales(scale, never.expand(scale.shape)) for scale in (mean.in_scale, mean.out_scale)),
        )
        for mean in means
    ]
    bayesian = BayesianGraph(graph, layers)
    torch.testing.assert_close(bayesian.masked(x, means, kept), graph(x))
    torch.testing.assert_close(bayesian.noisy(x, beliefs, noise=Silence()), graph(x))
