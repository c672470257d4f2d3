"""The batches of a run: contexts drawn anew, and examples of each, from memory or from a user's data set.

And which part of a data set is looked at, or kept with a run; and what the pretrained network says of it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Generator, Tensor

from bhc.contexts import ContextBatch, checked_draw
from bhc.errors import BhcError
from bhc.examples import Augmentation, Examples, Inputs, Split, batches, each, several
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import FreshNoise, Noise, PooledNoise
from bhc.training.progress import Progress, Silent


class Index(Protocol):
    """Which examples belong to a context."""

    def draw(self, batch: ContextBatch, examples: int, *, rng: Generator) -> Tensor:
        """Places in the training set, (K * B,), with replacement.

        Batch, generator and index are on one device, so that nothing is waited for.
        """

    def context_sizes(self, batch: ContextBatch) -> Tensor:  # (K,)
        """``|D_t|``: how many training examples belong to each context."""


def index_of(examples: Examples, num_classes: int, *, device: torch.device | None = None) -> Index:
    """By class, by source and class, or all alike where there are no classes."""
    if examples.labels is None:
        return WholeSet(len(examples))
    return ClassIndex(examples, num_classes, device=device)


@dataclass(frozen=True)
class WholeSet:
    """Examples without classes: any may be drawn for any context."""

    count: int

    def draw(self, batch: ContextBatch, examples: int, *, rng: Generator) -> Tensor:
        return torch.randint(0, self.count, (len(batch) * examples,), generator=rng, device=rng.device)

    def context_sizes(self, batch: ContextBatch) -> Tensor:  # (K,)
        return torch.full((len(batch),), float(self.count), device=batch.class_rates.device)


class ClassIndex:
    """A training set sorted by class, so that an example of a given class is one look-up away.

    Where examples have sources it is sorted by source and class, for contexts that ask for sources.
    """

    def __init__(self, examples: Examples, num_classes: int, *, device: torch.device | None = None) -> None:
        assert examples.labels is not None
        if len(examples) == 0 or int(examples.labels.max()) >= num_classes:
            raise BhcError(f"the training set must be non-empty with labels from 0 to {num_classes - 1}")
        self.counts = torch.bincount(examples.labels.cpu(), minlength=num_classes)
        missing = (self.counts == 0).nonzero().flatten().tolist()
        if missing:
            raise BhcError(
                f"the training set has no example of class {missing[0]}",
                hint="every class of the network needs examples",
            )
        self.counts = self.counts.to(device)
        self._order = examples.labels.cpu().argsort(stable=True).to(device)
        self._starts = self.counts.cumsum(0) - self.counts
        self.by_source = None if examples.sources is None else SourceIndex(examples, num_classes, device=device)

    def draw(self, batch: ContextBatch, examples: int, *, rng: Generator) -> Tensor:
        """Each context's classes at its rates."""
        if batch.source_rates is not None:
            if self.by_source is None:
                raise BhcError("contexts are sources, and the training set does not say where its examples are from")
            return self.by_source.draw(batch.class_rates, batch.source_rates, examples, rng=rng)
        labels = torch.multinomial(batch.class_rates, examples, replacement=True, generator=rng)
        places = torch.rand(labels.shape, generator=rng, device=rng.device) * self.counts[labels]
        return self._order[self._starts[labels] + places.long()].flatten()

    def context_sizes(self, batch: ContextBatch) -> Tensor:  # (K,)
        if batch.source_rates is not None and self.by_source is not None:
            return self.by_source.context_sizes(batch.class_rates, batch.source_rates)
        return ((batch.class_rates > 0) * self.counts).sum(1).float()


class SourceIndex:
    """A training set in cells, one for each source and class."""

    def __init__(self, examples: Examples, num_classes: int, *, device: torch.device | None) -> None:
        assert examples.sources is not None
        assert examples.labels is not None
        cells = (examples.sources * num_classes + examples.labels).cpu()
        num_sources = int(examples.sources.max()) + 1
        counts = torch.bincount(cells, minlength=num_sources * num_classes)
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
    ) -> Tensor:  # (K * B,)
        """Cells at the product of their rates; those that are empty are passed over."""
        rates = self._rates(class_rates, source_rates)
        cells = torch.multinomial(rates, examples, replacement=True, generator=rng)
        places = torch.rand(cells.shape, generator=rng, device=rng.device) * self.counts[cells]
        return self._order[self._starts[cells] + places.long()].flatten()

    def context_sizes(self, class_rates: Tensor, source_rates: Tensor) -> Tensor:  # (K,)
        return ((self._rates(class_rates, source_rates) > 0) * self.counts).sum(1).float()

    def _rates(self, class_rates: Tensor, source_rates: Tensor) -> Tensor:  # (K, S * C)
        return (source_rates[:, :, None] * class_rates[:, None]).flatten(1) * (self.counts > 0)


