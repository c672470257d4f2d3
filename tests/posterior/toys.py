"""Small random beliefs, rates and masks of whole networks, and a silent noise."""

import torch
from torch import nn
from torch.nn import functional as F

from bhc.graph import find_layers, find_units
from bhc.layers import Add, Concat, GlobalMean, Multiply, PadChannels
from bhc.layers.convolution import TransposedConvolution
from bhc.posterior import FreshNoise, LayerDropout, LayerMean, LayerPosterior, MaskFinder, NormalScales, WeightMean

from ..formats.graphs import in_a_row, wired

LINEAR = (3, 4)
CONVOLUTION = (3, 2, 2, 2)

# Convolutions of every make, each with the shape of an example.
CONVOLUTIONS = {
    "plain": (nn.Conv2d(2, 3, 2), (2, 3, 3)),
    "stride": (nn.Conv2d(2, 3, 2, stride=(2, 1)), (2, 5, 4)),
    "padding": (nn.Conv2d(2, 3, 2, stride=2, padding=1, dilation=(1, 2)), (2, 4, 4)),
    "same": (nn.Conv2d(2, 3, 2, padding="same", dilation=2), (2, 3, 4)),
    "1-d": (nn.Conv1d(2, 3, 2, stride=2, padding=1), (2, 5)),
    "1-d dilated": (nn.Conv1d(2, 3, 3, padding=1, dilation=2), (2, 6)),
    "3-d": (nn.Conv3d(2, 3, (1, 2, 2), stride=(1, 2, 1), padding=(0, 1, 0)), (2, 2, 2, 3)),
    "groups": (nn.Conv2d(4, 6, 2, groups=2), (4, 3, 2)),
    "depthwise": (nn.Conv2d(3, 3, 2, stride=2, padding=1, groups=3), (3, 3, 3)),
    "wider depthwise": (nn.Conv1d(2, 6, 3, padding=2, dilation=2, groups=2), (2, 4)),
    "3-d groups": (nn.Conv3d(2, 4, (2, 1, 2), groups=2), (2, 3, 2, 2)),
    "transposed": (TransposedConvolution(2, 3, (3, 2), (2, 1), (1, 0), (1, 0), (1, 2)), (2, 2, 3)),
    "1-d transposed": (TransposedConvolution(2, 3, (2,), (2,), (0,), (0,), (1,)), (2, 3)),
    "3-d transposed": (
        TransposedConvolution(2, 1, (1, 2, 2), (1, 2, 1), (0, 1, 0), (0, 0, 0), (1, 1, 1)),
        (2, 2, 2, 2),
    ),
}

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


def plain_layer(module):
    """What a layer computes with a weight and a bias: ``(x, weight, bias)``."""
    if isinstance(module, nn.Linear):
        return F.linear
    if isinstance(module, TransposedConvolution):
        transposed = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}[module.weight.dim()]
        options = {name: getattr(module, name) for name in ("stride", "padding", "output_padding", "dilation")}
        return lambda x, weight, bias=None: transposed(x, weight.transpose(0, 1), bias, **options)
    convolve = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}[type(module)]
    options = {name: getattr(module, name) for name in ("stride", "padding", "dilation", "groups")}
    return lambda x, weight, bias=None: convolve(x, weight, bias, **options)


def posterior_of(weight, bias, weight_logvar, in_scale, out_scale):
    """A posterior whose deterministic network multiplies by the means of its scales."""
    means = [None if scales is None else scales.mean for scales in (in_scale, out_scale)]
    return LayerPosterior(LayerMean(weight, bias, *means), weight_logvar, in_scale, out_scale)


def small_chain(*, seed=0):
    """One convolution, a flatten and two linear layers on 6 x 6 images, weights drawn from the seed."""
    chain = in_a_row(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 4)
    )
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in chain.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=rng))
    return chain


