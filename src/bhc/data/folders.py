"""Images of a user's own in folders, one a class, decoded when they are asked for.

Pillow decodes: ``pip install 'bhc[images]'``. It is imported with the first folder.
"""

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import index as as_index
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from bhc.data.dataset import DatasetSplits, places_set_aside
from bhc.data.image_files import (
    MEND,
    MOST_LISTED,
    ImageHeader,
    ImageReader,
    ListedFiles,
    Numbers,
    UnreadableImage,
    by_channel,
    check_pillow,
    decode,
    different_sizes,
    height_and_width,
    list_all,
    list_by_class,
    read_header,
)
from bhc.data.sources import logger
from bhc.errors import BhcError

TRAIN, TEST, VALIDATION = "train", "test", ("validation", "val", "valid")
_LOOKED_AT = 256  # images whose headers decide on the channels, where sizes need not be compared
_TOGETHER = 64  # images that a thread looks at before it reports
_MOST_THREADS = 16

Progress = Callable[[int, int], None]
T = TypeVar("T")
Groups = tuple[NDArray[np.int64], tuple[str, ...]]  # a number for each image, and what each number stands for


class _DecodedImages:
    """Images in files, decoded when they are asked for; what is listed, and what an item is, follows."""

    _list: Callable[..., ListedFiles]

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
        files = self._list(os.path.abspath(root), boundary=os.path.realpath(within or root))
        look = decode if on_error == "skip" else read_header
        all_of_them = on_error == "skip" or size is None
        places = range(len(files)) if all_of_them else _spread(len(files)) if channels is None else ()
        headers, unreadable = _look_at(files, places, look, progress)
        self._files = _without(files, unreadable, on_error, self._groups(files))
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

    def _read(self, index: int) -> tuple[Tensor, int]:
        """An image, and its place in the list."""
        place = as_index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"image {place} of {len(self):,}")
        place %= len(self)
        return self._reader.read(self._files.path(place)), place

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self._reader.channels, *self._reader.size

    def path(self, index: int) -> Path:
        """The file of an image."""
        return Path(self._files.path(index))

    def at(self, places: NDArray[np.int64]) -> Self:
        """The images at some places alone, with all classes where there are some."""
        part = copy.copy(self)
        part._files = self._files.at(places)
        return part

    def set_aside(self) -> tuple[Self, Self]:
        """Nine tenths and one tenth, of each class where there are some: it depends on the names of files alone."""
        names = (self._files.name(place) for place in range(len(self)))
        labels, classes = self._groups(self._files)
        aside = places_set_aside(names, labels, names=classes)
        return self.at(np.flatnonzero(~aside)), self.at(np.flatnonzero(aside))

    def _groups(self, files: ListedFiles) -> Groups:
        """Of which there must be images left, and a tenth is set aside: all together."""
        return np.zeros(len(files), dtype=np.int64), ()


class ImageFolder(_DecodedImages, Dataset[tuple[Tensor, int]]):
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

    _list = staticmethod(list_by_class)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, place = self._read(index)
        return image, int(self._files.labels[place])

    def __repr__(self) -> str:
        return (
            f"ImageFolder({self._files.root!r}: {len(self):,} images {self.image_shape}, {len(self.classes)} classes)"
        )

    @property
    def classes(self) -> tuple[str, ...]:
        return self._files.folders

    @property
    def targets(self) -> Tensor:  # (N,) int64
        """The class of each image."""
        return torch.from_numpy(self._files.labels)

    def _groups(self, files: ListedFiles) -> Groups:
        return files.labels, files.folders


class ImageFiles(_DecodedImages, Dataset[Tensor]):
    """The images ``root/*.png``, ``*.jpg`` and ``*.jpeg``, and those in folders of the root, without labels.

    An item is a float32 tensor (channels, height, width). What a folder is called says nothing. All else, and the
    options, are as in ``ImageFolder``.
    """

    _list = staticmethod(list_all)

    def __getitem__(self, index: int) -> Tensor:
        return self._read(index)[0]

    def __repr__(self) -> str:
        return f"ImageFiles({self._files.root!r}: {len(self):,} images {self.image_shape})"


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
    options = {"size": size, "mean": mean, "std": std, "on_error": on_error, "progress": progress}
    train, others = _opened(ImageFolder, Path(root), channels, options)
    for name, part in others.items():
        _check_classes(train, part, where=f"{root}{os.sep}{name}")
    return _splits(train, others, train.classes)


