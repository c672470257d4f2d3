"""A posterior with free parameters: Bayesian compression without a hypernetwork or a context."""

from collections.abc import Sequence

import torch
from torch import Generator, nn

from bhc.graph import Layer
from bhc.posterior.beliefs import LayerDropout, LayerMean, LayerPosterior, WeightMean
from bhc.posterior.families import Family

INITIAL_LOGVAR = -9.0


class FreeLayer(nn.Module):
    """Variational parameters of one layer, started at the layer's own weights."""

    def __init__(self, layer: Layer, family: Family, *, generator: Generator | None = None) -> None:
        super().__init__()

        def scale(count: int, centre: float, std: float) -> nn.Parameter | None:
            return nn.Parameter(centre + std * torch.randn(1, count, generator=generator)) if count else None

        weight = layer.module.weight.detach().cpu()
        bias = layer.module.bias
        inputs, outputs = family.num_scales(layer)
        self.weight_mean = nn.Parameter(weight.clone()[None])
        self.weight_logvar = nn.Parameter(INITIAL_LOGVAR + 0.01 * torch.randn(1, *weight.shape, generator=generator))
        self.bias = None if bias is None else nn.Parameter(bias.detach().cpu().clone()[None])
        self.in_scale_mean = scale(inputs, 1.0, 1e-4)
        self.in_scale_logvar = scale(inputs, INITIAL_LOGVAR, 1e-2)
        self.out_scale_mean = scale(outputs, 1.0, 1e-4)
        self.out_scale_logvar = scale(outputs, INITIAL_LOGVAR, 1e-2)

    def forward(self) -> LayerPosterior:
        mean = LayerMean(WeightMean(self.weight_mean), self.bias, self.in_scale_mean, self.out_scale_mean)
        return LayerPosterior(mean, self.weight_logvar, self.in_scale_logvar, self.out_scale_logvar)


class FreePosterior(nn.Module):
    """One posterior for all contexts: K = 1, each number a parameter of its own."""

    def __init__(self, layers: Sequence[Layer], family: Family, *, generator: Generator | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FreeLayer(layer, family, generator=generator) for layer in layers)

    def posterior(self) -> tuple[LayerPosterior, ...]:
        """Beliefs about each layer."""
        return tuple(layer() for layer in self.layers)

    def means(self) -> tuple[LayerMean, ...]:
        """Means alone, for the deterministic network."""
        return tuple(layer.mean for layer in self.posterior())

    def dropouts(self) -> tuple[LayerDropout, ...]:
        """Log dropout rates, for the masks."""
        return tuple(layer.dropout for layer in self.posterior())
