"""What ``--data`` names: a data set of ours, or a folder, a file or a function of the user's own; how it is read."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

import bhc.data as datasets
from bhc.cli.console import Given
from bhc.contexts import Option
from bhc.data import DataSet, DatasetSplits, ImageFolder, Split
from bhc.errors import BhcError
from bhc.examples import Inputs, batches, put_together
from bhc.graph import Signature
from bhc.plugins import made_by
from bhc.training import Progress, default_progress
from bhc.training.loading import DatasetExamples, Reader

FOLDER, ARRAYS, FUNCTION = "DIR/train/CLASS/*.png", "FILE.npz", "FILE.py:FUNCTION"
FORMS = f"a folder of images ({FOLDER} or .jpg), {ARRAYS} with x and y, or {FUNCTION} that returns the parts"
DATA_HELP = f"One of: {', '.join(datasets.NAMES)}; or {FORMS}."
PARTS = ("train", "validation", "test", "calibration")
RETURNS = (
    "return (train, validation) or (train, validation, test), a dict with these names, bhc.data.DatasetSplits or"
    " bhc.data.DataSet; a part is what bhc.fit takes, such as a pair (inputs, targets) or a torch Dataset"
)
CHUNK = 1024  # examples in memory that are looked at together
MANY = 20_000  # images, which take some seconds to look at

Data = DataSet | DatasetSplits[Any]


def _size(typed: str) -> int | tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in typed.split(","))
    except ValueError:
        raise BhcError(f"cannot read the size {typed!r}", hint="give 32, or height and width: 64,48") from None
    return numbers if len(numbers) > 1 else numbers[0]


def _numbers(typed: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in typed.split(","))
    except ValueError:
        hint = "give one number, or one a channel: 0.485,0.456,0.406"
        raise BhcError(f"cannot read the numbers {typed!r}", hint=hint) from None


def _on_error(typed: str) -> str:
    if typed not in ("raise", "skip"):
        raise BhcError(f"--on-error {typed}", hint="raise, or skip to leave out images that cannot be read")
    return typed


def _labels(typed: str) -> str:
    if typed not in ("given", "none"):
        raise BhcError(f"--labels {typed}", hint="given, or none to have the network imitated")
    return typed


IMAGE_OPTIONS = (
    Option("size", "Folder: size images to 32, or 64,48 (height, width): resized, then cropped.", parse=_size),
    Option("mean", "Folder: subtract this from pixels, 0 to 1; one number, or one a channel.", parse=_numbers),
    Option("std", "Folder: then divide by this.", parse=_numbers),
    Option("channels", "Folder: 1 for grey, 3 for colour. Default: what the images have.", value_type=int),
    Option("on_error", "Folder: skip leaves out images that cannot be read. Default: raise.", parse=_on_error),
)
LABELS = Option("labels", "none: the data need no labels, for the network is imitated.", parse=_labels)
WORKERS = Option("workers", "Processes that read a folder, or a Dataset of your own.", value_type=int, default=0)
READING = (*IMAGE_OPTIONS, LABELS, WORKERS)


@dataclass(frozen=True)
class Reading:
    """How a user's own data are read."""

    images: Mapping[str, Any]  # size, mean, std, channels and what to do on errors, as readers of folders take them
    labelled: bool = True
    workers: int = 0

    @classmethod
    def of(cls, given: Given, *, remembered: Mapping[str, Any] | None = None, labelled: bool = True) -> "Reading":
        """As options say it; what they do not say is as it was ``remembered`` by a run."""
        images = {option.name: given[option.name] for option in IMAGE_OPTIONS}
        images = {name: (remembered or {}).get(name) if value is None else value for name, value in images.items()}
        images["on_error"] = images["on_error"] or "raise"
        said = given[LABELS.name]
        if given[WORKERS.name] < 0:
            raise BhcError(f"--workers {given[WORKERS.name]}", hint="give 0 or more processes")
        return cls(images, labelled if said is None else said == "given", given[WORKERS.name])


