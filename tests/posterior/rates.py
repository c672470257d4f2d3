"""Log dropout rates of a whole network, and the masks they make."""

import torch

from bhc.posterior import LayerDropout

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
