"""Examples of a user's own data set, read as they are needed: in the order of a run, by torch's own loader."""

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from bhc.contexts import ContextBatch
from bhc.errors import BhcError
from bhc.examples import Augmentation, Examples, Inputs, ItemError, Split, each, put_together, several, together
from bhc.graph import Signature
from bhc.hypernet import ConditionalNetwork
from bhc.training.batches import BatchSource, Drawn, Draws, draw_contexts, index_of, randomness, seen
from bhc.training.progress import Progress, Silent

TARGETS = ("label", "labels", "target", "targets")  # keys that are looked for where none is named
MOST_PARTS = 8  # of an item that are told one by one
PART = 64  # examples that are read together where all are read
STEP_SEEDS = 0x9E3779B97F4A7C15  # an odd factor: seeds of steps that follow each other have little in common
LONGEST_SEED = (1 << 63) - 1
GO_ON = "mend it; a run folder goes on from its last checkpoint with resume=True (--resume)"

Batch = tuple[Inputs, Tensor | None]


@dataclass(frozen=True)
class Failure:
    """An error as a process that reads hands it over."""

    problem: str
    hint: str


@dataclass(frozen=True)
class Reader:
    """How a data set's items become what the network takes and what its loss compares with."""

    dataset: Any
    signature: Signature
    collate: Callable[[list[Any]], Any] = put_together
    target: str | None = None  # the key of targets in items that are dicts
    wants_targets: bool = True

    def read(self, places: Sequence[int]) -> Batch:
        """The batch of these items; BhcError names the one that cannot be read or does not fit."""
        items = self._items(places)
        try:
            batch = self.collate(items)
        except ItemError as error:
            problem = f"item {places[error.place]:,} of the data set: {error.of_item}"
            raise BhcError(problem, hint=error.hint) from error
        except Exception as error:
            raise self._unlike(places, items, error) from error
        inputs, targets = self._parts(batch)
        try:
            x = self.signature.taken(_as_tensors(inputs))
        except BhcError as error:
            raise BhcError(f"{error.problem}, from items {places[0]}, ... of the data set", hint=error.hint) from error
        _check_lengths(x, targets, len(places))
        check_finite(x, places)
        return x, targets

    def _items(self, places: Sequence[int]) -> list[Any]:
        several_at_once = getattr(self.dataset, "__getitems__", None)
        if several_at_once is not None:
            try:
                return list(several_at_once(list(places)))
            except Exception:  # one by one it can be said which
                pass
        return [self._item(place) for place in places]

    def _item(self, place: int) -> Any:
        try:
            return self.dataset[place]
        except BhcError:
            raise
        except Exception as error:
            raise BhcError(
                f"item {place:,} of the data set cannot be read: {type(error).__name__}: {error}", hint=GO_ON
            ) from error

    def _parts(self, batch: Any) -> tuple[Any, Tensor | None]:
        """Inputs and targets of a collated batch."""
        if isinstance(batch, Mapping):
            return self._named_parts(batch)
        if isinstance(batch, tuple | list) and len(batch) == 2:
            return batch[0], _as_tensor(batch[1])
        if not self.wants_targets:
            return batch, None
        raise BhcError(
            f"items of the data set are {_kind(batch)}, and not pairs",
            hint="an item is (input, target), or a dict with a label; without labels: task=bhc.Imitation()",
        )

    def _named_parts(self, batch: Mapping[str, Any]) -> tuple[Any, Tensor | None]:
        key = self.target or next((name for name in TARGETS if name in batch), None)
        if self.wants_targets and (key is None or key not in batch):
            raise BhcError(
                f"items of the data set have no {key or 'label'!r}; they have: {', '.join(map(str, batch))}",
                hint="name the key of what is to be said: bhc.fit(..., target='...')",
            )
        targets = None if key is None or key not in batch else _as_tensor(batch[key])
        names = self.signature.names
        if set(names) <= set(batch):
            return {name: batch[name] for name in names}, targets
        others = [name for name in batch if name != key]
        if len(names) == 1 and len(others) == 1:
            return batch[others[0]], targets
        raise BhcError(
            f"items of the data set have {', '.join(map(str, others))}, and the network takes {', '.join(names)}",
            hint="give items with these names, or pairs (input, target)",
        )

    def _unlike(self, places: Sequence[int], items: Sequence[Any], error: Exception) -> BhcError:
        shapes = [_shapes(item) for item in items]
        odd = next((at for at, shape in enumerate(shapes) if shape != shapes[0]), None)
        if odd is None:
            return BhcError(
                f"items {places[0]:,}, ... of the data set cannot be put together: {type(error).__name__}: {error}",
                hint="give collate=, a function from a list of items to a batch",
            )
        return BhcError(
            f"item {places[odd]:,} of the data set is {shapes[odd]}, item {places[0]:,} is {shapes[0]}: they cannot be"
            " put together",
            hint="give items of one shape, or collate=: for texts of different lengths bhc.data.PadTexts()",
        )


