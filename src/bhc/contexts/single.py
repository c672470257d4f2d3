"""No choice of context: Bayesian compression of one network for one purpose."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bhc.contexts.context import ContextBatch
from bhc.contexts.registry import register_context
from bhc.contexts.space import ContextSpace, ProbeRequest
from bhc.errors import BhcError


@register_context
@dataclass(frozen=True)
class SingleContext(ContextSpace):
    """One context, known beforehand: all classes, or the given ones. The hypernetwork is told nothing.

    With it a model is what the Bayesian baselines are, free parameters without a hypernetwork: train with
    ``contexts=1``.
    """

    classes: tuple[int, ...] | None = None

    kind = "single"
    conditions = ()

    def __post_init__(self) -> None:
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(sorted(set(_numbers(self.classes)))))

    @property
    def decides_outputs(self) -> bool:  # type: ignore[override]
        return self.classes is not None

    def check_network(self, num_classes: int) -> None:
        if self.classes is not None and not (self.classes and 0 <= self.classes[0] <= self.classes[-1] < num_classes):
            raise BhcError(
                f"the single context has the classes {list(self.classes)}",
                hint=f"name one or more of the network's, 0 to {num_classes - 1}",
            )

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {} if self.classes is None else {"classes": self.classes}

    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        if self.classes is None:
            return batch
        members = torch.zeros_like(batch.class_rates)
        for label in self.classes:
            members[:, label] = 1.0
        return replace(batch, class_rates=members / len(self.classes), outputs=members > 0)

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        return (batch.class_rates[:, :0],)

    def form(self) -> dict[str, dict[str, Any]]:
        return {}

    def embedder(self, width: int) -> nn.Module:
        """There is nothing to embed: the offsets of all maps are the parameters."""
        return nn.Identity()

    def embedder_alone(self, width: int) -> tuple[nn.Module, int]:
        return self.embedder(width), 0

    def probes(self, num_classes: int, limit: int) -> Sequence[ProbeRequest]:
        return [ProbeRequest({})]


def _numbers(classes: Iterable[int]) -> tuple[int, ...]:
    try:
        return tuple(index(label) for label in classes)
    except TypeError:
        raise BhcError(f"classes must be a list of numbers, given {classes!r}") from None
