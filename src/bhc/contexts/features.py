"""Contexts of a fourth kind: some inputs will not be there. Words of a vocabulary are such inputs too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bhc.contexts.context import ContextBatch, Presence
from bhc.contexts.masks import MaskSampler, WordsOfTexts, draw_masks, mask_sampler_from_dict, usual_sampler
from bhc.contexts.registry import register_context
from bhc.contexts.space import Bernoulli, ContextSpace, Likelihood, Option, ProbeRequest, TrainingData, VectorEmbedder
from bhc.errors import BhcError
from bhc.files import LARGEST_ARRAY, read_array, read_bytes

PADDING, UNKNOWN = 0, 1  # as vocabularies number them


def _read_features(path: Path) -> Tensor | list[str]:
    """A mask or places from a ``.npy`` file, words from a ``.txt`` file."""
    if path.suffix != ".txt":
        return read_array(path, what="a mask that is true where a feature is there, or places")
    words = read_bytes(path, limit=LARGEST_ARRAY).decode(errors="replace").split()
    if not words:
        raise BhcError(f"{path} has no words", hint="write the words that will be there, apart by spaces or lines")
    return words


@dataclass(frozen=True)
class ValuesOfFeatures(Presence):
    """Each value is a feature; or if those are channels, all values of a channel are."""

    features: tuple[int, ...]  # their shape

    def mask(self, features: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
        if features is None:
            return None
        apart = features.reshape(len(features), *self.features, *[1] * (len(shape) - len(self.features)))
        return apart.expand(len(features), *shape)


class KnownWords(Presence):
    """A word can be anywhere; those that are not among the features are read as the unknown word."""

    def as_network_input(self, x: Tensor, features: Tensor | None) -> Tensor:
        if features is None:
            return x
        words = x.long().reshape(len(features), -1)
        known = features.gather(1, words)
        return torch.where(known, words, UNKNOWN).reshape(x.shape).to(x.dtype)

    zero_absent = as_network_input


@register_context
@dataclass(frozen=True)
class FeatureSubsets(ContextSpace):
    """The features that will be there: pixels, channels, words of a vocabulary. The emitted network reads no others.

    ``shape`` is that of the inputs where the first layer is linear, and each value is a feature. Where it is a
    convolution the features are its channels, and ``shape`` is their number, ``(3,)``. ``sampler`` says what
    training leaves out; a request may name any features: a mask of that shape, or the places of those that are there.
    """

    shape: tuple[int, ...]
    sampler: MaskSampler | None = None
    training_masks: MaskSampler = field(init=False, compare=False, repr=False)  # drawn: as given, or as suits the shape

    rank = 2
    kind = "features"
    conditions = ("features",)
    most_probes = 8
    options = (
        Option(
            "features",
            "Inputs that will be there: a .npy file, a mask or places; or a .txt file of words.",
            value_type=Path,
            parse=_read_features,
            example="mask.npy",
        ),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        whole = all(isinstance(size, int) for size in self.shape)
        if not self.shape or not whole or min(self.shape) < 1 or prod(self.shape) < 2:
            raise BhcError(f"features of shape {self.shape}", hint="there must be at least two to choose from")
        object.__setattr__(self, "training_masks", self.sampler or usual_sampler(self.shape))

    @property
    def num_features(self) -> int:
        return prod(self.shape)

    @property
    def presence(self) -> Presence:  # type: ignore[override]
        return ValuesOfFeatures(self.shape)

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            given = torch.as_tensor(request["features"])
        except (TypeError, ValueError, RuntimeError) as error:
            raise BhcError(f"the features are not an array: {error}", hint=_allowed(self.shape)) from None
        mask = _mask_of(given, self.shape) if given.numel() else torch.zeros(1, dtype=torch.bool)
        if not mask.any():
            raise BhcError("no feature is there: the mask removes everything", hint="keep at least one")
        return {"features": mask}

    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        return replace(batch, inputs=draw_masks(self.training_masks, len(batch), self.shape, rng=rng))

    def forget(self, batch: ContextBatch, told: Tensor) -> ContextBatch:
        assert batch.inputs is not None
        return replace(batch, inputs=batch.inputs | ~told[:, None])

    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        if batch.inputs is None:
            return (batch.class_rates.new_ones(len(batch), self.num_features),)
        return (batch.inputs.float(),)

    def likelihoods(self) -> tuple[Likelihood, ...]:
        return (Bernoulli(self.num_features),)

    def embedder(self, width: int) -> nn.Module:
        return VectorEmbedder(self.num_features, width)

    def probes(self, num_classes: int, limit: int) -> Sequence[ProbeRequest]:
        drawn = self.refine(ContextBatch.unconditioned(limit, 1), rng=Generator().manual_seed(0)).inputs
        assert drawn is not None
        return [ProbeRequest({"features": mask}) for mask in drawn]

    def form(self) -> dict[str, dict[str, Any]]:
        words = f"{_allowed(self.shape)}; trained on {self.training_masks.describe()}"
        return {"features": {"kind": "mask", "words": words, "shape": list(self.shape)}}

    def example(self, seen: Tensor | None) -> dict[str, Any]:
        return {"features": list(range(self.num_features))}

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "shape": list(self.shape), "sampler": self.training_masks.to_dict()}

    @classmethod
    def for_data(cls, data: TrainingData, chosen: Mapping[str, Any]) -> "FeatureSubsets | None":
        return None if data.vocabulary is not None else cls(data.image_shape)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "FeatureSubsets":
        return cls(tuple(data["shape"]), mask_sampler_from_dict(data["sampler"]))


def _allowed(shape: tuple[int, ...]) -> str:
    text = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    return f"a mask of shape {text}, true where a feature is there, or places from 0 to {prod(shape) - 1}"


def _mask_of(given: Tensor, shape: tuple[int, ...]) -> Tensor:  # (F,) bool
    """A mask, or places, as a flat mask."""
    count, hint = prod(shape), f"give {_allowed(shape)}"
    if given.dtype == torch.bool:
        if given.shape not in (shape, (count,)):
            raise BhcError(f"a feature mask of shape {tuple(given.shape)}", hint=hint)
        return given.flatten()
    if given.is_floating_point() or given.dim() != 1:
        raise BhcError(
            f"features as an array of {given.dtype}, shape {tuple(given.shape)}".replace("torch.", ""), hint=hint
        )
    given = given.long()
    outside = given[(given < 0) | (given >= count)]
    if len(outside):
        raise BhcError(f"there is no feature {int(outside[0])}", hint=hint)
    if len(given.unique()) < len(given):
        raise BhcError(
            "a feature is named twice", hint="if the array is a mask, give truths: numpy.asarray(mask, bool)"
        )
    mask = torch.zeros(count, dtype=torch.bool)
    mask[given] = True
    return mask


@register_context
@dataclass(frozen=True)
class VocabularySubsets(FeatureSubsets):
    """The words that will be there, out of ``shape[0]``. The emitted network has rows of weights for no others.

    Words that come up all the same are read as the unknown word, whose row is always there. Training reads texts so.
    """

    kind = "vocabulary"

    def __post_init__(self) -> None:
        if isinstance(self.shape, int):
            object.__setattr__(self, "shape", (self.shape,))
        super().__post_init__()
        if len(self.shape) != 1 or self.shape[0] <= UNKNOWN + 1:
            raise BhcError(f"a vocabulary of shape {self.shape}", hint="give the number of its words, such as 3,000")

    @property
    def presence(self) -> Presence:  # type: ignore[override]
        return KnownWords()

    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        drawn = super().refine(batch, rng=rng)
        assert drawn.inputs is not None
        return replace(drawn, inputs=_with_reserved(drawn.inputs))

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        parts = super().resolve_parts(request)
        if not parts["features"][UNKNOWN + 1 :].any():
            raise BhcError("the vocabulary has no word left", hint="name at least one")
        return {"features": _with_reserved(parts["features"][None])[0]}

    @classmethod
    def for_data(cls, data: TrainingData, chosen: Mapping[str, Any]) -> "VocabularySubsets | None":
        if data.vocabulary is None:
            return None
        count = len(data.vocabulary)
        return cls((count,), WordsOfTexts.among(data.train.inputs, count))


def _with_reserved(masks: Tensor) -> Tensor:  # (K, F)
    kept = torch.zeros_like(masks)
    kept[:, [PADDING, UNKNOWN]] = True
    return masks | kept
