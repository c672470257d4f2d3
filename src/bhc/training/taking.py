"""A user's data as training takes it: tensors, arrays, data sets and loaders, and the class of each example."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, default_collate

from bhc.errors import BhcError
from bhc.examples import GIVE_LABELS, Examples, Inputs, Split, each, put_together, several
from bhc.hypernet import ConditionalNetwork
from bhc.tasks import ABSENT, Classification, Task, checked_errors, checked_loss
from bhc.training.batches import answers_of, with_answers
from bhc.training.config import TrainingSets
from bhc.training.loading import TARGETS, DatasetExamples, Reader, check_finite
from bhc.training.progress import Progress
from bhc.training.stages import restrict

SAME = 1e-3  # how near the same loss comes to itself, worked out alone and beside others
TRIED, TRIED_ALONE = 2, 16  # examples that a network and a task are tried on; and a task with outputs missing
HUGE = -1e-3 * ABSENT  # what a loss comes to that counts outputs which are not there
FORMS = "a pair of tensors or arrays (inputs, targets), a torch Dataset, a DataLoader, or a bhc.data.Split"


@dataclass(frozen=True)
class Taking:
    """How a user's data are to be read."""

    network: ConditionalNetwork
    progress: Progress
    target: str | None = None
    collate: Callable[[list[Any]], Any] | None = None
    workers: int = 0

    def examples(self, data: Any, name: str, labels: Any = None) -> Examples:
        """Whatever was given, with the class of each example; ``name`` is what it is called in errors."""
        try:
            return self._taken_apart(data, labels) if isinstance(data, DataLoader) else self._examples(data, labels)
        except BhcError as error:
            raise BhcError(f"{name}: {error.problem}", hint=error.hint) from error

    def _examples(self, data: Any, labels: Any) -> Examples:
        if isinstance(data, IterableDataset):
            raise BhcError(
                "an IterableDataset cannot be asked for an example of a class",
                hint="give a map-style Dataset, with __len__ and __getitem__, or tensors",
            )
        taken = self._split(data, labels) if _is_in_memory(data) else self._dataset(data, labels)
        self._check_labels(taken)
        self._try_alone(taken)
        return taken

    def sets(self, given: Mapping[str, Any], labels: Any) -> TrainingSets:
        """The sets of a run by the names of ``fit``; labels are those of the training set, or a tuple for all."""
        by_set: dict[str, Any] = {} if labels is None else {"train_set": labels}
        if isinstance(labels, tuple) and all(isinstance(own, Tensor | np.ndarray | list) for own in labels):
            by_set = dict(zip(given, labels, strict=False))
        taken = {name: self.examples(data, name, by_set.get(name)) for name, data in given.items() if data is not None}
        calibration = taken.get("calibration_set")
        held_out = None if calibration is None else with_answers(self.network, calibration.loaded())
        return TrainingSets(taken["train_set"], taken["validation_set"], held_out)

    def _taken_apart(self, loader: "DataLoader[Any]", labels: Any) -> Examples:
        """A loader's data set, collation and processes; batches are drawn by class, not as it draws them."""
        collate = self.collate or (None if loader.collate_fn is default_collate else loader.collate_fn)
        own = replace(self, collate=collate, workers=self.workers or loader.num_workers)
        return own._examples(loader.dataset, labels)

    def _split(self, data: Any, labels: Any) -> Split:
        network = self.network
        if isinstance(data, Split):
            given, targets, sources = data.inputs, data.targets if data.labels is None else data.wanted, data.sources
            labels = data.labels if labels is None else labels
        else:
            (given, wanted), sources = _pair(data), None
            targets = None if wanted is None else _tensor(wanted, "targets")
        x = network.signature.taken(_tensors(given))
        check_finite(x, range(len(several(x)[0])), "example")
        targets = _whole_numbers(targets)
        self._try(x, targets)
        if network.task.from_network:
            targets = answers_of(network, x, self.progress)
        if targets is None:
            raise BhcError("there are no targets", hint="give a pair (inputs, targets); without: task=bhc.Imitation()")
        found = self._labels(targets) if labels is None else _known(labels, len(several(x)[0]))
        plain = found is not None and found.shape == targets.shape and torch.equal(found, targets)
        return Split(x, found, sources, None if plain else targets)

    def _dataset(self, data: Any, labels: Any) -> DatasetExamples:
        count = _length(data)
        task = self.network.task
        collate = self.collate or put_together
        reader = Reader(data, self.network.signature, collate, self.target, not task.from_network)
        self._try(*reader.read(range(min(TRIED, count))))
        examples = DatasetExamples(reader, torch.arange(count), None, workers=self.workers)
        if labels is None and not task.from_network and task.class_outputs(self.network.num_outputs) is not None:
            labels = _labels_in(data, self.target, task.labels, count)
        found = self._read_labels(examples) if labels is None else _known(labels, count)
        return replace(examples, labels=found)

    def _read_labels(self, examples: DatasetExamples) -> Tensor | None:
        """One pass over a data set that does not say what is in it."""
        if self.network.task.class_outputs(self.network.num_outputs) is None:
            return None
        found = []
        for x, targets in examples.parts(self.progress):
            if self.network.task.from_network:
                targets = answers_of(self.network, x)
            own = None if targets is None else self._labels(targets)
            if own is None:
                return None
            found.append(own)
        return torch.cat(found)

    def _labels(self, targets: Tensor) -> Tensor | None:
        task = self.network.task
        if task.class_outputs(self.network.num_outputs) is None:
            return None
        labels = task.labels(targets)
        return None if labels is None else _known(labels, len(targets))

    def _check_labels(self, examples: Examples) -> None:
        """Raise if an example is of no class that there is, or contexts of classes have nothing to draw by."""
        if examples.labels is None:
            if self.network.space.decides_outputs:
                raise BhcError("the class of an example is not known, and contexts draw by it", hint=GIVE_LABELS)
            return
        if not len(examples):
            raise BhcError("there are no examples")
        self._check_range(examples.labels)

    def _check_range(self, labels: Tensor) -> None:
        count = self.network.num_classes
        odd = ((labels < 0) | (labels >= count)).nonzero().flatten()
        if len(odd):
            first = int(odd[0])
            raise BhcError(
                f"example {first:,} is of class {int(labels[first])}, and there are {count} classes",
                hint=f"classes are numbered from 0 to {count - 1}",
            )

    def _try(self, x: Inputs, targets: Tensor | None) -> None:
        """Run network and task on the first examples: what does not fit is said here, not in the midst of training."""
        network, few = self.network, each(x, lambda tensor: tensor[:TRIED].to(self.network.device))
        try:
            with torch.no_grad():
                outputs = network.base_model(few)
        except (RuntimeError, IndexError) as error:
            dtypes = ", ".join(str(tensor.dtype).removeprefix("torch.") for tensor in several(x))
            raise BhcError(
                f"the network does not run on these inputs ({dtypes}): {str(error).splitlines()[0][:200]}",
                hint="give inputs as it was trained on, for images most often normalised floats",
            ) from error
        if targets is None and not network.task.from_network:
            return
        wanted = outputs if targets is None or network.task.from_network else targets[:TRIED].to(outputs.device)
        labels = self._labels(wanted)
        if labels is not None:
            self._check_range(labels)
        self._try_task(outputs, wanted)

    def _try_task(self, outputs: Tensor, targets: Tensor) -> None:
        task = self.network.task
        whole = restrict(outputs, torch.ones(1, outputs.shape[1], dtype=torch.bool, device=outputs.device))
        try:
            loss, _ = checked_loss(task, whole, targets), checked_errors(task, whole, targets)
        except BhcError:
            raise
        except Exception as error:
            raise BhcError(
                f"task {task.name!r} fails on outputs of shape {tuple(outputs.shape)} and targets of shape"
                f" {tuple(targets.shape)} {str(targets.dtype).removeprefix('torch.')}: {type(error).__name__}: {error}",
                hint="targets must be what its loss compares outputs with",
            ) from error
        if not loss.isfinite().all():
            raise BhcError(f"task {task.name!r}: the loss of the first examples is not finite")
        _check_apart(task, whole, targets, loss)

    @torch.no_grad()
    def _try_alone(self, examples: Examples) -> None:
        """Raise if a task of a user's own counts outputs that a context of classes takes away."""
        network, task = self.network, self.network.task
        members = task.membership(network.num_outputs)
        known = isinstance(task, Classification) or task.from_network
        if known or members is None or not network.space.decides_outputs:
            return
        few = examples.at(slice(0, TRIED_ALONE)).loaded().to(network.device)
        kept = members.to(network.device)[few.known_labels]  # of each example its own class
        loss = checked_loss(task, restrict(network.base_model(few.inputs), kept), few.wanted)
        if not float(loss.max()) < HUGE:
            raise BhcError(
                f"task {task.name!r}: with the outputs of its own class alone the loss of example"
                f" {int(loss.argmax())} is {float(loss.max()):.4g}",
                hint="leave out outputs that are not there (outputs <= bhc.tasks.ABSENT / 2), and targets of theirs",
            )