def branching_graph():
    """A residual stream, a value beside it, a gate on both, and two layers that read what is gated."""
    return wired(
        ("stem", nn.Conv2d(1, 3, 3, padding=1)),
        ("branch", nn.Conv2d(3, 3, 3, padding=1, groups=3)),
        ("more", nn.Conv2d(3, 5, 1), "stem"),
        ("wide", PadChannels(1, 1), "branch"),
        ("sum", Add(), "more", "wide"),
        ("beside", Concat(), "sum", "stem"),
        ("mean", GlobalMean(False)),
        ("gate", nn.Linear(8, 8)),
        ("gated", Multiply(), "mean", "gate"),
        ("one", nn.Linear(8, 5)),
        ("other", nn.Linear(8, 5), "mean"),
        ("both", Add(), "one", "other"),
        ("end", nn.Linear(5, 4)),
    )


def grouped_chain():
    return in_a_row(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(24, 4))


def layers_of(graph, input_shape=(1, 6, 6)):
    return find_layers(graph, input_shape, find_units(graph, input_shape))


def finder_of(graph, input_shape=(1, 6, 6), *, keep=()):
    units = find_units(graph, input_shape, keep=keep)
    return MaskFinder(find_layers(graph, input_shape, units), units, graph.last_step)


def silent(mean):
    """A belief without any variance, whose sample is its mean."""
    never = torch.full((), -torch.inf)
    scales = [NormalScales(each, never.expand(each.shape)) for each in (mean.in_scale, mean.out_scale)]
    return posterior_of(mean.weight, mean.bias, never.expand(mean.weight.base.shape), *scales)


def free_tensors(posterior):
    """Copies of all that a belief under normal scales is made of, as leaves; None where there is nothing."""
    mean, weight = posterior.mean, posterior.mean.weight
    tensors = (weight.base, weight.left, weight.right, mean.bias, mean.in_scale, mean.out_scale)
    logvars = (posterior.weight_logvar, posterior.in_scale.logvar, posterior.out_scale.logvar)
    return [None if tensor is None else tensor.clone().requires_grad_() for tensor in (*tensors, *logvars)]


def believed(base, left, right, bias, in_scale, out_scale, weight_logvar, *logvars):
    """The belief that ``free_tensors`` took apart."""
    scales = [NormalScales(*pair) for pair in zip((in_scale, out_scale), logvars, strict=True)]
    return posterior_of(WeightMean(base, left, right), bias, weight_logvar, *scales)


def fresh_noise(seed=0):
    return FreshNoise(torch.Generator().manual_seed(seed))


def assert_same_moments(first, second):
    """Means and variances over the examples, dim 1, agree within five standard errors."""
    for power in (1, 2):
        centred = [values if power == 1 else (values - values.mean(1, keepdim=True)) ** 2 for values in (first, second)]
        error = sum(values.var(1) / values.shape[1] for values in centred).sqrt()
        difference = centred[0].mean(1) - centred[1].mean(1)
        assert (difference.abs() < 5 * error).all(), f"moment {power}: {(difference / error).abs().max():.1f} errors"


# Log dropout rates of a whole network, and the masks they make.

QUIET, NOISY = -5.0, 5.0


def dropouts(finder, *, contexts=1, value=QUIET):
    """The rates of two-group scales, all equal."""
    return [
        LayerDropout(
            torch.full((contexts, 1 if layer.has_kernel else layer.num_inputs), value),
            torch.full((contexts, layer.num_outputs), value),
        )
        for layer in finder.layers
    ]


def random_dropouts(finder, *, contexts, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [
        LayerDropout(*(3 * torch.randn(part.shape, generator=rng) for part in parts))
        for parts in ((rates.in_log_dropout, rates.out_log_dropout) for rates in dropouts(finder, contexts=contexts))
    ]


def at(threshold, contexts=1):
    return torch.full((contexts, 1), float(threshold))


def all_classes(finder, contexts=1):
    return torch.ones(contexts, len(finder.outputs)).bool()


def mask(finder, rates, *, threshold=0.0):
    """Masks of a single context."""
    return finder(rates, at(threshold), all_classes(finder)).layers


def random_weight_rates(finder, *, contexts, centre=0.0, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [
        LayerDropout(None, None, centre + 3 * torch.randn(contexts, *layer.weight_shape, generator=rng))
        for layer in finder.layers
    ]
