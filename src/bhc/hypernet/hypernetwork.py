"""``f_phi``: from a context to everything that is believed about a network."""

import copy
from collections.abc import Sequence

from torch import Generator, Tensor, nn

from bhc.contexts import ContextSpace
from bhc.graph import Layer
from bhc.hypernet.embedders import EMBEDDING_WIDTH, build_embedder
from bhc.hypernet.generators import GeneratorSpec, WeightHead
from bhc.hypernet.initial import Initial
from bhc.hypernet.vectors import VectorHeads
from bhc.posterior import Family, LayerDropout, LayerMean, LayerPosterior

Encoding = tuple[Tensor, ...]  # what ``ContextSpace.encode`` returns


class Gates(nn.Module):
    """The dropout rates as they were when learning ended.

    Consolidation goes on training the means, the scales' among them. A rate depends on its scale's mean, so
    the masks would drift with it; a frozen copy of the embedder and the scale heads keeps them still.
    """

    def __init__(self, embedder: nn.Module, vectors: VectorHeads) -> None:
        super().__init__()
        self.embedder = copy.deepcopy(embedder)
        self.vectors = copy.deepcopy(vectors)
        self.requires_grad_(False)

    def dropouts(self, encoding: Encoding) -> tuple[LayerDropout, ...]:
        return self.vectors.dropouts(self.embedder(*encoding))


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
        width: int = EMBEDDING_WIDTH,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.embedder = build_embedder(space, width, generator=generator)
        self.vectors = VectorHeads(layers, family, initial, width=width, generator=generator)
        self.weights = nn.ModuleList(spec.head(layer, width, initial, generator=generator) for layer in layers)
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
                mean=mean,
                weight_logvar=logvar,
                in_scale_logvar=in_logvar,
                out_scale_logvar=out_logvar,
            )
            for mean, logvar, (in_logvar, out_logvar) in zip(
                self._means(embedding),
                (head.logvar(embedding) for head in self.weight_heads),
                self.vectors.logvars(embedding),
                strict=True,
            )
        )

    def means(self, encoding: Encoding) -> tuple[LayerMean, ...]:
        """Means alone: what the deterministic networks need."""
        return self._means(self.embedder(*encoding))

    def dropouts(self, encoding: Encoding) -> tuple[LayerDropout, ...]:
        """Log dropout rates alone: what the masks need; fixed once ``freeze_gates_`` was called."""
        if self.gates is not None:
            return self.gates.dropouts(encoding)
        return self.vectors.dropouts(self.embedder(*encoding))

    def clip_(self) -> None:
        """Hold the weights' variances under their limits; to be called after every optimiser step."""
        for head in self.weight_heads:
            head.clip_()

    def freeze_gates_(self) -> None:
        """Fix the masks that every threshold implies, for all contexts."""
        self.gates = Gates(self.embedder, self.vectors)

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

    def _means(self, embedding: Tensor) -> tuple[LayerMean, ...]:
        return tuple(
            LayerMean(head.mean(embedding), vectors.bias, vectors.in_scale, vectors.out_scale)
            for head, vectors in zip(self.weight_heads, self.vectors.means(embedding), strict=True)
        )
