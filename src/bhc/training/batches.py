"""Drawing K contexts x B examples without a loop."""

import torch
from torch import Generator, Tensor

from bhc.contexts import ContextBatch
from bhc.errors import BhcError
from bhc.examples import Split


class ClassIndex:
    """A training set sorted by class, so that an example of a given class is one look-up away.

    Where examples have sources it is sorted by source and class, for contexts that ask for sources.
    """

    def __init__(self, split: Split, num_classes: int, *, device: torch.device | None = None) -> None:
        if len(split) == 0 or int(split.labels.max()) >= num_classes:
            raise BhcError(f"the training set must be non-empty with labels from 0 to {num_classes - 1}")
        self.inputs = split.inputs.to(device)
        self.counts = torch.bincount(split.labels.cpu(), minlength=num_classes)
        missing = (self.counts == 0).nonzero().flatten().tolist()
        if missing:
            raise BhcError(
                f"the training set has no example of class {missing[0]}",
                hint="every class of the network needs examples",
            )
        self.counts = self.counts.to(device)
        self._order = split.labels.cpu().argsort(stable=True).to(device)
        self._starts = self.counts.cumsum(0) - self.counts
        self.by_source = None if split.sources is None else SourceIndex(split, num_classes, device=device)

    def draw(self, batch: ContextBatch, examples: int, *, rng: Generator) -> tuple[Tensor, Tensor]:
        """Places of images and their labels, (K * B,) each: each context's classes at its rates, with replacement.

        Batch, generator and data are on one device, so that nothing is waited for.
        """
        if batch.source_rates is not None:
            if self.by_source is None:
                raise BhcError("contexts are sources, and the training set does not say where its examples are from")
            return self.by_source.draw(batch.class_rates, batch.source_rates, examples, rng=rng)
        labels = torch.multinomial(batch.class_rates, examples, replacement=True, generator=rng)
        places = torch.rand(labels.shape, generator=rng, device=rng.device) * self.counts[labels]
        return self._order[self._starts[labels] + places.long()].flatten(), labels.flatten()

    def context_sizes(self, batch: ContextBatch) -> Tensor:  # (K,)
        """``|D_t|``: how many training examples belong to each context."""
        if batch.source_rates is not None and self.by_source is not None:
            return self.by_source.context_sizes(batch.class_rates, batch.source_rates)
        return ((batch.class_rates > 0) * self.counts).sum(1).float()


class SourceIndex:
    """A training set in cells, one for each source and class."""

    def __init__(self, split: Split, num_classes: int, *, device: torch.device | None) -> None:
        assert split.sources is not None
        cells = (split.sources * num_classes + split.labels).cpu()
        num_sources = int(split.sources.max()) + 1
        counts = torch.bincount(cells, minlength=num_sources * num_classes)
        self.num_classes = num_classes
        self.counts = counts.to(device)  # (S * C,)
        self._order = cells.argsort(stable=True).to(device)
        self._starts = self.counts.cumsum(0) - self.counts

    def draw(
        self,
        class_rates: Tensor,  # (K, C)
        source_rates: Tensor,  # (K, S)
        examples: int,
        *,
        rng: Generator,
    ) -> tuple[Tensor, Tensor]:  # (K * B,) each
        """Places and labels, cells at the product of their rates; those that are empty are passed over."""
        rates = self._rates(class_rates, source_rates)
        cells = torch.multinomial(rates, examples, replacement=True, generator=rng)
        places = torch.rand(cells.shape, generator=rng, device=rng.device) * self.counts[cells]
        return self._order[self._starts[cells] + places.long()].flatten(), (cells % self.num_classes).flatten()

    def context_sizes(self, class_rates: Tensor, source_rates: Tensor) -> Tensor:  # (K,)
        return ((self._rates(class_rates, source_rates) > 0) * self.counts).sum(1).float()

    def _rates(self, class_rates: Tensor, source_rates: Tensor) -> Tensor:  # (K, S * C)
        return (source_rates[:, :, None] * class_rates[:, None]).flatten(1) * (self.counts > 0)


def blend(
    kinds: tuple[Tensor, ...],  # (K * B, ...) each: images, targets, ... of the same examples
    contexts: int,
    *,
    part: float,
    rng: Generator,
) -> tuple[Tensor, ...]:
    """Each example of such a part mixed with another of its context, up to half and half; all kinds alike."""
    examples, device = len(kinds[0]), rng.device
    chosen, share = torch.rand(2, examples, generator=rng, device=device)
    share = torch.where(chosen < part, share / 2, 0.0)
    blended = []
    for values in kinds:
        apart = values.float().unflatten(0, (contexts, -1))
        own = share.reshape(contexts, -1, *[1] * (values.ndim - 1))
        blended.append(torch.lerp(apart, apart.roll(1, dims=1), own).flatten(0, 1))
    return tuple(blended)
