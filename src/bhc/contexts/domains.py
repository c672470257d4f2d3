"""Contexts of the second kind: inputs come from one region, told by the mean of a sample.

What a sample tells is one set of numbers an input, of which the mean is taken: the input as it is, or a ``Summary``.
"""

import base64
import binascii
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from bhc.contexts.context import ContextBatch
from bhc.contexts.registry import register_context
from bhc.contexts.space import (
    ContextSpace,
    Gaussian,
    ImageEmbedder,
    Likelihood,
    Option,
    PooledGaussian,
    ProbeRequest,
    TrainingData,
    VectorEmbedder,
)
from bhc.contexts.subsets import (
    SUBSETS,
    ConsecutivePairs,
    RandomSubsets,
    SubsetSampler,
    sampler_from_dict,
    sampler_named,
)
from bhc.errors import BhcError
from bhc.files import read_array
from bhc.layers import LogMel

LEAST_SAMPLES = 16  # the mean of fewer is mostly noise
MOST_EXAMPLES = 256  # samples of the domain that an example asks for
FULL_SCALE = 32_768.0
SPREAD = 10.0  # logarithms of energies lie this far apart

# A domain as a word. It is its own state: every process, today or after a restart, reads the same domain from it.
PREFIX = "domain-1-"
HEAD = struct.Struct("<II")  # samples, checksum of what follows
TOKEN_HINT = "make one with POST /v1/domains, and hand it on as it is"


def _read_sample(path: Path) -> Tensor:
    return read_array(path, what="images of shape (n, channels, height, width)")


class Summary(ABC):
    """A way to look at inputs of a shape."""

    full_scale: float  # a hypernetwork is shown what is told over this

    @abstractmethod
    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, ...]:
        """That of what is told of one input."""

    @abstractmethod
    def of(self, x: Tensor) -> Tensor:  # (N, *image shape) -> (N, *shape)
        """What each input tells."""

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Raise if an input tells nothing."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data that describes it."""


@dataclass(frozen=True)
class InputAsItIs(Summary):
    """The input itself, as the paper has it, over the largest value that it can have."""

    full_scale: float = 255.0

    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, ...]:
        return image_shape

    def of(self, x: Tensor) -> Tensor:
        return x.float()

    def check(self, x: Tensor) -> None:
        if self.full_scale > 1 and 0 < x.max() <= 1:
            raise BhcError(
                "the domain sample lies between 0 and 1",
                hint=f"give inputs as the network takes them, here up to {self.full_scale:g}",
            )

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "input", "full_scale": self.full_scale}


@dataclass(frozen=True)
class Spectrum(Summary):
    """Of a recording, the logarithm of its mean energy in each band: how a voice sounds, whatever it says.

    The mean of samples would be zero for everybody.
    """

    rate: int = 8_000
    bands: int = 32
    window: int = 256
    hop: int = 160

    full_scale = 1.0

    @cached_property
    def _log_mel(self) -> LogMel:
        return LogMel(self.rate, self.bands, self.window, self.hop)

    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(image_shape) != 2 or image_shape[0] != 1 or self._log_mel.frames(image_shape[1]) < 1:
            raise BhcError(f"inputs of shape {image_shape} have no spectrum", hint="give recordings of one channel")
        return (self.bands,)

    def of(self, x: Tensor) -> Tensor:
        energies = self._log_mel(x.float() / FULL_SCALE)  # (N, 1, bands, frames)
        frames = energies.shape[-1]
        return (torch.logsumexp(energies[:, 0], dim=2) - torch.tensor(float(frames)).log()) / SPREAD

    def check(self, x: Tensor) -> None:
        flat = x.flatten(1)
        silent = (flat == flat[:, :1]).all(1)
        if silent.any():
            place = int(silent.nonzero()[0])
            raise BhcError(f"recording {place} of the domain sample is silent", hint="leave such recordings out")
        if x.is_floating_point() and float(x.abs().max()) <= 1:
            raise BhcError(
                "the domain sample lies between -1 and 1", hint="give samples as 16-bit numbers, up to 32,767"
            )

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "spectrum", **asdict(self)}


def summary_from_dict(data: dict[str, Any]) -> Summary:
    """The summary that ``to_dict`` described."""
    options = dict(data)
    match options.pop("kind"):
        case "input":
            return InputAsItIs(**options)
        case "spectrum":
            return Spectrum(**options)
        case other:
            raise BhcError(f"unknown kind of summary: {other!r}")


@dataclass(frozen=True)
class SampleMean:
    """What is left of a sample that was looked at before: all that the hypernetwork is told of a domain."""

    mean: Tensor  # of what each input tells, the input itself unless a summary says otherwise
    size: int  # of the sample


def to_token(domain: SampleMean) -> str:
    """The word for a domain."""
    values = domain.mean.numpy().astype("<f4").tobytes()
    content = HEAD.pack(domain.size, zlib.crc32(values)) + values
    return PREFIX + base64.urlsafe_b64encode(content).decode()