class Source(ABC):
    """Where data come from."""

    has_images: ClassVar[bool] = False  # whether it is a folder of them

    def __init__(self, name: str) -> None:
        self.name = name  # as it was typed

    @abstractmethod
    def splits(self, reading: Reading) -> Data:
        """All parts."""

    def part(self, name: str, reading: Reading) -> Any:
        """One of them; BhcError where it is not there."""
        found = getattr(self.splits(reading), name, None)
        if found is None:
            raise BhcError(f"{self.name} has no {name} part", hint="give one, or evaluate on another: --part")
        return found


class Catalogue(Source):
    """A data set of ours."""

    def __init__(self, name: str, data_dir: Path | None) -> None:
        super().__init__(name)
        self.data_dir = data_dir

    def splits(self, reading: Reading) -> Data:
        return datasets.load(self.name, data_dir=self.data_dir)


class Looking:
    """Progress over images whose headers are looked at, where these are many."""

    def __init__(self) -> None:
        self._shown: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        if total < MANY:
            return
        if self._shown is None:
            self._shown = default_progress()
            self._shown.begin("looking", total)
        self._shown.update(done, {})
        if done == total:
            self._shown.end()
            self._shown = None


class Folder(Source):
    """Images in the folders ``train``, ``validation`` and ``test``."""

    has_images = True

    def splits(self, reading: Reading) -> Data:
        read = datasets.image_folders if reading.labelled else datasets.unlabelled_images
        return read(self.name, progress=Looking(), **reading.images)

    def part(self, name: str, reading: Reading) -> Any:
        """Of the test part nothing else is looked at."""
        if name != "test":
            return super().part(name, reading)
        kind = ImageFolder if reading.labelled else datasets.ImageFiles
        return kind(Path(self.name, name), within=self.name, progress=Looking(), **reading.images)


class ArrayFile(Source):
    """Arrays in an ``.npz`` file."""

    def splits(self, reading: Reading) -> Data:
        return datasets.read_npz(self.name) if reading.labelled else datasets.read_npz_inputs(self.name)


class Function(Source):
    """What a function gives."""

    def splits(self, reading: Reading) -> Data:
        with redirect_stdout(sys.stderr):  # what it prints is no result of ours
            made = made_by(self.name)
        match made:
            case DataSet() | DatasetSplits():
                return made
            case Mapping():
                return self._named(made)
            case (Tensor() | np.ndarray(), Tensor() | np.ndarray()) if reading.labelled:
                problem = f"{self.name} gives two arrays: as they are no pairs, they have no targets"
                raise BhcError(problem, hint=RETURNS)
            case (train, validation):
                return DatasetSplits(train, validation, None, ())
            case (train, validation, test):
                return DatasetSplits(train, validation, test, ())
        given = f"{len(made)} things" if isinstance(made, tuple | list) else f"a value of type {type(made).__name__}"
        raise BhcError(f"{self.name} gives {given}, and not the parts of data", hint=RETURNS)

    def _named(self, made: Mapping[str, Any]) -> Data:
        parts = {str(name): part for name, part in made.items() if part is not None}
        known = (*PARTS, "classes")
        if not {"train", "validation"} <= set(parts) <= set(known):
            named = ", ".join(parts) or "nothing in it"
            hint = f"it has train and validation, and may have {', '.join(known[2:])}"
            raise BhcError(f"{self.name} gives a dict with {named}", hint=hint)
        names = tuple(map(str, parts.pop("classes", ())))
        return DatasetSplits(parts.pop("train"), parts.pop("validation"), parts.pop("test", None), names, **parts)


def source_of(data: str, given: Given, *, data_dir: Path | None) -> Source:
    """What was meant by ``--data``; BhcError where options were given that say nothing of it."""
    source = _source(data, data_dir)
    unwanted = [option.flag for option in IMAGE_OPTIONS if given[option.name] is not None]
    if unwanted and not source.has_images:
        raise BhcError(
            f"{', '.join(unwanted)} is for folders of images, which --data {data} is not",
            hint="leave it out: a function of your own, or the network itself, scales what it reads",
        )
    return source


def _source(data: str, data_dir: Path | None) -> Source:
    path = Path(data).expanduser()
    if data in datasets.NAMES:
        return Catalogue(data, data_dir)
    if path.is_dir():
        return Folder(str(path))
    if path.suffix == ".npz":
        return ArrayFile(str(path))
    if ":" in data or path.suffix == ".py":
        return Function(data)
    hint = f"the data sets are {', '.join(datasets.NAMES)}; or give {FORMS}"
    raise BhcError(f"there is no data set '{data}', and no folder of that name", hint=hint)


