"""A context as a value: what one network will meet, and K of them as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Context:
    """What is asked for. A part that is None is not conditioned on."""

    classes: tuple[int, ...] | None = None  # the outputs that remain, ascending
    appearance: tuple[float, ...] | None = None  # how often each appears, the most frequent being 1
    domain: Tensor | None = None  # mean of a sample of inputs, (C, H, W)
    budget: float | None = None  # the paper's c_w: 0 is accuracy first, 1 is smallest

    @property
    def frequencies(self) -> tuple[float, ...] | None:
        """The part of all inputs that each class is; None where all appear equally often."""
        if self.appearance is None or len(set(self.appearance)) == 1:
            return None
        return tuple(weight / sum(self.appearance) for weight in self.appearance)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for reports and files; of a domain only that it was given."""
        parts = {
            "classes": None if self.classes is None else list(self.classes),
            "appearance": None if self.appearance is None else list(self.appearance),
            "domain": None if self.domain is None else "mean of a sample",
            "budget": self.budget,
        }
        return {name: value for name, value in parts.items() if value is not None}

    def __str__(self) -> str:
        parts = []
        if self.classes is not None:
            parts.append("classes " + ", ".join(map(str, self.classes)))
        if self.domain is not None:
            parts.append("an input domain")
        if self.budget is not None:
            parts.append(f"budget {self.budget:g}")
        return " + ".join(parts) or "no condition"


@dataclass(frozen=True)
class ContextBatch:
    """K contexts as tensors: how to draw examples for them, and what the hypernetwork is told."""

    class_rates: Tensor  # (K, C) how often an example of each class is drawn, rows sum to 1
    outputs: Tensor  # (K, C) bool, the outputs that remain
    domain: Tensor | None = None  # (K, C, H, W)
    budget: Tensor | None = None  # (K, 1)

    def __len__(self) -> int:
        return len(self.class_rates)

    @property
    def num_classes(self) -> int:
        return self.class_rates.shape[1]

    @classmethod
    def unconditioned(cls, count: int, num_classes: int, *, device: torch.device | None = None) -> "ContextBatch":
        """All classes, equally often."""
        return cls(
            class_rates=torch.full((count, num_classes), 1 / num_classes, device=device),
            outputs=torch.ones(count, num_classes, dtype=torch.bool, device=device),
        )

    @classmethod
    def of(cls, contexts: Sequence[Context], num_classes: int) -> "ContextBatch":
        """The tensors of contexts that were asked for; all must have the same parts."""
        batch = cls.unconditioned(len(contexts), num_classes)
        rates = batch.class_rates.clone()
        for row, context in zip(rates, contexts, strict=True):
            if context.classes is not None:
                row.zero_()
                row[list(context.classes)] = torch.tensor(context.appearance or [1.0] * len(context.classes))
        batch = replace(batch, class_rates=rates / rates.sum(1, keepdim=True), outputs=rates > 0)
        domains = [context.domain for context in contexts if context.domain is not None]
        budgets = [context.budget for context in contexts if context.budget is not None]
        if domains:
            batch = replace(batch, domain=torch.stack(domains))
        if budgets:
            batch = replace(batch, budget=torch.tensor(budgets)[:, None])
        return batch

    def to(self, device: torch.device) -> "ContextBatch":
        """The same batch on a device."""
        return ContextBatch(
            *(
                None if part is None else part.to(device)  # type: ignore[arg-type]
                for part in (self.class_rates, self.outputs, self.domain, self.budget)
            )
        )
