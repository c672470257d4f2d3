"""What the hypernetwork says of contexts before any weight is generated."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from bhc.contexts import Context, ContextBatch
from bhc.hypernet import ConditionalNetwork, LayerVectors
from bhc.posterior import LayerDropout


@dataclass(frozen=True)
class Generated:
    """Rates, scales and biases of K contexts, from one call; weights are generated later, where they stay."""

    network: ConditionalNetwork
    contexts: tuple[Context, ...]
    batch: ContextBatch
    embedding: Tensor  # (K, E), from which weights are generated
    vectors: tuple[LayerVectors, ...]  # means of scales, and biases
    rates: tuple[LayerDropout, ...]  # as they were learned: bits follow from these
    dropouts: tuple[LayerDropout, ...]  # by which masks are found; others than the rates where budgets must nest

    @classmethod
    @torch.no_grad()
    def of(cls, network: ConditionalNetwork, contexts: Sequence[Context]) -> "Generated":
        """Ask the hypernetwork about all of the contexts at once."""
        batch = ContextBatch.of(contexts, network.num_classes).to(network.device)
        hypernet, encoding = network.hypernet, network.space.encode(batch)
        embedding = hypernet.embedder(*encoding)
        rates = hypernet.dropouts(encoding)
        dropouts = network.dropouts(batch) if network.find_masks.nested else rates
        return cls(network, tuple(contexts), batch, embedding, hypernet.vectors.means(embedding), rates, dropouts)

    def alone(self, place: int) -> "Generated":
        """One of the contexts."""
        own = slice(place, place + 1)
        rates = tuple(_rows(layer, own) for layer in self.rates)
        return replace(
            self,
            contexts=self.contexts[own],
            batch=_rows(self.batch, own),
            embedding=self.embedding[own],
            vectors=tuple(_rows(layer, own) for layer in self.vectors),
            rates=rates,
            dropouts=rates if self.dropouts is self.rates else tuple(_rows(layer, own) for layer in self.dropouts),
        )


def _rows(parts: Any, own: slice) -> Any:
    """The rows of every tensor of a dataclass; what all contexts share has one row, and stays."""
    values = [getattr(parts, field.name) for field in fields(parts)]
    return type(parts)(*(value if value is None or len(value) == 1 else value[own] for value in values))
