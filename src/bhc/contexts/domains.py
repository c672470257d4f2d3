"""Contexts of the second kind: inputs come from one region, told by the mean of a sample."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Generator, Tensor

from bhc.contexts.context import ContextBatch
from bhc.contexts.likelihoods import Gaussian, Likelihood, PooledGaussian
from bhc.contexts.space import ContextSpace
from bhc.contexts.subsets import ConsecutivePairs, SubsetSampler, sampler_from_dict
from bhc.contexts.summaries import InputAsItIs, Summary, summary_from_dict
from bhc.errors import BhcError

LEAST_SAMPLES = 16  # the mean of fewer is mostly noise


@dataclass(frozen=True)
class SampleMean:
    """What is left of a sample that was looked at before: all that the hypernetwork is told of a domain."""

    mean: Tensor  # of what each input tells, the input itself unless a summary says otherwise
    size: int  # of the sample


@dataclass(frozen=True)
class InputDomains(ContextSpace):
    """The paper's c_x: the hypernetwork sees the mean input of the batch and nothing of its labels.

    ``sampler`` says which classes a training domain mixes (pairs give the "domain" protocol, all classes at
    once the "mixed" one); the network keeps all of its outputs. Means are divided by ``full_scale``.

    With ``num_sources`` a training domain is what some sources gave, such as speakers, of all classes, and ``sampler``
    draws among those. ``summary`` says what each input tells, where the input as it is would tell little.
    """

    image_shape: tuple[int, ...]
    sampler: SubsetSampler = field(default_factory=ConsecutivePairs)
    full_scale: float = 255.0
    summary: Summary | None = None
    num_sources: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_shape", tuple(self.image_shape))
        if self.summary is None:
            object.__setattr__(self, "summary", InputAsItIs(self.full_scale))
        assert self.summary is not None
        self.summary.shape(self.image_shape)  # raises where they do not fit

    @property
    def domain_shape(self) -> tuple[int, ...]:
        """Of what is told of a domain."""
        assert self.summary is not None
        return self.summary.shape(self.image_shape)

    def summarise(self, x: Tensor) -> Tensor:  # (N, *image shape) -> (N, *domain shape)
        """What each input tells of the domain."""
        assert self.summary is not None
        return self.summary.of(x)

    @property
    def conditions(self) -> tuple[str, ...]:
        return ("domain",)

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        given = request["domain"]
        kept = given if isinstance(given, SampleMean) else self.mean_of(given)
        if tuple(kept.mean.shape) != self.domain_shape or kept.size < LEAST_SAMPLES:
            raise BhcError(
                f"the mean of {kept.size} inputs of shape {tuple(kept.mean.shape)} is none of this model's domains",
                hint=f"it takes that of {LEAST_SAMPLES} or more of shape {self.domain_shape}",
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
        if not torch.isfinite(sample).all() or not torch.isfinite(sample.mean(0)).all():
            raise BhcError("the domain sample contains NaN or infinity", hint="remove such inputs first")
        assert self.summary is not None
        self.summary.check(sample)
        return SampleMean(self.summarise(sample).mean(0), len(sample))

    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        members = self.sampler.draw(len(batch), self.num_sources or batch.num_classes, rng=rng).float()
        rates = members / members.sum(1, keepdim=True)
        return replace(batch, class_rates=rates) if self.num_sources is None else replace(batch, source_rates=rates)

    def observe(self, batch: ContextBatch, x: Tensor) -> ContextBatch:
        return replace(batch, domain=self.summarise(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1))

    def forget(self, batch: ContextBatch, told: Tensor) -> ContextBatch:
        return replace(batch, domain_told=told)

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        """The mean; where none is told, zero, which no domain has."""
        if batch.domain is None:
            return (batch.class_rates.new_zeros(len(batch), *self.domain_shape),)
        assert self.summary is not None
        told = 1 if batch.domain_told is None else batch.domain_told.reshape(-1, *[1] * len(self.domain_shape))
        return (batch.domain * told / self.summary.full_scale,)

    def describe(self) -> dict[str, str]:
        shape = ", ".join(map(str, self.image_shape))
        return {
            "domain": f"{LEAST_SAMPLES} or more inputs, an array of shape (n, {shape}) up to {self.full_scale:g};"
            f" trained on domains of {self.sampler.describe()}" + (" of sources" if self.num_sources else "")
        }

    def likelihoods(self) -> tuple[Likelihood, ...]:
        if len(self.domain_shape) == 3:
            return (PooledGaussian(self.domain_shape[0], side=4, std=0.1),)
        return (Gaussian(prod(self.domain_shape), std=0.1),)

    def to_dict(self) -> dict[str, Any]:
        data = {
            "kind": "domain",
            "image_shape": list(self.image_shape),
            "sampler": self.sampler.to_dict(),
            "full_scale": self.full_scale,
        }
        # What is usual is left out: runs from before there was a choice read the same.
        if self.summary != InputAsItIs(self.full_scale) and self.summary is not None:
            data["summary"] = self.summary.to_dict()
        return data if self.num_sources is None else data | {"num_sources": self.num_sources}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "InputDomains":
        """The space that ``to_dict`` described."""
        summary, sources = data.get("summary"), data.get("num_sources")
        return cls(
            tuple(data["image_shape"]),
            sampler_from_dict(data["sampler"]),
            data["full_scale"],
            None if summary is None else summary_from_dict(summary),
            None if sources is None else int(sources),
        )
