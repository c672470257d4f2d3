"""What every kind of context can do: validate a request, sample for training, encode for the hypernetwork."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Generator, Tensor

from bhc.contexts.context import Context, ContextBatch
from bhc.contexts.likelihoods import Likelihood
from bhc.errors import BhcError


class ContextSpace(ABC):
    """The contexts a model is trained for."""

    @property
    @abstractmethod
    def conditions(self) -> tuple[str, ...]:
        """Names of the conditions a request may give: ``classes``, ``domain``, ``features``, ``budget``."""

    @abstractmethod
    def resolve_parts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Check the conditions of a request and return them as fields of a ``Context``."""

    @abstractmethod
    def refine(self, batch: ContextBatch, *, rng: Generator) -> ContextBatch:
        """Draw this space's part of every context in ``batch``."""

    @abstractmethod
    def encode(self, batch: ContextBatch) -> tuple[Tensor, ...]:
        """What the embedder reads, one tensor with a leading K for each part."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """What each condition takes, in words."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data that ``bhc.contexts.from_dict`` turns back into this space."""

    def likelihoods(self) -> tuple[Likelihood, ...]:
        """How each part of ``encode`` is distributed; nothing where there is nothing to read back."""
        return ()

    def observe(self, batch: ContextBatch, x: Tensor) -> ContextBatch:
        """Note what only the drawn examples tell, (K, B, ...); most contexts are known beforehand."""
        return batch

    def forget(self, batch: ContextBatch, told: Tensor) -> ContextBatch:
        """Say nothing of this space's part where ``told``, (K,) bool, is false."""
        return batch

    def sample(self, count: int, num_classes: int, *, rng: Generator) -> ContextBatch:
        """Draw contexts for a training step, on the generator's device."""
        batch = ContextBatch.unconditioned(count, num_classes, device=rng.device)
        return self.refine(batch, rng=rng)

    def check_network(self, num_classes: int) -> None:
        """Raise if a network with so many outputs cannot be conditioned on this space."""
        return

    @property
    def decides_outputs(self) -> bool:
        """Whether a context says which of a network's outputs there are."""
        return False

    @property
    def parts(self) -> tuple["ContextSpace", ...]:
        """The spaces of single conditions that this one consists of."""
        return (self,)

    @property
    def rises_with_budget(self) -> bool:
        """Whether a larger budget must never keep what a smaller one gave up."""
        return False

    def as_network_input(self, x: Tensor, features: Tensor | None) -> Tensor:
        """Inputs (K * B, ...) as networks for these features (K, F) read them, their first layer's masks aside."""
        return x

    def zero_absent(self, x: Tensor, features: Tensor | None) -> Tensor:
        """Inputs (K * B, ...) as they are where only these features (K, F) of each context are there.

        Nothing is in the place of what is not.
        """
        there = self.there(features, tuple(x.shape[1:]))
        if there is None:
            return x
        return (x.reshape(len(there), -1, *x.shape[1:]) * there[:, None]).reshape(x.shape)

    def there(self, features: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:  # (K, *shape) bool
        """Where inputs of a shape have values, given the features (K, F) of contexts; None if everywhere."""
        return None

    @property
    def optional(self) -> bool:
        """Whether a request may leave conditions out."""
        return False

    def resolve(self, request: Mapping[str, Any]) -> Context:
        """The context a user asks for, or an error that says what may be asked."""
        given = {name: value for name, value in request.items() if value is not None}
        allowed = ", ".join(self.conditions)
        unknown = [name for name in given if name not in self.conditions]
        if unknown:
            raise BhcError(
                f"this model was not trained for a condition on {', '.join(unknown)}",
                hint=f"it takes: {allowed}" if allowed else "it was made for one context: leave the conditions out",
            )
        missing = [name for name in self.conditions if name not in given]
        if missing and not self.optional:
            raise BhcError(
                f"the context lacks {', '.join(missing)}",
                hint=f"this model takes all of: {allowed}",
            )
        return Context(**self.resolve_parts(given))
