"""A context as a value: what one network will meet, and K of them as tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from bhc.errors import BhcError


@dataclass(frozen=True)
class Context:
    """What is asked for. A part that is None is not conditioned on."""

    classes: tuple[int, ...] | None = None  # the outputs that remain, ascending
    appearance: tuple[float, ...] | None = None  # how often each appears, the most frequent being 1
    domain: Tensor | None = None  # mean of what a sample of inputs tells, such as (C, H, W)
    domain_size: int | None = None  # of that sample
    features: Tensor | None = None  # (F,) bool, the inputs that will be there
    budget: float | None = None  # the paper's c_w: 0 is accuracy first, 1 is smallest
    values: Mapping[str, Any] = field(default_factory=dict)  # of users' own conditions, by name: numbers or tensors

    @classmethod
    def of(cls, parts: Mapping[str, Any]) -> "Context":
        """A context of named parts; those that are no field of it are ``values``."""
        own = {name: value for name, value in parts.items() if name in FIELDS}
        return cls(**own, values={name: value for name, value in parts.items() if name not in FIELDS})

    @property
    def frequencies(self) -> tuple[float, ...] | None:
        """The part of all inputs that each class is; None where all appear equally often."""
        if self.appearance is None or len(set(self.appearance)) == 1:
            return None
        return tuple(weight / sum(self.appearance) for weight in self.appearance)

    @property
    def inputs(self) -> Tensor | None:  # (1, F) bool
        """The features as a batch of one has them."""
        return None if self.features is None else self.features[None]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for reports and files; of a domain only that it was given, of features how many."""
        parts = {
            "classes": None if self.classes is None else list(self.classes),
            "appearance": None if self.appearance is None else list(self.appearance),
            "domain": None if self.domain is None else "mean of a sample",
            "features": None if self.features is None else self._features_text(),
            "budget": self.budget,
            **{name: _plain(value) for name, value in self.values.items()},
        }
        return {name: value for name, value in parts.items() if value is not None}

    def __str__(self) -> str:
        parts = []
        if self.classes is not None:
            parts.append("classes " + ", ".join(map(str, self.classes)))
        if self.domain is not None:
            parts.append("an input domain")
        if self.features is not None:
            parts.append(f"features {self._features_text()}")
        if self.budget is not None:
            parts.append(f"budget {self.budget:g}")
        parts += [f"{name} {_plain(value)}" for name, value in self.values.items()]
        return " + ".join(parts) or "no condition"

    def _features_text(self) -> str:
        assert self.features is not None
        return f"{int(self.features.sum())} of {len(self.features)}"


FIELDS = {field.name for field in fields(Context)} - {"values"}