class Draws(Protocol):
    """What a stage wants of a batch."""

    @property
    def contexts(self) -> int:
        """K."""

    @property
    def examples(self) -> int:
        """B."""

    @property
    def budget(self) -> float | None:
        """The only one, where budgets are conditioned on."""

    @property
    def within_ends(self) -> bool:
        """Whether budgets beyond both ends become the ends."""


@dataclass(frozen=True)
class Drawn:
    """Contexts, with what is seen of their examples, and these."""

    batch: ContextBatch
    x: Inputs  # (K * B, ...), as they are learned from
    targets: Tensor | None  # (K * B, ...); None: the pretrained network says what they are
    places: Tensor  # (K * B,), in the training set


class BatchSource(ABC):
    """Where a step's randomness and examples come from."""

    data: Examples
    index: Index
    rng: Generator  # on the device of the network
    noise: Noise
    augment: Augmentation | None
    teacher: Tensor | None = None  # (n, O, ...): what the pretrained network says of each training example
    is_in_memory: ClassVar[bool] = False  # all examples, on the device of the network

    @staticmethod
    def of(
        split: Split,
        num_classes: int,
        *,
        device: torch.device,
        seed: int,
        augment: Augmentation | None = None,
    ) -> "MemorySource":
        """Everything on one device, and following from the seed."""
        rng, noise = randomness(seed, device)
        return MemorySource(split.to(device), index_of(split, num_classes, device=device), rng, noise, augment)

    @property
    def generators(self) -> dict[str, Generator]:
        """Those whose states are kept with a run, by name."""
        named = {"draw": self.rng, "noise": self.noise.rng}
        return {name: rng for name, rng in named.items() if rng is not None}

    def begin(self, network: ConditionalNetwork, draws: Draws, steps: range) -> None:
        """Make ready for the steps of a stage, numbered in the whole run."""
        return

    def end(self) -> None:
        """Let go what was made ready."""
        return

    @abstractmethod
    def next(self, network: ConditionalNetwork, draws: Draws) -> Drawn:
        """The batch of the next step."""

    def altered(self, x: Inputs) -> Inputs:
        """As they are learned from."""
        if self.augment is None:
            return x
        if not isinstance(x, Tensor):
            raise BhcError("augment alters one tensor, and the network takes several", hint="alter items of a data set")
        return self.augment(x, rng=self.rng)


@dataclass(frozen=True)
class MemorySource(BatchSource):
    """A training set in memory, on the device of the network."""

    data: Split
    index: Index
    rng: Generator  # of contexts and examples
    noise: Noise
    augment: Augmentation | None = None
    teacher: Tensor | None = None
    is_in_memory: ClassVar[bool] = True

    def next(self, network: ConditionalNetwork, draws: Draws) -> Drawn:
        batch = draw_contexts(network, draws, self.rng)
        places = self.index.draw(batch, draws.examples, rng=self.rng)
        x = each(self.data.inputs, lambda tensor: tensor[places])
        batch = seen(network, draws, batch, x)
        return Drawn(batch, self.altered(x), self.data.wanted[places], places)


def randomness(seed: int, device: torch.device) -> tuple[Generator, Noise]:
    """A run's generators, on a device."""
    noise = PooledNoise(seed) if device.type == "cpu" else FreshNoise(Generator(device).manual_seed(seed + 1))
    return Generator(device).manual_seed(seed), noise


def draw_contexts(network: ConditionalNetwork, draws: Draws, rng: Generator) -> ContextBatch:
    """Those of one step."""
    batch = checked_draw(network.space, draws.contexts, network.num_classes, rng=rng)
    if draws.budget is None:
        return batch
    return replace(batch, budget=torch.full((draws.contexts, 1), draws.budget, device=rng.device))


