"""Drawing K contexts x B examples without a loop."""

import torch
from torch import Generator, Tensor

from bhc.contexts import ContextBatch
from bhc.data import Split
from bhc.errors import BhcError


class ClassIndex:
    """A training set sorted by class, so that an example of a given class is one look-up away."""

    def __init__(self, split: Split, num_classes: int, *, device: torch.device | None = None) -> None:
        if len(split) == 0 or int(split.labels.max()) >= num_classes:
            raise BhcError(f"the training set must be non-empty with labels from 0 to {num_classes - 1}")
        self.images = split.images.to(device)
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

    def draw(self, batch: ContextBatch, examples: int, *, generator: Generator) -> tuple[Tensor, Tensor]:
        """Images (K * B, ...) and labels (K * B,), each context's classes at its rates, with replacement.

        Batch, generator and data are on one device, so that nothing is waited for.
        """
        labels = torch.multinomial(batch.class_rates, examples, replacement=True, generator=generator)
        places = torch.rand(labels.shape, generator=generator, device=generator.device) * self.counts[labels]
        index = self._order[self._starts[labels] + places.long()].flatten()
        return self.images[index], labels.flatten()

    def context_sizes(self, batch: ContextBatch) -> Tensor:  # (K,)
        """``|D_t|``: how many training examples belong to each context."""
        return ((batch.class_rates > 0) * self.counts).sum(1).float()


def blend(
    kinds: tuple[Tensor, ...],  # (K * B, ...) each: images, targets, ... of the same examples
    contexts: int,
    *,
    part: float,
    generator: Generator,
) -> tuple[Tensor, ...]:
    """Each example of such a part mixed with another of its context, up to half and half; all kinds alike."""
    examples, device = len(kinds[0]), generator.device
    chosen, share = torch.rand(2, examples, generator=generator, device=device)
    share = torch.where(chosen < part, share / 2, 0.0)
    blended = []
    for values in kinds:
        apart = values.float().unflatten(0, (contexts, -1))
        own = share.reshape(contexts, -1, *[1] * (values.ndim - 1))
        blended.append(torch.lerp(apart, apart.roll(1, dims=1), own).flatten(0, 1))
    return tuple(blended)