def from_token(token: str, shape: tuple[int, ...]) -> SampleMean:
    """The domain behind a word; ``shape`` is that of the model's inputs."""
    if not token.startswith(PREFIX):
        raise BhcError(
            f"{token[:40]!r} is neither a sample nor the token of a domain", hint=f"give an array, or {TOKEN_HINT}"
        )
    try:
        content = base64.b64decode(token[len(PREFIX) :].encode("ascii"), altchars=b"-_", validate=True)
        size, checksum = HEAD.unpack_from(content)
    except (binascii.Error, UnicodeEncodeError, struct.error, ValueError) as error:
        raise BhcError(f"the token of the domain is damaged: {error}", hint=TOKEN_HINT) from None
    values = content[HEAD.size :]
    if zlib.crc32(values) != checksum:
        raise BhcError("the token of the domain is damaged: its checksum is another", hint=TOKEN_HINT)
    mean = np.frombuffer(values, "<f4") if len(values) % 4 == 0 else np.zeros(0)
    if mean.size != int(np.prod(shape)) or not np.isfinite(mean).all():
        raise BhcError("the token is that of a domain of another model", hint=TOKEN_HINT)
    return SampleMean(torch.from_numpy(mean.astype(np.float32).reshape(shape)), size)


@register_context
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
    told: Summary = field(init=False, compare=False, repr=False)  # what each input tells of its domain
    domain_shape: tuple[int, ...] = field(init=False, compare=False, repr=False)  # of that

    rank = 1
    kind = "domain"
    conditions = ("domain",)
    draws_examples = True
    options = (
        Option(
            "domain",
            "Sample of its inputs: a .npy file, or a folder of .wav files.",
            value_type=Path,
            parse=_read_sample,
            example="sample.npy",
            upload="/v1/domains",
        ),
    )
    training_options = (SUBSETS,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_shape", tuple(self.image_shape))
        if self.summary is None:
            object.__setattr__(self, "summary", InputAsItIs(self.full_scale))
        assert self.summary is not None
        object.__setattr__(self, "told", self.summary)
        object.__setattr__(self, "domain_shape", self.told.shape(self.image_shape))

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        given = request["domain"]
        if isinstance(given, str):
            given = from_token(given, self.domain_shape)
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
        self.told.check(sample)
        return SampleMean(self.told.of(sample).mean(0), len(sample))

    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        members = self.sampler.draw(len(batch), self.num_sources or batch.num_classes, rng=rng).float()
        rates = members / members.sum(1, keepdim=True)
        return replace(batch, class_rates=rates) if self.num_sources is None else replace(batch, source_rates=rates)

    def observe(self, batch: ContextBatch, x: Tensor) -> ContextBatch:
        return replace(batch, domain=self.told.of(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1))

    def forget(self, batch: ContextBatch, told: Tensor) -> ContextBatch:
        return replace(batch, domain_told=told)

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        """The mean; where none is told, zero, which no domain has."""
        if batch.domain is None:
            return (batch.class_rates.new_zeros(len(batch), *self.domain_shape),)
        told = 1 if batch.domain_told is None else batch.domain_told.reshape(-1, *[1] * len(self.domain_shape))
        return (batch.domain * told / self.told.full_scale,)

    def form(self) -> dict[str, dict[str, Any]]:
        shape = ", ".join(map(str, self.image_shape))
        words = (
            f"{LEAST_SAMPLES} or more inputs, an array of shape (n, {shape}) up to {self.full_scale:g};"
            f" trained on domains of {self.sampler.describe()}" + (" of sources" if self.num_sources else "")
        )
        control = {"kind": "samples", "shape": list(self.image_shape), "full_scale": self.full_scale}
        return {"domain": {"words": words, **control}}

    def example(self, seen: Tensor | None) -> dict[str, Any]:
        grey = SampleMean(torch.full(self.domain_shape, self.full_scale / 2), MOST_EXAMPLES)
        return {"domain": to_token(grey if seen is None else self.mean_of(seen[:MOST_EXAMPLES]))}

    def embedder(self, width: int) -> nn.Module:
        shape = self.domain_shape
        return ImageEmbedder(shape[0], width) if len(shape) == 3 else VectorEmbedder(prod(shape), width)

    def probes(self, num_classes: int, limit: int) -> Sequence[ProbeRequest]:
        """Of what is asked only the examples are known: they are what tells the domain."""
        subsets = self.sampler.examples(self.num_sources or num_classes, limit)
        if self.num_sources is not None:
            return [ProbeRequest({}, sources=subset) for subset in subsets]
        return [ProbeRequest({}, classes=subset) for subset in subsets]

    def likelihoods(self) -> tuple[Likelihood, ...]:
        if len(self.domain_shape) == 3:
            return (PooledGaussian(self.domain_shape[0], side=4, std=0.1),)
        return (Gaussian(prod(self.domain_shape), std=0.1),)

    def to_dict(self) -> dict[str, Any]:
        data = {
            "kind": self.kind,
            "image_shape": list(self.image_shape),
            "sampler": self.sampler.to_dict(),
            "full_scale": self.full_scale,
        }
        # What is usual is left out: runs from before there was a choice read the same.
        if self.summary != InputAsItIs(self.full_scale) and self.summary is not None:
            data["summary"] = self.summary.to_dict()
        return data if self.num_sources is None else data | {"num_sources": self.num_sources}

    @classmethod
    def for_data(cls, data: TrainingData, chosen: Mapping[str, Any]) -> "InputDomains":
        """Of a few classes; where examples have sources, of one source or two."""
        if not data.source_names:
            sampler = sampler_named(chosen[SUBSETS.name], data.num_classes)
            return cls(data.image_shape, sampler, full_scale=data.full_scale)
        sources = len(data.source_names)
        few = RandomSubsets((1, 2) if sources > 1 else (1,))
        return cls(data.image_shape, few, data.full_scale, summary=Spectrum(), num_sources=sources)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "InputDomains":
        summary, sources = data.get("summary"), data.get("num_sources")
        return cls(
            tuple(data["image_shape"]),
            sampler_from_dict(data["sampler"]),
            data["full_scale"],
            None if summary is None else summary_from_dict(summary),
            None if sources is None else int(sources),
        )
