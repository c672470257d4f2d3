"""Contexts of a fourth kind: some inputs will not be there."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Generator, Tensor

from bhc.contexts.context import ContextBatch
from bhc.contexts.likelihoods import Bernoulli, Likelihood
from bhc.contexts.masks import MaskSampler, draw_masks, mask_sampler_from_dict, usual_sampler
from bhc.contexts.space import ContextSpace
from bhc.errors import BhcError


@dataclass(frozen=True)
class FeatureSubsets(ContextSpace):
    """The features that will be there: pixels, channels, words of a vocabulary. The emitted network reads no others.

    ``shape`` is that of the inputs where the first layer is linear, and each value is a feature. Where it is a
    convolution the features are its channels, and ``shape`` is their number, ``(3,)``. ``sampler`` says what
    training leaves out; a request may name any features: a mask of that shape, or the places of those that are there.
    """

    shape: tuple[int, ...]
    sampler: MaskSampler | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        whole = all(isinstance(size, int) for size in self.shape)
        if not self.shape or not whole or min(self.shape) < 1 or prod(self.shape) < 2:
            raise BhcError(f"features of shape {self.shape}", hint="there must be at least two to choose from")

    @property
    def training_masks(self) -> MaskSampler:
        """What is drawn in training: the given sampler, or what suits the shape."""
        return self.sampler or usual_sampler(self.shape)

    @property
    def num_features(self) -> int:
        return prod(self.shape)

    @property
    def conditions(self) -> tuple[str, ...]:
        return ("features",)

    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            given = torch.as_tensor(request["features"])
        except (TypeError, ValueError, RuntimeError) as error:
            raise BhcError(f"the features are not an array: {error}", hint=self._hint) from None
        mask = self._mask(given) if given.numel() else torch.zeros(1, dtype=torch.bool)
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

    def there(self, features: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
        """Each value is a feature; or if those are channels, all values of a channel are."""
        if features is None:
            return None
        apart = features.reshape(len(features), *self.shape, *[1] * (len(shape) - len(self.shape)))
        return apart.expand(len(features), *shape)

    def describe(self) -> dict[str, str]:
        return {"features": f"{self._hint}; trained on {self.training_masks.describe()}"}

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "features", "shape": list(self.shape), "sampler": self.training_masks.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "FeatureSubsets":
        """The space that ``to_dict`` described."""
        return cls(tuple(data["shape"]), mask_sampler_from_dict(data["sampler"]))

    @property
    def _hint(self) -> str:
        shape = "(" + ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "") + ")"
        return f"a mask of shape {shape}, true where a feature is there, or places from 0 to {self.num_features - 1}"

    def _mask(self, given: Tensor) -> Tensor:  # (F,) bool
        if given.dtype == torch.bool:
            if given.shape not in (self.shape, (self.num_features,)):
                raise BhcError(f"a feature mask of shape {tuple(given.shape)}", hint=f"give {self._hint}")
            return given.flatten()
        if given.is_floating_point() or given.dim() != 1:
            raise BhcError(
                f"features as an array of {given.dtype}, shape {tuple(given.shape)}".replace("torch.", ""),
                hint=f"give {self._hint}",
            )
        given = given.long()
        outside = given[(given < 0) | (given >= self.num_features)]
        if len(outside):
            raise BhcError(f"there is no feature {int(outside[0])}", hint=f"give {self._hint}")
        if len(given.unique()) < len(given):
            raise BhcError(
                "a feature is named twice", hint="if the array is a mask, give truths: numpy.asarray(mask, bool)"
            )
        mask = torch.zeros(self.num_features, dtype=torch.bool)
        mask[given] = True
        return mask
