"""Contexts of the second kind: inputs come from one region, told by the mean of a sample."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor

from bhc.contexts.context import ContextBatch
from bhc.contexts.likelihoods import Likelihood, PooledGaussian
from bhc.contexts.space import ContextSpace
from bhc.contexts.subsets import ConsecutivePairs, SubsetSampler, sampler_from_dict
from bhc.errors import BhcError

LEAST_SAMPLES = 16  # the mean of fewer is mostly noise


@dataclass(frozen=True)
class SampleMean:
    """What is left of a sample that was looked at before: all that the hypernetwork is told of a domain."""

    mean: Tensor  # (C, H, W)
    size: int  # of the sample


@dataclass(frozen=True)
class InputDomains(ContextSpace):
    """The paper's c_x: the hypernetwork sees the mean input of the batch and nothing of its labels.

    ``sampler`` says which classes a training domain mixes (pairs give the "domain" protocol, all classes at
    once the "mixed" one); the network keeps all of its outputs. Means are divided by ``full_scale``.
    """

    image_shape: tuple[int, int, int]
    sampler: SubsetSampler = field(default_factory=ConsecutivePairs)
    full_scale: float = 255.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_shape", tuple(self.image_shape))

    @property
    def conditions(self) -> tuple[str, ...]:
        return ("domain",)

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        given = request["domain"]
        kept = given if isinstance(given, SampleMean) else self.mean_of(given)
        if tuple(kept.mean.shape) != self.image_shape or kept.size < LEAST_SAMPLES:
            raise BhcError(
                f"the mean of {kept.size} inputs of shape {tuple(kept.mean.shape)} is none of this model's domains",
                hint=f"it takes that of {LEAST_SAMPLES} or more of shape {self.image_shape}",
            )
        return {"domain": kept.mean, "domain_size": kept.size}

    def mean_of(self, given: Any) -> SampleMean:
        """The mean of a sample that says enough of its domain."""
        try:
            sample = torch.as_tensor(given).float()
        except (TypeError, ValueError, RuntimeError) as error:
            raise BhcError(f"the domain sample is not an array of numbers: {error}") from error
        expected = "(samples, " + ", ".join(map(str, self.image_shape)) + ")"
        if sample.dim() != 1 + len(self.image_shape) or tuple(sample.shape[1:]) != self.image_shape:
            raise BhcError(f"a domain sample of shape {tuple(sample.shape)}", hint=f"it must have shape {expected}")
        if len(sample) < LEAST_SAMPLES:
            raise BhcError(
                f"a domain sample of {len(sample)} inputs says too little",
                hint=f"give at least {LEAST_SAMPLES}, better a hundred",
            )
        mean = sample.mean(0)
        if not torch.isfinite(sample).all() or not torch.isfinite(mean).all():
            raise BhcError("the domain sample contains NaN or infinity", hint="remove such inputs first")
        if self.full_scale > 1 and 0 < sample.max() <= 1:
            raise BhcError(
                "the domain sample lies between 0 and 1",
                hint=f"give inputs as the network takes them, here up to {self.full_scale:g}",
            )
        return SampleMean(mean, len(sample))

    def refine(self, batch: ContextBatch, *, generator: Generator) -> ContextBatch:
        members = self.sampler.draw(len(batch), batch.num_classes, generator=generator).float()
        return replace(batch, class_rates=members / members.sum(1, keepdim=True))

    def observe(self, batch: ContextBatch, x: Tensor) -> ContextBatch:
        return replace(batch, domain=x.float().mean(1))

    def forget(self, batch: ContextBatch, told: Tensor) -> ContextBatch:
        return replace(batch, domain_told=told)

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        """The mean; where none is told, zero, which no domain has."""
        if batch.domain is None:
            return (batch.class_rates.new_zeros(len(batch), *self.image_shape),)
        told = 1 if batch.domain_told is None else batch.domain_told[:, None, None, None]
        return (batch.domain * told / self.full_scale,)

    def describe(self) -> dict[str, str]:
        shape = ", ".join(map(str, self.image_shape))
        return {
            "domain": f"{LEAST_SAMPLES} or more inputs, an array of shape (n, {shape}) up to {self.full_scale:g};"
            f" trained on domains of {self.sampler.describe()}"
        }

    def likelihoods(self) -> tuple[Likelihood, ...]:
        return (PooledGaussian(self.image_shape[0], side=4, std=0.1),)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "domain",
            "image_shape": list(self.image_shape),
            "sampler": self.sampler.to_dict(),
            "full_scale": self.full_scale,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "InputDomains":
        """The space that ``to_dict`` described."""
        channels, height, width = data["image_shape"]
        return cls((channels, height, width), sampler_from_dict(data["sampler"]), data["full_scale"])
