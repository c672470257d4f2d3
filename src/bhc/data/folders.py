"""Images of a user's own in folders, one a class, decoded when they are asked for.

Pillow decodes: ``pip install 'bhc[images]'``. It is imported with the first folder.
"""

import copy
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from operator import index as as_index
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from bhc.data.dataset import DatasetSplits, places_set_aside
from bhc.data.decoding import (
    MEND,
    SUFFIXES,
    ImageHeader,
    ImageReader,
    Numbers,
    UnreadableImage,
    by_channel,
    check_pillow,
    decode,
    different_sizes,
    height_and_width,
    read_header,
)
from bhc.data.sources import logger
from bhc.errors import BhcError

TRAIN, TEST, VALIDATION = "train", "test", ("validation", "val", "valid")
_LOOKED_AT = 256  # images whose headers decide on the channels, where sizes need not be compared
_TOGETHER = 64  # images that a thread looks at before it reports
_MOST_THREADS = 16
_LISTED = 5  # in a message

Progress = Callable[[int, int], None]
T = TypeVar("T")


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """The images ``root/CLASS/*.png``, ``*.jpg`` and ``*.jpeg``, as a map-style data set.

    An item is a float32 tensor (channels, height, width) and the number of its class, by the order of their names.
    Pixels lie between 0 and 1, then become ``(x - mean) / std`` by channel.

    - ``size``, one number or height and width: the image is resized so that it just covers that size, its sides to
      scale, and cropped in the middle. For one number these are ``Resize(size)``, bilinear, and ``CenterCrop(size)`` of
      torchvision. Without it all images must have one size.
    - ``channels``: 3, or 1 for grey. Without it they are 1 if all images that are looked at first are grey, and a
      colour image that comes later is an error. Without ``size`` every header is looked at, else 256 all over the list.
    - ``on_error="skip"`` decodes every image once, here, and leaves out those that cannot be read: ``left_out`` says
      of each path why. By ``"raise"`` the first that is met is an error. ``progress(done, total)`` is called meanwhile.

    Transparency is dropped, and the orientation that a camera notes is not applied, as in torchvision's
    ``ImageFolder``. Hidden files, files of other kinds and folders within ``CLASS/`` are passed over. Links that lead
    out of ``within`` (``root``, unless it is given) are refused. Of more than 67 million pixels none is decoded.

    >>> images = bhc.data.ImageFolder("flowers", size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    ... # doctest: +SKIP
    """

    def __init__(
        self,
        root: Path | str,
        *,
        size: int | tuple[int, int] | None = None,
        mean: Numbers | None = None,
        std: Numbers | None = None,
        channels: Literal[1, 3] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        progress: Progress | None = None,
        within: Path | str | None = None,
    ) -> None:
        _check_options(channels, on_error)
        check_pillow()
        fitted = None if size is None else height_and_width(size)
        files = _list_files(os.path.abspath(root), boundary=os.path.realpath(within or root))
        look = decode if on_error == "skip" else read_header
        all_of_them = on_error == "skip" or size is None
        places = range(len(files)) if all_of_them else _spread(len(files)) if channels is None else ()
        headers, unreadable = _look_at(files, places, look, progress)
        self._files = _without(files, unreadable, on_error)
        self.left_out = {files.path(place): problem for place, problem in unreadable.items()}
        count = channels or headers.channels
        self._reader = ImageReader(
            size=fitted or headers.one_size(),
            resizes=fitted is not None,
            channels=count,
            greys=channels is not None,
            mean=by_channel(mean, count, "mean"),
            std=by_channel(std, count, "std"),
        )

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        place = as_index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"image {place} of {len(self):,}")
        place %= len(self)
        return self._reader.read(self._files.path(place)), int(self._files.labels[place])

    def __repr__(self) -> str:
        return (
            f"ImageFolder({self._files.root!r}: {len(self):,} images {self.image_shape}, {len(self.classes)} classes)"
        )

    @property
    def classes(self) -> tuple[str, ...]:
        return self._files.classes

    @property
    def targets(self) -> Tensor:  # (N,) int64
        """The class of each image."""
        return torch.from_numpy(self._files.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self._reader.channels, *self._reader.size

    def path(self, index: int) -> Path:
        """The file of an image."""
        return Path(self._files.path(index))

    def at(self, places: NDArray[np.int64]) -> "ImageFolder":
        """The images at some places alone, with all classes."""
        part = copy.copy(self)
        part._files = self._files.at(places)
        return part

    def set_aside(self) -> tuple["ImageFolder", "ImageFolder"]:
        """Nine tenths and one tenth of each class, which depends on the names of the files alone."""
        names = (self._files.name(place) for place in range(len(self)))
        aside = places_set_aside(names, self._files.labels, names=self.classes)
        return self.at(np.flatnonzero(~aside)), self.at(np.flatnonzero(aside))


def image_folders(
    root: Path | str,
    *,
    size: int | tuple[int, int] | None = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    channels: Literal[1, 3] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    progress: Progress | None = None,
) -> DatasetSplits[ImageFolder]:
    """The image folders ``root/train``, and ``validation`` (or ``val``, ``valid``) and ``test`` where they are there.

    The options are those of ``ImageFolder``; ``progress`` starts anew with each part. All parts must have the classes
    of the train part, and images of its shape. Without a validation part a tenth of each class is set aside, at least
    one image: those whose names have the smallest SHA-256. Without a test part ``test`` is None.

    >>> splits = bhc.data.image_folders("flowers", size=224)  # doctest: +SKIP
    >>> bhc.fit(model, splits.train, splits.validation)  # doctest: +SKIP
    """
    parts = _parts_in(Path(root))
    open_part = partial(ImageFolder, size=size, mean=mean, std=std, on_error=on_error, progress=progress, within=root)
    train = open_part(parts[TRAIN], channels=channels)
    # Colour among the images to train with makes grey ones elsewhere no exception.
    known = channels or (3 if train.image_shape[0] == 3 else None)
    others = {name: open_part(path, channels=known) for name, path in parts.items() if name != TRAIN}
    for name, part in others.items():
        _check_alike(train, part, where=str(parts[name]))
    if "validation" in others:
        return DatasetSplits(train, others["validation"], others.get(TEST), train.classes, set_aside=False)
    rest, validation = train.set_aside()
    return DatasetSplits(rest, validation, others.get(TEST), train.classes, set_aside=True)


def _parts_in(root: Path) -> dict[str, Path]:
    if not (root / TRAIN).is_dir():
        hint = f"put the folders of the classes into {TRAIN}/, and those of other images into validation/ and {TEST}/"
        raise BhcError(f"there is no folder {root / TRAIN}", hint=hint)
    names = [name for name in VALIDATION if (root / name).is_dir()]
    if len(names) > 1:
        raise BhcError(f"{root} has {' and '.join(names)}", hint="one of them may be there, for validation")
    parts = {TRAIN: root / TRAIN, TEST: root / TEST}
    if names:
        parts["validation"] = root / names[0]
    return {name: path for name, path in parts.items() if path.is_dir()}


def _check_alike(train: ImageFolder, part: ImageFolder, *, where: str) -> None:
    missing, new = set(train.classes) - set(part.classes), set(part.classes) - set(train.classes)
    if missing or new:
        said = [f"lacks {_some(missing)}"] * bool(missing) + [f"has {_some(new)}, which {TRAIN} has not"] * bool(new)
        raise BhcError(f"the classes of {where}: it {' and '.join(said)}", hint="all parts have the same classes")
    if part.image_shape != train.image_shape:
        problem = f"the images in {where} are {part.image_shape}, those to train with {train.image_shape}"
        raise BhcError(problem, hint="size=... and channels=... make them alike")


def _some(names: set[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(sorted(names)[:_LISTED]) + more


@dataclass(frozen=True)
class _Files:
    """Files by class, in few objects: a million of them are soon sent to a worker."""

    root: str
    classes: tuple[str, ...]
    names: bytes  # end to end
    ends: NDArray[np.int64]  # (N,), where each name ends
    labels: NDArray[np.int64]  # (N,)

    @classmethod
    def of(cls, root: str, by_class: Mapping[str, Sequence[str]]) -> "_Files":
        names = [os.fsencode(name) for own in by_class.values() for name in own]
        labels = np.repeat(np.arange(len(by_class)), [len(own) for own in by_class.values()])
        return cls(root, tuple(by_class), b"".join(names), _ends(names), labels)

    def __len__(self) -> int:
        return len(self.ends)

    def name(self, place: int) -> bytes:
        return self.names[self.ends[place - 1] if place else 0 : self.ends[place]]

    def path(self, place: int) -> str:
        return f"{self.root}{os.sep}{self.classes[self.labels[place]]}{os.sep}{os.fsdecode(self.name(place))}"

    def at(self, places: NDArray[np.int64]) -> "_Files":
        names = [self.name(place) for place in places]
        return _Files(self.root, self.classes, b"".join(names), _ends(names), self.labels[places])


def _ends(names: Sequence[bytes]) -> NDArray[np.int64]:
    return np.cumsum([len(name) for name in names], dtype=np.int64)


def _list_files(root: str, *, boundary: str) -> _Files:
    """The images in the folders of a root; nothing is opened."""
    if not os.path.isdir(root):
        raise BhcError(f"there is no folder {root}", hint="give a folder that has one folder a class")
    if not _is_inside(root, boundary):
        raise _leads_out(root, boundary)
    folders, others = _entries(root, boundary, wanted=os.DirEntry.is_dir)
    if not folders:
        raise BhcError(f"{root} has no folder of a class; {others}", hint=f"put images into {root}/CLASS/")
    by_class = {}
    for name in folders:
        folder = os.path.join(root, name)
        by_class[name], others = _entries(folder, boundary, wanted=_is_image)
        if not by_class[name]:
            hint = f"images are {', '.join(SUFFIXES)} files right in the folder of their class"
            raise BhcError(f"the class {folder} has no image; {others}", hint=hint)
    return _Files.of(root, by_class)


def _entries(folder: str, boundary: str, *, wanted: Callable[["os.DirEntry[str]"], bool]) -> tuple[list[str], str]:
    """The names in a folder that are wanted, in their order, and a word on what else there is; hidden ones are not."""
    names, others = [], Counter[str]()
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=attrgetter("name")):
                if entry.name.startswith("."):
                    continue
                if not wanted(entry):
                    others["folder" if entry.is_dir() else Path(entry.name).suffix or "no suffix"] += 1
                    continue
                if entry.is_symlink() and not _is_inside(entry.path, boundary):
                    raise _leads_out(entry.path, boundary)
                names.append(entry.name)
    except OSError as error:
        raise BhcError(f"could not read the folder {folder}: {error.strerror or error}") from error
    counts = ", ".join(f"{kind} ({count:,})" for kind, count in others.most_common(_LISTED))
    return names, f"it has {counts}" if counts else "it is empty"


def _is_image(entry: "os.DirEntry[str]") -> bool:
    """Whether a name is that of an image; a link that leads nowhere is one that cannot be read."""
    if not entry.name.lower().endswith(SUFFIXES):
        return False
    return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))


