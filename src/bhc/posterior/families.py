"""Which scales a layer has: the sparsity families that share everything else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bhc.graph import Layer
from bhc.posterior.beliefs import LayerPosterior
from bhc.posterior.kl import kl_weights
from bhc.posterior.products import GaussianDivergence, ScaleDivergence


class Family(Protocol):
    """A way of grouping weights under common scales."""

    def num_scales(self, layer: Layer) -> tuple[int, int]:
        """How many input and output scales the layer has; zero for none."""


@dataclass(frozen=True)
class GroupNormalJeffreys:
    """BC-GNJ: one scale for each input of a linear layer, one for each filter of a convolution."""

    def num_scales(self, layer: Layer) -> tuple[int, int]:
        return (0, layer.num_outputs) if layer.is_convolution else (layer.num_inputs, 0)


@dataclass(frozen=True)
class InputOutputNormalJeffreys:
    """BC-IO-GNJ, the paper's family: each unit is held by the layer that writes it and the one that reads it.

    Linear: a scale for each input and each output. Convolution: one for the whole input, one for each filter.
    """

    def num_scales(self, layer: Layer) -> tuple[int, int]:
        return (1 if layer.is_convolution else layer.num_inputs, layer.num_outputs)


def kl(posteriors: Sequence[LayerPosterior]) -> Tensor:  # (K or 1,)
    """The divergence of a network in K contexts: all weights and whichever scales its layers have."""
    weights = sum(_kl_of_weights(layer) for layer in posteriors)
    means = [scale for layer in posteriors for scale in (layer.mean.in_scale, layer.mean.out_scale)]
    logvars = [scale for layer in posteriors for scale in (layer.in_scale_logvar, layer.out_scale_logvar)]
    return weights + ScaleDivergence.apply(_joined(means), _joined(logvars))


def _kl_of_weights(layer: LayerPosterior) -> Tensor:  # (K or 1,)
    """``kl_weights`` of one layer, by the hand-written gradient where all contexts share the weights."""
    mean = layer.mean.weight
    if mean.base.shape[0] > 1 or layer.weight_logvar.shape[0] > 1:
        return kl_weights(mean.squared_norm(), layer.weight_logvar)
    shared = GaussianDivergence.apply(mean.base, layer.weight_logvar, layer.weight_variance.detach())[None]
    return shared if mean.left is None else shared + 0.5 * mean.low_rank_norm()


def _joined(vectors: Sequence[Tensor | None]) -> Tensor:  # (K, total)
    """All scales of the network side by side: their divergence is one sum."""
    return torch.cat([vector for vector in vectors if vector is not None], dim=1)
