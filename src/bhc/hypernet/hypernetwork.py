"""``f_phi``: from a context to everything that is believed about a network."""

import copy
from collections.abc import Sequence

from torch import Generator, Tensor, nn

from bhc.contexts import ContextSpace
from bhc.graph import Layer
from bhc.hypernet.embedders import EMBEDDING_WIDTH, build_embedder
from bhc.hypernet.generators import GeneratorSpec, WeightHead
from bhc.hypernet.initial import Initial
from bhc.hypernet.vectors import VectorHeads, scale_mean
from bhc.posterior import Family, LayerDropout, LayerMean, LayerPosterior

Encoding = tuple[Tensor, ...]  # what ``ContextSpace.encode`` returns


class Gates(nn.Module):
    """The dropout rates as they were when learning ended.

    Consolidation goes on training the means, the scales' among them. A rate depends on its scale's mean, so
    the masks would drift with it; a frozen copy of what they depend on keeps them still.
    """

    def __init__(self, embedder: nn.Module, vectors: VectorHeads, weights: nn.ModuleList | None) -> None:
        super().__init__()
        self.embedder = copy.deepcopy(embedder)
        self.vectors = copy.deepcopy(vectors)
        self.weights = copy.deepcopy(weights)
        self.requires_grad_(False)

    def dropouts(self, encoding: Encoding) -> tuple[LayerDropout, ...]:
        return _dropouts(self.embedder(*encoding), self.vectors, self.weights)


def _dropouts(embedding: Tensor, vectors: VectorHeads, weights: nn.ModuleList | None) -> tuple[LayerDropout, ...]:
    """The rates of each layer's scales, and of its single weights where ``weights`` are given."""
    pairs = vectors.log_dropouts(embedding)
    if weights is None:
        return tuple(LayerDropout(*pair) for pair in pairs)
    return tuple(LayerDropout(*pair, head.log_dropout(embedding)) for pair, head in zip(pairs, weights, strict=True))  # type: ignore[operator]


class HyperNetwork(nn.Module):
    """An embedder, the heads of all scales and biases, and a head for each layer's weights."""

    def __init__(
        self,
        layers: Sequence[Layer],
        space: ContextSpace,
        *,
        spec: GeneratorSpec,
        family: Family,
        initial: Initial,
        std_limits: Sequence[float | None],
        prior_stds: Sequence[float],
        width: int = EMBEDDING_WIDTH,
        rng: Generator | None = None,
    ) -> None:
        super().__init__()
        self.family = family
        self.embedder, width = build_embedder(space, width, rng=rng)
        self.vectors = VectorHeads(layers, family, initial, width=width, rng=rng)
        self.prior_stds = tuple(prior_stds)
        self.weights = nn.ModuleList(
            spec.head(layer, width, initial.under(prior_std), rng=rng)
            for layer, prior_std in zip(layers, self.prior_stds, strict=True)
        )
        for head, largest_std in zip(self.weight_heads, std_limits, strict=True):
            head.largest_std = largest_std
        self.gates: Gates | None = None
        self._offsets_frozen = False

    @property
    def weight_heads(self) -> tuple[WeightHead, ...]:
        return tuple(self.weights)  # type: ignore[arg-type]

    def posterior(self, encoding: Encoding) -> tuple[LayerPosterior, ...]:
        """Beliefs about each layer in K contexts."""
        embedding = self.embedder(*encoding)
        return tuple(
            LayerPosterior(
                mean=LayerMean(head.mean(embedding), bias, scale_mean(in_scale), scale_mean(out_scale)),
                weight_logvar=head.logvar(embedding),
                in_scale=in_scale,
                out_scale=out_scale,
                prior_std=prior_std,
            )
            for head, (in_scale, out_scale, bias), prior_std in zip(
                self.weight_heads, self.vectors.beliefs(embedding), self.prior_stds, strict=True
            )
        )

    def means(self, encoding: Encoding) -> tuple[LayerMean, ...]:
        """Means alone: what the deterministic networks need."""
        embedding = self.embedder(*encoding)
        return tuple(
            LayerMean(head.mean(embedding), vectors.bias, vectors.in_scale, vectors.out_scale)
            for head, vectors in zip(self.weight_heads, self.vectors.means(embedding), strict=True)
        )

    def dropouts(self, encoding: Encoding) -> tuple[LayerDropout, ...]:
        """Log dropout rates, by which masks and bits are found; fixed once ``freeze_gates_`` was called."""
        if self.gates is not None:
            return self.gates.dropouts(encoding)
        return _dropouts(self.embedder(*encoding), self.vectors, self._weights_with_rates)

    def kl(self, posteriors: Sequence[LayerPosterior]) -> Tensor:  # (K or 1,)
        """The divergence of the beliefs from the family's prior."""
        return self.family.kl(posteriors)

    @property
    def _weights_with_rates(self) -> nn.ModuleList | None:
        """The heads whose weights go one by one; None where units do."""
        return self.weights if self.family.cuts_weights else None

    def clip_(self) -> None:
        """Hold the weights' variances under their limits; to be called after every optimiser step."""
        for head in self.weight_heads:
            head.clip_()

    def freeze_gates_(self) -> None:
        """Fix the masks that every threshold implies, for all contexts."""
        self.gates = Gates(self.embedder, self.vectors, self._weights_with_rates)

    def freeze_offsets_(self) -> None:
        """Fix what a zero embedding generates: the paper's frozen biases before stage two of a budget."""
        self._offsets_frozen = True
        self.thaw_()

    def freeze_variances_(self) -> None:
        """Leave only means to be trained."""
        for name, parameter in self.named_parameters():
            if "logvar" in name:
                parameter.requires_grad_(False)

    def thaw_(self) -> None:
        """Let everything learn, the masks included, but for offsets that were frozen."""
        self.gates = None
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(not (self._offsets_frozen and name.endswith("offset")))

    def reset_(self) -> None:
        """Forget what an earlier training froze."""
        self._offsets_frozen = False
        self.thaw_()
