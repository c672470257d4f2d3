"""Features that are words: a text has a few of very many, and any other word is one and the same."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from bhc.contexts.context import ContextBatch
from bhc.contexts.features import FeatureSubsets
from bhc.contexts.masks import mask_sampler_from_dict
from bhc.errors import BhcError

PADDING, UNKNOWN = 0, 1  # as vocabularies number them


@dataclass(frozen=True)
class VocabularySubsets(FeatureSubsets):
    """The words that will be there, out of ``shape[0]``. The emitted network has rows of weights for no others.

    Words that come up all the same are read as the unknown word, whose row is always there. Training reads texts so.
    """

    def __post_init__(self) -> None:
        if isinstance(self.shape, int):
            object.__setattr__(self, "shape", (self.shape,))
        super().__post_init__()
        if len(self.shape) != 1 or self.shape[0] <= UNKNOWN + 1:
            raise BhcError(f"a vocabulary of shape {self.shape}", hint="give the number of its words, such as 3,000")

    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        drawn = super().refine(batch, rng=rng)
        assert drawn.inputs is not None
        return replace(drawn, inputs=_with_reserved(drawn.inputs))

    def resolve_parts(self, request: Any) -> dict[str, Any]:
        parts = super().resolve_parts(request)
        if not parts["features"][UNKNOWN + 1 :].any():
            raise BhcError("the vocabulary has no word left", hint="name at least one")
        return {"features": _with_reserved(parts["features"][None])[0]}

    def zero_absent(self, x: Tensor, features: Tensor | None) -> Tensor:
        return self.as_network_input(x, features)

    def as_network_input(self, x: Tensor, features: Tensor | None) -> Tensor:
        if features is None:
            return x
        words = x.long().reshape(len(features), -1)
        known = features.gather(1, words)
        return torch.where(known, words, UNKNOWN).reshape(x.shape).to(x.dtype)

    def there(self, features: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
        """A word can be anywhere."""
        return None

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"kind": "vocabulary"}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "VocabularySubsets":
        """The space that ``to_dict`` described."""
        return cls(tuple(data["shape"]), mask_sampler_from_dict(data["sampler"]))


def _with_reserved(masks: Tensor) -> Tensor:  # (K, F)
    kept = torch.zeros_like(masks)
    kept[:, [PADDING, UNKNOWN]] = True
    return masks | kept