def seen(network: ConditionalNetwork, draws: Draws, batch: ContextBatch, x: Inputs) -> ContextBatch:
    """Contexts with what is to be seen of their examples."""
    batch = batch.askable() if draws.within_ends else batch
    if not network.space.observes:
        return batch
    if not isinstance(x, Tensor):
        raise BhcError(
            f"contexts of type {type(network.space).__name__} look at one tensor, and the network takes several"
        )
    return network.space.observe(batch, x.unflatten(0, (len(batch), -1)))


VALIDATION_PER_CLASS = 500
MOST_BYTES = 1 << 26  # of a validation sample: inputs, targets, and what the pretrained network says of them
CHUNK = 1024

Own = TypeVar("Own", bound=Examples)


@torch.no_grad()
def answers_of(network: ConditionalNetwork, inputs: Inputs, progress: Progress | None = None) -> Tensor:  # (n, O, ...)
    """What the pretrained network says of examples, on the CPU."""
    shown, answers = progress or Silent(), list[Tensor]()
    shown.begin("asking the pretrained network", len(several(inputs)[0]))
    for part in batches(inputs, CHUNK):
        answers.append(network.base_model(each(part, lambda tensor: tensor.to(network.device))).cpu())
        shown.update(sum(map(len, answers)), {})
    shown.end()
    return torch.cat(answers)


def looked_at(examples: Examples, *, most: int = 512) -> Tensor:  # (n, ...)
    """What tells of a domain: all that is in memory, or some of what has to be read, evenly spread."""
    if not isinstance(examples, Split):
        count = min(most, len(examples))
        examples = examples.at(torch.arange(count) * len(examples) // count)
    return examples.loaded().tensor


def sample_for(network: ConditionalNetwork, validation: Examples) -> Split:
    """The part of a validation set that a run keeps: the first of each class, no more than a stated size.

    Floats are rounded to 16 bits where the pretrained network then gives every answer that it gave.
    """
    sample = capped(validation, most=_room_for(network, validation.at(slice(0, 1)).loaded())).loaded()
    sample = capped(sample, most=_room_for(network, sample))  # texts are as long as the longest of them by now
    return _in_half(network, with_answers(network, sample))


def _room_for(network: ConditionalNetwork, examples: Split) -> int:
    """How many such examples a run keeps at most."""
    one = examples.at(slice(0, 1))
    parts = [*several(one.inputs), answers_of(network, one.inputs)]
    parts += [own for own in (one.labels, one.targets) if own is not None]
    return max(MOST_BYTES // sum(tensor.nbytes for tensor in parts), 1)


def with_answers(network: ConditionalNetwork, sample: Split) -> Split:
    """With the pretrained network's answers as targets, where these are what its task compares with."""
    if not network.task.from_network:
        return sample
    answers = answers_of(network, sample.inputs)
    return replace(sample, targets=answers, labels=network.task.labels(answers))


def capped(examples: Own, *, limit: int = VALIDATION_PER_CLASS, most: int | None = None) -> Own:
    """The first ``limit`` examples of each class, in their order, and at most so many in all; without classes, as many
    as ten would have, evenly spread."""
    if examples.labels is None:
        count = min(len(examples), 10 * limit, most or len(examples))
        return examples.at(torch.arange(count) * len(examples) // count)
    classes = examples.labels.unique()
    if most is not None:
        limit = max(min(limit, most // len(classes)), 1)
    kept = torch.zeros(len(examples), dtype=torch.bool)
    for label in classes:
        kept[(examples.labels == label).nonzero().flatten()[:limit]] = True
    return examples.at(kept)


def _in_half(network: ConditionalNetwork, sample: Split) -> Split:
    tensors = several(sample.inputs)
    if not network.task.has_answers or not any(tensor.dtype == torch.float32 for tensor in tensors):
        return sample
    rounded = each(sample.inputs, lambda tensor: tensor.half().float() if tensor.is_floating_point() else tensor)
    if not all(tensor.isfinite().all() for tensor in several(rounded) if tensor.is_floating_point()):
        return sample
    same = torch.equal(answers_of(network, rounded).argmax(1), answers_of(network, sample.inputs).argmax(1))
    return replace(sample, inputs=rounded) if same else sample