def _check_apart(task: Task, outputs: Tensor, targets: Tensor, loss: Tensor) -> None:
    """Raise if the loss of an example hangs on others, as where (n, 1) and (n,) are paired each with each."""
    alone, beside = float(checked_loss(task, outputs[:1], targets[:1])), float(loss[0])
    if abs(alone - beside) > SAME * max(1.0, abs(beside)):
        raise BhcError(
            f"task {task.name!r}: the loss of an example is {alone:.4g} alone and {beside:.4g} beside another; outputs"
            f" have the shape {tuple(outputs.shape)}, targets {tuple(targets.shape)}",
            hint="it must hang on its own outputs and targets alone; give both the same shape",
        )


def _is_in_memory(data: Any) -> bool:
    """Whether it is tensors or arrays, alone or as a pair, and no list of items."""
    if isinstance(data, Split | Tensor | np.ndarray | Mapping | tuple):
        return True
    if not isinstance(data, list) or len(data) != 2:
        return False
    inputs, targets = data
    several_inputs = isinstance(inputs, tuple | list) and all(
        isinstance(value, Tensor | np.ndarray) for value in inputs
    )
    one = isinstance(inputs, Tensor | np.ndarray | Mapping)
    return (several_inputs or one) and not isinstance(targets, Mapping)


