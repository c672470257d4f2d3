"""A whole chain under a posterior: the noisy network that learns, the masked one that is used."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from bhc.graph import Layer
from bhc.posterior.beliefs import LayerMean, LayerPosterior
from bhc.posterior.masks import LayerMask
from bhc.posterior.noise import Noise
from bhc.posterior.operators import operator_of
from bhc.posterior.passes import masked_pass, noisy_pass


class BayesianChain:
    """Runs a chain with each weighted layer replaced by a pass over what is believed of it.

    Batches are K contexts x B examples, contexts outermost, flattened to (K * B, ...).
    """

    def __init__(self, chain: nn.Sequential, layers: Sequence[Layer]) -> None:
        self.chain = chain
        self.layers = tuple(layers)
        self.operators = tuple(operator_of(layer) for layer in layers)
        self._layer_at = {layer.step: index for index, layer in enumerate(layers)}

    def noisy(
        self,
        x: Tensor,
        posteriors: Sequence[LayerPosterior],
        *,
        noise: Noise,
    ) -> Tensor:  # (K * B, C)
        """A sample of the network's output."""
        return self._run(
            x,
            lambda index, h: noisy_pass(self.operators[index], h, posteriors[index], noise=noise),
        )

    def masked(self, x: Tensor, means: Sequence[LayerMean], masks: Sequence[LayerMask]) -> Tensor:  # (K * B, C)
        """The deterministic network with masks on; outputs outside the context are zero."""
        return self._run(
            x,
            lambda index, h: masked_pass(self.operators[index], h, means[index], masks[index]),
        )

    def _run(self, x: Tensor, pass_layer: Callable[[int, Tensor], Tensor]) -> Tensor:
        for step, module in enumerate(self.chain):
            index = self._layer_at.get(step)
            x = module(x) if index is None else pass_layer(index, x)
        return x