@dataclass(frozen=True)
class ContextBatch:
    """K contexts as tensors: how to draw examples for them, and what the hypernetwork is told."""

    class_rates: Tensor  # (K, C) how often an example of each class is drawn, rows sum to 1
    outputs: Tensor  # (K, C) bool, the outputs that remain
    appearance: Tensor | None = None  # (K, C) what is told of the classes, the most frequent being 1
    inputs: Tensor | None = None  # (K, F) bool, the features that are there; None: all
    source_rates: Tensor | None = None  # (K, S) how often an example of each source is drawn; None: as they come
    domain: Tensor | None = None  # (K, ...)
    domain_told: Tensor | None = None  # (K,) bool, where a domain is told; None: everywhere
    budget: Tensor | None = None  # (K, 1)
    values: Mapping[str, Tensor] = field(default_factory=dict)  # (K, ...) each, of users' own conditions

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
        """The tensors of contexts that were asked for; what one of them leaves out is as if nothing were said."""
        rows = [_appearances(context, num_classes) for context in contexts]
        appearance = torch.tensor(rows).reshape(len(rows), num_classes)  # also of none
        rates = appearance / appearance.sum(1, keepdim=True)
        batch = cls(rates, rates > 0, appearance)
        domains = [context.domain for context in contexts]
        features = [context.features for context in contexts]
        budgets = [context.budget for context in contexts if context.budget is not None]
        if any(domain is not None for domain in domains):
            told = torch.tensor([domain is not None for domain in domains])
            batch = replace(batch, domain=_stacked(domains, fill=0), domain_told=told)
        if any(mask is not None for mask in features):
            batch = replace(batch, inputs=_stacked(features, fill=1))
        if budgets:  # where a budget may be left out, the space has put one in its place
            batch = replace(batch, budget=torch.tensor(budgets)[:, None])
        names = dict.fromkeys(name for context in contexts for name in context.values)
        return replace(batch, values={name: _rows(contexts, name) for name in names}) if names else batch

    def askable(self) -> "ContextBatch":
        """With budgets beyond both ends, where only learning goes, moved to the ends."""
        return self if self.budget is None else replace(self, budget=self.budget.clamp(0, 1))

    def repeated(self, times: int) -> "ContextBatch":
        """The contexts one after the other, then all of them again, so many times."""
        return self._with_each(lambda part: part.repeat(times, *[1] * (part.dim() - 1)))

    def at(self, places: slice) -> "ContextBatch":
        """Some of the contexts."""
        return self._with_each(lambda part: part[places])

    def to(self, device: torch.device) -> "ContextBatch":
        """The same batch on a device."""
        return self if self.class_rates.device == device else self._with_each(lambda part: part.to(device))

    def _with_each(self, change: Callable[[Tensor], Tensor]) -> "ContextBatch":
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        values = {name: change(part) for name, part in parts.pop("values").items()}
        changed = {name: change(part) for name, part in parts.items() if part is not None}
        return replace(self, **changed, values=values)


class Presence:
    """Which values of an input there are, given the features (K, F) of contexts: by default all."""

    def mask(self, features: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:  # (K, *shape) bool
        """Where inputs of a shape have values; None if everywhere."""
        return None

    def zero_absent(self, x: Tensor, features: Tensor | None) -> Tensor:
        """Inputs (K * B, ...) as they are where only these features of each context are there.

        Nothing is in the place of what is not.
        """
        there = self.mask(features, tuple(x.shape[1:]))
        if there is None:
            return x
        return (x.reshape(len(there), -1, *x.shape[1:]) * there[:, None]).reshape(x.shape)

    def as_network_input(self, x: Tensor, features: Tensor | None) -> Tensor:
        """Inputs (K * B, ...) as networks for these features read them, their first layer's masks aside."""
        return x


def _rows(contexts: Sequence[Context], name: str) -> Tensor:  # (K, ...)
    """A user's own condition; every context says it, since its space says what stands for nothing said."""
    try:
        rows = [torch.as_tensor(context.values[name], dtype=torch.float32) for context in contexts]
    except (TypeError, ValueError, RuntimeError) as error:
        raise BhcError(f"{name} is no number and no tensor of numbers: {error}") from error
    return torch.stack([row.reshape(1) if row.dim() == 0 else row for row in rows])


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _appearances(context: Context, num_classes: int) -> list[float]:
    """How often each of all classes appears; what a context does not say is 1 everywhere."""
    if context.classes is None:
        return [1.0] * num_classes
    told = context.appearance or (1.0,) * len(context.classes)
    if len(told) != len(context.classes) or not all(0 <= label < num_classes for label in context.classes):
        raise BhcError(f"classes {context.classes} that appear {told}, of a network that has {num_classes}")
    appearances = [0.0] * num_classes
    for label, appearance in zip(context.classes, told, strict=True):
        appearances[label] = float(appearance)
    return appearances


def _stacked(parts: Sequence[Tensor | None], *, fill: float) -> Tensor:
    """The parts as rows; one that is None is ``fill`` everywhere."""
    like = next(part for part in parts if part is not None)
    return torch.stack([torch.full_like(like, fill) if part is None else part for part in parts])