def in_memory(data: Any) -> tuple[Any, Any] | None:
    """Inputs and targets where they are tensors, arrays or lists of numbers; None for a data set or a loader."""
    if isinstance(data, Split):
        return data.inputs, data.labels if data.targets is None else data.targets
    if isinstance(data, Tensor | np.ndarray | Mapping):
        return data, None
    if isinstance(data, tuple):
        if len(data) != 2:
            raise BhcError(f"a part of the data is a tuple of {len(data)}", hint="give a pair (inputs, targets)")
        return data
    pair = isinstance(data, list) and len(data) == 2 and not isinstance(data[1], Mapping)
    return (data[0], data[1]) if pair and (_several(data[0]) or isinstance(data[0], Tensor | np.ndarray)) else None


def _several(inputs: Any) -> bool:
    arrays = isinstance(inputs, tuple | list) and all(isinstance(value, Tensor | np.ndarray) for value in inputs)
    return bool(arrays and inputs)


def each_array(inputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same with every array a tensor, changed."""
    if isinstance(inputs, Mapping):
        return {name: change(_tensor(value)) for name, value in inputs.items()}
    if _several(inputs):
        return tuple(change(_tensor(value)) for value in inputs)
    return change(_tensor(inputs))


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def collation(data: Any) -> tuple[Any, Callable[[list[Any]], Any]]:
    """A data set, or that of a loader, and how its items become a batch."""
    if not isinstance(data, DataLoader):
        return data, put_together
    return data.dataset, put_together if data.collate_fn is default_collate else data.collate_fn


def parts_of(
    data: Any, signature: Signature, *, wants_targets: bool, workers: int, progress: Progress
) -> Iterator[tuple[Inputs, Tensor | None]]:
    """All examples, some at a time, as a network takes them; targets as a loss does."""
    held = in_memory(data)
    if held is None:
        parts = _reader(data, signature, wants_targets, workers).parts(progress)
    else:
        inputs = signature.taken(each_array(held[0], lambda tensor: tensor))
        targets = None if held[1] is None else _tensor(held[1])
        pieces = batches(inputs, CHUNK)
        rows = [None] * len(pieces) if targets is None else targets.split(CHUNK)
        parts = zip(pieces, rows, strict=True)
    for x, wanted in parts:
        if wanted is None and wants_targets:
            raise BhcError("the data have no targets", hint="give pairs (inputs, targets), or --labels none")
        yield x, wanted if wanted is None or wanted.is_floating_point() else wanted.long()


def _reader(data: Any, signature: Signature, wants_targets: bool, workers: int) -> DatasetExamples:
    items, collate = collation(data)
    reader = Reader(items, signature, collate, wants_targets=wants_targets)
    own = data.num_workers if isinstance(data, DataLoader) else 0
    return DatasetExamples(reader, torch.arange(len(items)), None, workers=workers or own)


def known_names(names: Sequence[str] | None, labels: Sequence[int], folders: Sequence[str]) -> dict[str, int]:
    """The numbers that a file has for folders of these names; nothing where it knows no names, and order counts."""
    if names is None and all(name.isdecimal() for name in folders):
        names = tuple(map(str, labels))
    return dict(zip(names or (), labels, strict=False))


def by_name(
    parts: Iterable[tuple[Inputs, Tensor | None]],
    folders: Sequence[str],
    known: dict[str, int],
    wanted: Sequence[int],
    source: Source,
) -> Iterator[tuple[Inputs, Tensor | None]]:
    """The same with numbers by the names of folders; those of other names get one of no class."""
    missing = [name for name, label in known.items() if label in wanted and name not in folders]
    if missing:
        raise BhcError(
            f"{source.name} has no images of the class {', '.join(missing)}; it has {', '.join(folders)}",
            hint="folders are named as the classes that the file was made for",
        )
    numbers = torch.tensor([known.get(name, -1) for name in folders])
    for x, targets in parts:
        yield x, None if targets is None else numbers[targets]
