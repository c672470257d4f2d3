"""Several conditions at once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from bhc.contexts.budgets import Budgets
from bhc.contexts.classes import ClassSubsets
from bhc.contexts.context import ContextBatch
from bhc.contexts.domains import InputDomains
from bhc.contexts.likelihoods import Likelihood
from bhc.contexts.space import ContextSpace
from bhc.errors import BhcError


class Joint(ContextSpace):
    """``Joint(ClassSubsets(10), Budgets())``: each part is validated, sampled and encoded by its own space.

    In training every part is left out of ``missing`` of the contexts, so that a request may leave any of them out:
    all classes, all features, inputs of any kind, no budget. With nothing said a network is what unconditional
    compression gives. ``missing=0`` asks for all parts, always.

    With classes and an input domain together, a training domain is the mean of images of the drawn classes; with
    features, only of those that are there.
    """

    spaces: tuple[ContextSpace, ...]

    def __init__(self, *given: ContextSpace, missing: float = 0.1) -> None:
        nested = [space.spaces if isinstance(space, Joint) else (space,) for space in given]
        spaces = tuple(space for group in nested for space in group)
        if len(spaces) < 2:
            raise BhcError("Joint takes two or more context spaces", hint="use the single space as it is")
        if any(not space.conditions for space in spaces):
            raise BhcError(
                "a single context cannot be joined with others: there is nothing to ask", hint="leave it out"
            )
        names = [name for space in spaces for name in space.conditions]
        if len(set(names)) < len(names):
            raise BhcError(f"Joint takes one space of each kind, given {', '.join(names)}")
        told = [
            space for space in spaces if isinstance(space, InputDomains) and space.domain_shape != space.image_shape
        ]
        if told and any("features" in space.conditions for space in spaces):
            raise BhcError("features that are not there cannot be left out of a spectrum", hint="join it with classes")
        if not 0 <= missing < 1:
            raise BhcError(f"missing is a part of the contexts, 0 or more and less than 1, given {missing}")
        self.spaces, self.missing = spaces, missing

    @property
    def conditions(self) -> tuple[str, ...]:
        return tuple(name for space in self.spaces for name in space.conditions)

    @property
    def parts(self) -> tuple[ContextSpace, ...]:
        return self.spaces

    @property
    def optional(self) -> bool:
        return self.missing > 0

    @property
    def decides_outputs(self) -> bool:
        return any(space.decides_outputs for space in self.spaces)

    def check_network(self, num_classes: int) -> None:
        for space in self.spaces:
            space.check_network(num_classes)

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        for space in self.spaces:
            if set(space.conditions) <= set(request):
                parts |= space.resolve_parts(request)
            elif isinstance(space, Budgets):
                parts["budget"] = space.default_budget
        self._check_features(parts)
        return parts

    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        # Classes last: they settle which examples are drawn.
        for space in sorted(self.spaces, key=lambda space: isinstance(space, ClassSubsets)):
            batch = space.refine(batch, rng=rng)
        return self._leave_out(batch, rng) if self.optional else batch

    def observe(self, batch: ContextBatch, x: Tensor) -> ContextBatch:
        for space in self.spaces:
            batch = space.observe(batch, x)
        there = None if batch.domain is None else self.there(batch.inputs, tuple(batch.domain.shape[1:]))
        if batch.domain is None or there is None:
            return batch
        return replace(batch, domain=batch.domain * there)

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        return tuple(part for space in self.spaces for part in space.encode(batch))

    def describe(self) -> dict[str, str]:
        texts = {name: text for space in self.spaces for name, text in space.describe().items()}
        if {"classes", "domain"} <= set(texts):
            texts["domain"] = texts["domain"].split("; trained on")[0] + "; trained on those of the drawn classes"
        return texts

    def likelihoods(self) -> tuple[Likelihood, ...]:
        return tuple(part for space in self.spaces for part in space.likelihoods())

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "joint", "spaces": [space.to_dict() for space in self.spaces], "missing": self.missing}

    def zero_absent(self, x: Tensor, features: Tensor | None) -> Tensor:
        for space in self.spaces:
            x = space.zero_absent(x, features)
        return x

    def as_network_input(self, x: Tensor, features: Tensor | None) -> Tensor:
        for space in self.spaces:
            x = space.as_network_input(x, features)
        return x

    def there(self, features: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
        found = [space.there(features, shape) for space in self.spaces]
        return next((mask for mask in found if mask is not None), None)

    def _leave_out(self, batch: ContextBatch, rng: Generator) -> ContextBatch:
        told = torch.rand(len(self.spaces), len(batch), generator=rng, device=rng.device) >= self.missing
        narrowed = torch.zeros_like(told[0])  # by classes, said or only seen in the domain
        for space, own in zip(self.spaces, told, strict=True):
            batch = space.forget(batch, own)
            if isinstance(space, ClassSubsets | InputDomains):
                narrowed = narrowed | own
        batch = replace(batch, class_rates=batch.class_rates.where(narrowed[:, None], 1 / batch.num_classes))
        if batch.source_rates is None or batch.domain_told is None:
            return batch
        evenly = 1 / batch.source_rates.shape[1]
        return replace(batch, source_rates=batch.source_rates.where(batch.domain_told[:, None], evenly))

    def _check_features(self, parts: Mapping[str, Any]) -> None:
        """A domain's samples have nothing where no features are."""
        domain, features = parts.get("domain"), parts.get("features")
        if domain is None or features is None:
            return
        there = self.there(features[None], tuple(domain.shape))
        if there is not None and (domain * ~there[0]).any():
            raise BhcError(
                "the samples of the domain have values where the features say that there are none",
                hint="set them to 0 there, or name those features too",
            )
