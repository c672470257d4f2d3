"""Several conditions at once, and none: no choice of context, Bayesian compression of one network for one purpose."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import index
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bhc.contexts.context import ContextBatch, Presence
from bhc.contexts.domains import InputDomains
from bhc.contexts.registry import from_dict, register_context
from bhc.contexts.space import ContextSpace, JointEmbedder, Likelihood, ProbeRequest, Trainable
from bhc.errors import BhcError


@register_context
class Joint(ContextSpace):
    """``Joint(ClassSubsets(10), Budgets())``: each part is validated, sampled and encoded by its own space.

    In training every part is left out of ``missing`` of the contexts, so that a request may leave any of them out:
    all classes, all features, inputs of any kind, no budget. With nothing said a network is what unconditional
    compression gives. ``missing=0`` asks for all parts, always.

    With classes and an input domain together, a training domain is the mean of images of the drawn classes; with
    features, only of those that are there.
    """

    kind = "joint"
    conditions: tuple[str, ...] = ()  # those of its parts
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
        unforgettable = [space for space in spaces if type(space).forget is Trainable.forget]
        if missing and unforgettable:
            raise BhcError(
                f"contexts of type {type(unforgettable[0]).__name__} cannot be left out",
                hint="give Joint(..., missing=0), or write their method forget",
            )
        self.spaces, self.missing = spaces, missing
        self.conditions, self.optional = tuple(names), missing > 0
        self.decides_outputs = any(space.decides_outputs for space in spaces)
        self.draws_examples = any(space.draws_examples for space in spaces)
        presences = [space.presence for space in spaces if type(space.presence) is not Presence]
        self.presence = presences[0] if presences else Presence()

    @property
    def parts(self) -> tuple[ContextSpace, ...]:
        return self.spaces

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        for space in self.spaces:
            parts |= space.resolve_or_default(request)
        _check_features(parts, self.presence)
        return parts

    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        # Those that name classes last: they say which examples are drawn.
        for space in sorted(self.spaces, key=lambda space: space.decides_outputs):
            batch = space.refine(batch, rng=rng)
        return self._leave_out(batch, rng) if self.optional else batch

    def observe(self, batch: ContextBatch, x: Tensor) -> ContextBatch:
        for space in self.spaces:
            batch = space.observe(batch, x)
        there = None if batch.domain is None else self.presence.mask(batch.inputs, tuple(batch.domain.shape[1:]))
        if batch.domain is None or there is None:
            return batch
        return replace(batch, domain=batch.domain * there)

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        return tuple(part for space in self.spaces for part in space.encode(batch))

    def form(self) -> dict[str, dict[str, Any]]:
        controls = {name: control for space in self.spaces for name, control in space.form().items()}
        if {"classes", "domain"} <= set(controls):
            words = controls["domain"]["words"].split("; trained on")[0]
            controls["domain"]["words"] = f"{words}; trained on those of the drawn classes"
        return controls

    def likelihoods(self) -> tuple[Likelihood, ...]:
        return tuple(part for space in self.spaces for part in space.likelihoods())

    def embedder(self, width: int) -> nn.Module:
        return JointEmbedder([space.embedder(width) for space in self.spaces], width)

    def probes(self, num_classes: int, limit: int) -> Sequence[ProbeRequest]:
        """All combinations of some of each part."""
        each = []
        for space in self.spaces:
            own = space.probes(num_classes, space.most_probes)
            if self.decides_outputs and not space.decides_outputs and any(probe.classes for probe in own):
                own = [ProbeRequest({})]  # of the classes that another part names
            each.append(own)
        return [_combined(probes) for probes in product(*each)]

    def divergence_weights(self, batch: ContextBatch) -> Tensor:
        return torch.stack([space.divergence_weights(batch) for space in self.spaces]).prod(0)

    def example(self, seen: Tensor | None) -> dict[str, Any]:
        return {name: value for space in self.spaces for name, value in space.example(seen).items()}

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "spaces": [space.to_dict() for space in self.spaces], "missing": self.missing}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Joint":
        """Older runs were asked for every part."""
        return cls(*map(from_dict, data["spaces"]), missing=data.get("missing", 0.0))

    def _leave_out(self, batch: ContextBatch, rng: Generator) -> ContextBatch:
        told = torch.rand(len(self.spaces), len(batch), generator=rng, device=rng.device) >= self.missing
        narrowed = torch.zeros_like(told[0])  # by classes, said or only seen in the domain
        for space, own in zip(self.spaces, told, strict=True):
            batch = space.forget(batch, own)
            if space.draws_examples:
                narrowed = narrowed | own
        batch = replace(batch, class_rates=batch.class_rates.where(narrowed[:, None], 1 / batch.num_classes))
        if batch.source_rates is None or batch.domain_told is None:
            return batch
        evenly = 1 / batch.source_rates.shape[1]
        return replace(batch, source_rates=batch.source_rates.where(batch.domain_told[:, None], evenly))


def _combined(probes: Sequence[ProbeRequest]) -> ProbeRequest:
    asked = {name: value for probe in probes for name, value in probe.asked.items()}
    classes = next((probe.classes for probe in probes if probe.classes), None)
    return ProbeRequest(asked, classes, next((probe.sources for probe in probes if probe.sources), None))


def _check_features(parts: Mapping[str, Any], presence: Presence) -> None:
    """A domain's samples have nothing where no features are."""
    domain, features = parts.get("domain"), parts.get("features")
    if domain is None or features is None:
        return
    there = presence.mask(features[None], tuple(domain.shape))
    if there is not None and (domain * ~there[0]).any():
        raise BhcError(
            "the samples of the domain have values where the features say that there are none",
            hint="set them to 0 there, or name those features too",
        )


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