def unlabelled_images(
    root: Path | str,
    *,
    size: int | tuple[int, int] | None = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    channels: Literal[1, 3] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    progress: Progress | None = None,
) -> DatasetSplits[ImageFiles]:
    """The images in ``root/train``, and in ``validation`` and ``test`` where these are there, without labels.

    They lie right in it, or in folders whose names say nothing. All else is as in ``image_folders``.

    >>> splits = bhc.data.unlabelled_images("photographs", size=224)  # doctest: +SKIP
    >>> bhc.fit(model, splits.train, splits.validation, task=bhc.Imitation())  # doctest: +SKIP
    """
    options = {"size": size, "mean": mean, "std": std, "on_error": on_error, "progress": progress}
    train, others = _opened(ImageFiles, Path(root), channels, options)
    return _splits(train, others, ())


Images = TypeVar("Images", bound=_DecodedImages)


def _opened(
    kind: type[Images], root: Path, channels: Literal[1, 3] | None, options: dict[str, Any]
) -> tuple[Images, dict[str, Images]]:
    """The train part, and others by their names, with images of the same shape."""
    parts = _parts_in(root)
    train = kind(parts[TRAIN], channels=channels, within=root, **options)
    # Colour among the images to train with makes grey ones elsewhere no exception.
    known = channels or (3 if train.image_shape[0] == 3 else None)
    others = {path.name: kind(path, channels=known, within=root, **options) for path in list(parts.values())[1:]}
    for name, part in others.items():
        if part.image_shape != train.image_shape:
            problem = f"the images in {root / name} are {part.image_shape}, those to train with {train.image_shape}"
            raise BhcError(problem, hint="size=... (--size) and channels=... (--channels) make them alike")
    return train, others


def _splits(train: Images, others: Mapping[str, Images], classes: tuple[str, ...]) -> DatasetSplits[Images]:
    """With a tenth set aside where there is no part to validate with."""
    validation = next((others[name] for name in VALIDATION if name in others), None)
    if validation is not None:
        return DatasetSplits(train, validation, others.get(TEST), classes, set_aside=False)
    rest, aside = train.set_aside()
    return DatasetSplits(rest, aside, others.get(TEST), classes, set_aside=True)


def _parts_in(root: Path) -> dict[str, Path]:
    if not (root / TRAIN).is_dir():
        hint = f"put the folders of the classes into {TRAIN}/, and those of other images into validation/ and {TEST}/"
        raise BhcError(f"there is no folder {root / TRAIN}", hint=hint)
    names = [name for name in VALIDATION if (root / name).is_dir()]
    if len(names) > 1:
        raise BhcError(f"{root} has {' and '.join(names)}", hint="one of them may be there, for validation")
    others = {name: root / name for name in (*names, TEST)}
    return {TRAIN: root / TRAIN} | {name: path for name, path in others.items() if path.is_dir()}


def _check_classes(train: ImageFolder, part: ImageFolder, *, where: str) -> None:
    missing, new = set(train.classes) - set(part.classes), set(part.classes) - set(train.classes)
    if missing or new:
        said = [f"lacks {_some(missing)}"] * bool(missing) + [f"has {_some(new)}, which {TRAIN} has not"] * bool(new)
        raise BhcError(f"the classes of {where}: it {' and '.join(said)}", hint="all parts have the same classes")


def _some(names: set[str]) -> str:
    more = f" and {len(names) - MOST_LISTED:,} more" if len(names) > MOST_LISTED else ""
    return ", ".join(sorted(names)[:MOST_LISTED]) + more


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
    files: ListedFiles, places: Sequence[int], look: Callable[[str], ImageHeader], progress: Progress | None
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


def _looked_at(
    files: ListedFiles, look: Callable[[str], ImageHeader], places: Sequence[int]
) -> list[ImageHeader | str]:
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


def _without(files: ListedFiles, unreadable: Mapping[int, str], on_error: str, groups: Groups) -> ListedFiles:
    """The files that can be read, of which there is one or more in each group."""
    if not unreadable:
        return files
    problem = next(iter(unreadable.values()))
    more = f" (and {len(unreadable) - 1:,} more)" if len(unreadable) > 1 else ""
    if on_error == "raise":
        raise UnreadableImage(f"{problem}{more}", hint=MEND)
    labels, names = groups
    kept = np.delete(np.arange(len(files)), list(unreadable))
    empty = np.flatnonzero(np.bincount(labels[kept], minlength=max(len(names), 1)) == 0)
    if len(empty):
        whose = f"of the class {names[empty[0]]}" if names else f"in {files.root}"
        first = next(problem for place, problem in unreadable.items() if labels[place] == empty[0])
        raise BhcError(f"no image {whose} can be read: {first}", hint="mend them, or remove the folder")
    logger.warning("%d of %d images are left out: %s%s", len(unreadable), len(files), problem, more)
    return files.at(kept)


def _check_options(channels: int | None, on_error: str) -> None:
    if channels not in (None, 1, 3):
        raise BhcError(f"channels={channels!r}", hint="give 1 for grey or 3 for colour")
    if on_error not in ("raise", "skip"):
        raise BhcError(f"on_error={on_error!r}", hint="give 'raise' or 'skip'")