def _is_inside(path: str, boundary: str) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(boundary)


def _leads_out(path: str, boundary: str) -> BhcError:
    problem = f"{path} is a link to {os.path.realpath(path)}, outside of {boundary}"
    hint = "put the images themselves there; ImageFolder(within=...) follows links into a larger folder"
    return BhcError(problem, hint=hint)


class _Headers:
    """What was seen of images: one image of each size, and whether all are grey."""

    def __init__(self) -> None:
        self._paths: dict[tuple[int, int], str] = {}
        self.channels: Literal[1, 3] = 1

    def add(self, path: str, header: ImageHeader) -> None:
        self._paths.setdefault(header.size, path)
        if not header.is_grey:
            self.channels = 3

    def one_size(self) -> tuple[int, int]:
        (size, path), *others = self._paths.items()
        for other, its_path in others:
            raise different_sizes(its_path, other, path, size)
        return size


def _spread(count: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, _LOOKED_AT).astype(np.int64)).tolist()


def _look_at(
    files: _Files, places: Sequence[int], look: Callable[[str], ImageHeader], progress: Progress | None
) -> tuple[_Headers, dict[int, str]]:
    """What is seen of images at some places, and why those at others cannot be read."""
    headers, unreadable = _Headers(), {}
    # Headers are read in Python, where one thread runs at a time; while Pillow decodes, others do.
    threads = min(_MOST_THREADS, os.cpu_count() or 1) if look is decode else 1
    results = _in_threads(partial(_looked_at, files, look), places, threads=threads)
    for done, (place, found) in enumerate(results, start=1):
        if isinstance(found, str):
            unreadable[place] = found
        else:
            headers.add(files.path(place), found)
        if progress is not None and (done % _TOGETHER == 0 or done == len(places)):
            progress(done, len(places))
    return headers, unreadable


