"""A whole graph under a posterior: the noisy network that learns, the masked one that is used."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bhc.graph import Graph, Layer, Step
from bhc.posterior.beliefs import LayerMean, LayerPosterior
from bhc.posterior.masks import LayerMask
from bhc.posterior.noise import Noise
from bhc.posterior.operators import operator_of
from bhc.posterior.passes import masked_pass, noisy_pass


class BayesianGraph:
    """Runs a graph with each weighted layer replaced by a pass over what is believed of it.

    Batches are K contexts x B examples, contexts outermost, flattened to (K * B, ...). With a ``precision`` products
    are done in it (autocast), everything else as it is.
    """

    precision: torch.dtype | None = None

    def __init__(self, graph: Graph, layers: Sequence[Layer]) -> None:
        self.graph = graph
        self.layers = tuple(layers)
        self.operators = tuple(operator_of(layer) for layer in layers)
        self._place = {layer.name: index for index, layer in enumerate(layers)}

    def noisy(
        self,
        x: Tensor,
        posteriors: Sequence[LayerPosterior],
        *,
        noise: Noise,
    ) -> Tensor:  # (K * B, C)
        """A sample of the network's output."""
        return self._run(x, lambda index, h: noisy_pass(self.operators[index], h, posteriors[index], noise=noise))

    def masked(self, x: Tensor, means: Sequence[LayerMean], masks: Sequence[LayerMask]) -> Tensor:  # (K * B, C)
        """The deterministic network with masks on; outputs outside the context are zero."""
        return self._run(x, lambda index, h: masked_pass(self.operators[index], h, means[index], masks[index]))

    def _run(self, x: Tensor, pass_layer: Callable[[int, Tensor], Tensor]) -> Tensor:
        def apply(step: Step, *values: Tensor) -> Tensor:
            index = self._place.get(step.name)
            return step.module(*values) if index is None else pass_layer(index, *values)

        images = _laid_out(x)
        return self._in_precision(x, lambda: self.graph.run(images, apply))

    def plain(self, x: Tensor) -> Tensor:
        """The network as it was pretrained."""
        images = _laid_out(x)
        return self._in_precision(x, lambda: self.graph(images))

    def _in_precision(self, x: Tensor, run: Callable[[], Tensor]) -> Tensor:
        if self.precision is None:
            return run()
        with torch.autocast(x.device.type, dtype=self.precision):
            return run().float()


def _laid_out(x: Tensor) -> Tensor:
    """Images on a GPU with their channels last in memory: its convolutions are made for that, and what follows keeps
    the layout. Only weights of each context's own (``Full``) need channels first, and one channel is both."""
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.dim() == 4 else x