@dataclass(frozen=True)
class DatasetExamples(Examples):
    """Examples of a data set by their places in it."""

    reader: Reader
    places: Tensor  # (N,) int64
    labels: Tensor | None
    sources: Tensor | None = None
    workers: int = 0

    def __len__(self) -> int:
        return len(self.places)

    def at(self, places: Tensor | slice) -> "DatasetExamples":
        labels = None if self.labels is None else self.labels[places]
        return replace(self, places=self.places[places], labels=labels)

    def loaded(self) -> Split:
        """Where batches are of several sizes, as texts are that a collate pads, they are read again, all as one."""
        parts = list(self.parts())
        if len({_sizes(batch) for batch in parts}) > 1:
            parts = list(self.parts(size=len(self)))
        inputs = together([x for x, _ in parts])
        targets = [own for _, own in parts if own is not None]
        wanted = torch.cat(targets) if targets else None
        if wanted is not None and self.labels is not None and torch.equal(wanted, self.labels):
            wanted = None
        return Split(inputs, self.labels, targets=wanted)

    def parts(self, progress: Progress | None = None, *, size: int = PART, seed: int = 0) -> Iterator[Batch]:
        """All of them once, in order, so many at a time."""
        shown = progress or Silent()
        shown.begin("reading", len(self))
        try:
            keys = ([seed + at, *own.tolist()] for at, own in enumerate(self.places.split(size)))
            done = 0
            for batch in fetched(self.reader, keys, workers=min(self.workers, -(-len(self) // size))):
                yield batch
                done += len(several(batch[0])[0])
                shown.update(done, {})
        finally:
            shown.end()


class _Fetch(Dataset[Any]):
    """A reader as torch's loader asks it: a key is a seed and the places of a batch."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __getitems__(self, key: list[int]) -> Batch | Failure:
        seed, *places = key
        try:
            with seeded(seed):
                return self.reader.read(places)
        except BhcError as error:
            return Failure(error.problem, error.hint)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What transforms draw follows from the seed, whichever process reads; outside nothing has changed."""
    before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.random.set_rng_state(before[2])


def fetched(reader: Reader, keys: Iterator[list[int]], *, workers: int, pinned: bool = False) -> Iterator[Batch]:
    """Batches in the order of their keys, which are drawn ahead as far as the processes that read can go."""
    loader: DataLoader[Any] = DataLoader(
        _Fetch(reader),
        batch_sampler=keys,
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=pinned,
        generator=Generator(),  # of seeds that nothing follows from
    )
    iterator = iter(loader)
    while True:
        try:
            batch = next(iterator, None)
        except RuntimeError as error:
            if "worker" not in str(error):
                raise
            raise BhcError(
                f"a process that reads the data set has died: {str(error).splitlines()[0]}", hint=GO_ON
            ) from error
        if batch is None:
            return
        if isinstance(batch, Failure):
            raise BhcError(batch.problem, hint=batch.hint)
        yield batch


def _as_it_is(batch: Any) -> Any:
    return batch


class LoadedSource(BatchSource):
    """A data set that is read while the run goes on.

    Contexts and places of a step follow from its number, so they can be drawn ahead and again after an interruption.
    """

    def __init__(
        self, examples: DatasetExamples, network: ConditionalNetwork, *, seed: int, augment: Augmentation | None = None
    ) -> None:
        self.data: DatasetExamples = examples
        self.augment, self.seed, self.device = augment, seed, network.device
        self.rng, self.noise = randomness(seed, network.device)
        self.index = index_of(examples, network.num_classes)
        self._ahead: deque[tuple[ContextBatch, Tensor]] = deque()
        self._batches: Iterator[Batch] = iter(())

    def begin(self, network: ConditionalNetwork, draws: Draws, steps: range) -> None:
        self.end()
        now, least = len(self.data.reader.dataset), int(self.data.places.max()) + 1
        if now < least:
            raise BhcError(f"the data set has {now:,} items now, and had {least:,} when it was given", hint=GO_ON)
        keys = self._keys(network, draws, steps)
        pinned = self.device.type == "cuda"
        self._batches = fetched(self.data.reader, keys, workers=self.data.workers, pinned=pinned)

    def end(self) -> None:
        self._ahead.clear()
        self._batches = iter(())  # its processes end with it

    def _keys(self, network: ConditionalNetwork, draws: Draws, steps: range) -> Iterator[list[int]]:
        for step in steps:
            seed = (self.seed + 1 + step * STEP_SEEDS) & LONGEST_SEED
            rng = Generator().manual_seed(seed)
            batch = draw_contexts(network, draws, rng)
            places = self.index.draw(batch, draws.examples, rng=rng)
            self._ahead.append((batch, places))
            yield [seed, *self.data.places[places].tolist()]

    def next(self, network: ConditionalNetwork, draws: Draws) -> Drawn:
        x, targets = next(self._batches)
        batch, places = self._ahead.popleft()
        x = each(x, lambda tensor: tensor.to(self.device, non_blocking=True))
        batch = seen(network, draws, batch.to(self.device), x)
        if network.task.from_network:
            targets = None
        targets = None if targets is None else targets.to(self.device)
        return Drawn(batch, self.altered(x), targets, places.to(self.device))


def _as_tensors(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _as_tensor(value) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(map(_as_tensor, inputs))
    return _as_tensor(inputs)


def _as_tensor(value: Any) -> Tensor:
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise BhcError(
            f"a data set gives {_kind(value)}, which is no tensor", hint="let a transform make tensors of its items"
        ) from error


def _sizes(batch: Batch) -> tuple[tuple[int, ...], ...]:
    """Of one example of a batch: the shapes of its inputs and of its targets."""
    inputs, targets = batch
    return tuple(tuple(tensor.shape[1:]) for tensor in (*several(inputs), *(() if targets is None else (targets,))))


def _check_lengths(x: Inputs, targets: Tensor | None, count: int) -> None:
    for name, tensor in (("inputs", several(x)[0]), ("targets", targets)):
        if tensor is not None and (not tensor.dim() or len(tensor) != count):
            raise BhcError(
                f"collating {count} items gives {name} of shape {tuple(tensor.shape)}",
                hint="collate puts all items of a list into one batch, in their order: (n, ...)",
            )


def check_finite(x: Inputs, places: Sequence[int], called: str = "item") -> None:
    """BhcError names the first example whose inputs contain NaN or infinity."""
    for tensor in several(x):
        if tensor.is_floating_point() and not tensor.isfinite().all():
            odd = int((~tensor.flatten(1).isfinite().all(1)).nonzero()[0])
            raise BhcError(f"the inputs of {called} {places[odd]:,} contain NaN or infinity", hint=GO_ON)


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}s of {len(value)}"
    return f"a {type(value).__name__}"


def _shapes(item: Any) -> Any:
    """Shapes of everything in an item, in words."""
    if isinstance(item, Mapping):
        return ", ".join(f"{name}: {_shapes(value)}" for name, value in item.items())
    if isinstance(item, tuple | list) and len(item) > MOST_PARTS:
        return f"{type(item).__name__} of {len(item):,}"
    if isinstance(item, tuple | list):
        return f"({', '.join(str(_shapes(value)) for value in item)})"
    shape = getattr(item, "shape", None)
    return tuple(shape) if shape is not None else type(item).__name__