def _looked_at(files: _Files, look: Callable[[str], ImageHeader], places: Sequence[int]) -> list[ImageHeader | str]:
    def found(path: str) -> ImageHeader | str:
        try:
            return look(path)
        except UnreadableImage as error:
            return error.problem

    return [found(files.path(place)) for place in places]


def _in_threads(
    work: Callable[[Sequence[int]], list[T]], places: Sequence[int], *, threads: int
) -> Iterator[tuple[int, T]]:
    """The places and what each has given, in their order."""
    parts = [places[start : start + _TOGETHER] for start in range(0, len(places), _TOGETHER)]
    with ThreadPoolExecutor(threads) as pool:
        try:
            for part, results in zip(parts, pool.map(work, parts), strict=True):
                yield from zip(part, results, strict=True)
        finally:
            pool.shutdown(cancel_futures=True)


def _without(files: _Files, unreadable: Mapping[int, str], on_error: str) -> _Files:
    """The files that can be read, of which there is one or more a class."""
    if not unreadable:
        return files
    problem = next(iter(unreadable.values()))
    more = f" (and {len(unreadable) - 1:,} more)" if len(unreadable) > 1 else ""
    if on_error == "raise":
        raise UnreadableImage(f"{problem}{more}", hint=MEND)
    kept = files.at(np.delete(np.arange(len(files)), list(unreadable)))
    empty = np.flatnonzero(np.bincount(kept.labels, minlength=len(files.classes)) == 0)
    if len(empty):
        name = files.classes[empty[0]]
        first = next(problem for place, problem in unreadable.items() if files.labels[place] == empty[0])
        raise BhcError(f"no image of the class {name} can be read: {first}", hint="mend them, or remove the class")
    logger.warning("%d of %d images are left out: %s%s", len(unreadable), len(files), problem, more)
    return kept


def _check_options(channels: int | None, on_error: str) -> None:
    if channels not in (None, 1, 3):
        raise BhcError(f"channels={channels!r}", hint="give 1 for grey or 3 for colour")
    if on_error not in ("raise", "skip"):
        raise BhcError(f"on_error={on_error!r}", hint="give 'raise' or 'skip'")
