"""A whole graph under a posterior: the noisy network that learns, the masked one that is used."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bhc.graph import Graph, Inputs, Layer, Step
from bhc.posterior.beliefs import LayerMean, LayerPosterior
from bhc.posterior.masks import LayerMask
from bhc.posterior.noise import Noise
from bhc.posterior.operators import as_before, channels_first, operator_of
from bhc.posterior.passes import masked_pass, noisy_pass


class BayesianGraph:
    """Runs a graph with each weighted layer replaced by a pass over what is believed of it.

    Batches are K contexts x B examples, contexts outermost, flattened to (K * B, ...). With ``autocast`` products
    are done in that dtype, everything else as it is.
    """

    autocast: torch.dtype | None = None

    def __init__(self, graph: Graph, layers: Sequence[Layer]) -> None:
        self.graph = graph
        self.layers = tuple(layers)
        self.operators = tuple(operator_of(layer) for layer in layers)
        self._place = {layer.name: index for index, layer in enumerate(layers)}
        self._channels = [layer.kind.in_axis for layer in layers]

    def noisy(
        self,
        x: Inputs,
        posteriors: Sequence[LayerPosterior],
        masks: Sequence[LayerMask | None] | None = None,
        *,
        noise: Noise,
    ) -> Tensor:  # (K * B, C)
        """A sample of the network's output, with ``masks`` of what they leave of it; None leaves a layer whole."""

        def sample(index: int, h: Tensor) -> Tensor:
            mask = None if masks is None else masks[index]
            return noisy_pass(self.operators[index], h, posteriors[index], mask, noise=noise)

        return self._run(x, sample)

    def masked(self, x: Inputs, means: Sequence[LayerMean], masks: Sequence[LayerMask]) -> Tensor:  # (K * B, C)
        """The deterministic network with masks on; outputs outside the context are zero."""
        return self._run(x, lambda index, h: masked_pass(self.operators[index], h, means[index], masks[index]))

    def _run(self, x: Inputs, pass_layer: Callable[[int, Tensor], Tensor]) -> Tensor:
        def apply(step: Step, *values: Tensor) -> Tensor:
            index = self._place.get(step.name)
            if index is None:
                return step.module(*values)
            (h,), axis = values, self._channels[index]
            return as_before(pass_layer(index, channels_first(h, axis)), h, axis)

        return self._on_device(x, lambda images: self.graph.run(images, apply))

    def plain(self, x: Inputs) -> Tensor:
        """The network as it was pretrained."""
        return self._on_device(x, self.graph.run)

    def _on_device(self, x: Inputs, run: Callable[[Inputs], Tensor]) -> Tensor:
        """In the wanted dtype and in the device's favourite layout: channels last for images on a GPU.

        What follows keeps it; only weights of each context's own (``Full``) go through channels first.
        """
        x = _as_liked(x) if isinstance(x, Tensor) else tuple(map(_as_liked, x))
        if self.autocast is None:
            return run(x)
        device = x.device if isinstance(x, Tensor) else x[0].device
        with torch.autocast(device.type, dtype=self.autocast):
            return run(x).float()


def _as_liked(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.dim() == 4 else x