def _pair(data: Any) -> tuple[Any, Any]:
    """Inputs and targets; inputs alone where there are no targets."""
    if isinstance(data, Tensor | np.ndarray | Mapping):
        return data, None
    if len(data) != 2:
        raise BhcError(f"data of {len(data)} parts", hint=f"give {FORMS}")
    return data[0], data[1]


def _tensors(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _tensor(value, str(name)) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list) and all(isinstance(value, Tensor | np.ndarray) for value in inputs):
        return tuple(_tensor(value, f"input {place}") for place, value in enumerate(inputs))
    return _tensor(inputs, "inputs")


def _tensor(value: Any, name: str) -> Tensor:
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise BhcError(f"{name} of type {type(value).__name__} are no tensor: {error}", hint=f"give {FORMS}") from error
    return tensor.detach().cpu()


def _whole_numbers(targets: Tensor | None) -> Tensor | None:
    """Whole numbers as torch's losses take them."""
    if targets is None or targets.is_floating_point() or targets.is_complex():
        return targets if targets is None or targets.dtype != torch.float64 else targets.float()
    return targets.long()


def _known(labels: Any, count: int) -> Tensor:  # (N,) int64
    tensor = _tensor(labels, "labels")
    if tensor.dim() != 1 or tensor.is_floating_point() or tensor.is_complex():
        raise BhcError(
            f"labels are one class number an example, given {tuple(tensor.shape)}"
            f" {str(tensor.dtype).removeprefix('torch.')}",
            hint="give (N,) whole numbers from 0 on",
        )
    if len(tensor) != count:
        raise BhcError(f"{len(tensor):,} labels for {count:,} examples")
    return tensor.long()


def _length(data: Any) -> int:
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise BhcError(f"a {type(data).__name__} is no data", hint=f"give {FORMS}")
    count = len(data)
    if not count:
        raise BhcError("the data set is empty")
    return count


def _labels_in(data: Any, target: str | None, classes: Callable[[Tensor], Tensor | None], count: int) -> Tensor | None:
    """The class of each item where the data set says it without being read; None where it does not."""
    if isinstance(data, Subset):
        of_all = _labels_in(data.dataset, target, classes, len(data.dataset))  # type: ignore[arg-type]
        return None if of_all is None else of_all[torch.as_tensor(data.indices)]
    if isinstance(data, ConcatDataset):
        parts = [_labels_in(part, target, classes, len(part)) for part in data.datasets]  # type: ignore[arg-type]
        known = [part for part in parts if part is not None]
        return torch.cat(known) if len(known) == len(parts) else None
    for name in (target,) if target else TARGETS:
        listed = _column(data, name)
        if listed is None:
            continue
        try:
            tensor = _tensor(listed, name)
            labels = tensor if name in ("label", "labels") else classes(tensor)
            return None if labels is None else _known(labels, count)
        except BhcError:
            continue  # not one number an item: reading them will tell
    return None


def _column(data: Any, name: str) -> Any:
    """All of one thing: an attribute, a table's column, or the last of a data set's tensors."""
    if name in getattr(data, "column_names", ()):
        return data[name]
    own = getattr(data, name, None)
    if own is None and name == "targets" and len(getattr(data, "tensors", ())) == 2:
        return data.tensors[1]
    return own if isinstance(own, Tensor | np.ndarray | Sequence) else None
