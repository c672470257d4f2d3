"""Small random beliefs and a silent noise, for the tests of the posterior."""

import torch
from torch import nn

from bhc.graph import find_layers
from bhc.posterior import LayerMean, LayerPosterior, NormalScales, WeightMean

LINEAR = (3, 4)
CONVOLUTION = (3, 2, 2, 2)

# Own: each context has weights of its own. Shared: all have the same. Low rank: shared plus a small change.
WEIGHTS = {"own": (2, 0), "shared": (1, 0), "low rank": (1, 2)}


class Silence:
    """Noise that is not there."""

    def normal(self, shape, like):
        return torch.zeros(shape, dtype=like.dtype, device=like.device)


def normals(*size, centre=0.0, std=1.0, seed=0):
    """Normal numbers in double precision."""
    return centre + std * torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_posterior(shape, *, contexts=2, weights="own", logvar=-1.0, seed=0):
    """A noisy posterior of one layer: scales around one, variances around ``exp(logvar)``."""
    leading, rank = WEIGHTS[weights]
    outputs, inputs, *kernel = shape
    area = torch.Size(kernel).numel()
    seeds = iter(range(100 * seed, 100 * seed + 100))
    in_scales = 1 if kernel else inputs

    def draw(*size, **options):
        return normals(*size, seed=next(seeds), **options)

    mean = WeightMean(
        draw(leading, *shape),
        draw(contexts, outputs, rank) if rank else None,
        draw(inputs * area, rank) if rank else None,
    )
    bias = draw(contexts, outputs)
    in_mean, out_mean = (draw(contexts, count, centre=1.0, std=0.3) for count in (in_scales, outputs))
    weight_logvar = draw(leading, *shape, centre=logvar, std=0.3)
    in_logvar, out_logvar = (draw(contexts, count, centre=logvar, std=0.3) for count in (in_scales, outputs))
    return posterior_of(mean, bias, weight_logvar, NormalScales(in_mean, in_logvar), NormalScales(out_mean, out_logvar))


def posterior_of(weight, bias, weight_logvar, in_scale, out_scale):
    """A posterior whose deterministic network multiplies by the means of its scales."""
    means = [None if scales is None else scales.mean for scales in (in_scale, out_scale)]
    return LayerPosterior(LayerMean(weight, bias, *means), weight_logvar, in_scale, out_scale)


def small_chain(*, seed=0):
    """One convolution, a flatten and two linear layers on 6 x 6 images, weights drawn from the seed."""
    chain = nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 5),
        nn.ReLU(),
        nn.Linear(5, 4),
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in chain.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return chain


def small_layers(chain):
    return find_layers(chain, torch.zeros(1, 1, 6, 6))
