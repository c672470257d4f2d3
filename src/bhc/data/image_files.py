"""Files of images: which there are in a folder, by name and class, with no link followed out of a boundary; and one as
a tensor, decoded within bounds, resized, cropped and normalised. Pillow decodes."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from operator import index as as_index
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bhc.errors import BhcError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg")
MOST_PIXELS = 1 << 26  # of an image, whatever its file says; Pillow warns above 89 million
MEND = "mend it or remove it; on_error='skip' leaves out what cannot be read"
INSTALL = "pip install 'bhc[images]'"
_FORMATS = ("PNG", "JPEG")
_GREY = frozenset({"1", "L", "LA", "I", "I;16"})  # as Pillow names them
_WHITE, _WHITE_OF_16_BITS = np.float32(255), np.float32(65535)

Numbers = float | Sequence[float]


class UnreadableImage(BhcError):
    """A file that cannot be decoded, or is too large to be."""


@dataclass(frozen=True)
class ImageHeader:
    """What a file says about its image."""

    size: tuple[int, int]  # height and width
    is_grey: bool


def check_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401 - loaded here once, and looked up by each image
    except ImportError as error:
        raise BhcError("images are read with Pillow, which is not installed", hint=INSTALL) from error


@contextmanager
def opened(path: str) -> Iterator["Image"]:
    """An image of a size that may be decoded. Whatever fails while it is open is an error that names the file."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=_FORMATS) as image:
            _check_pixels(path, *image.size)
            yield image
    except BhcError:
        raise
    except UnidentifiedImageError as error:
        raise _unreadable(path, "it is neither PNG nor JPEG, or its header is damaged") from error
    except Exception as error:  # what Pillow raises for damaged files is not bounded
        raise _unreadable(path, str(error) or type(error).__name__) from error


def read_header(path: str) -> ImageHeader:
    with opened(path) as image:
        return ImageHeader((image.height, image.width), image.mode in _GREY)


def decode(path: str) -> ImageHeader:
    """The header of an image all of which could be decoded."""
    with opened(path) as image:
        image.load()
        return ImageHeader((image.height, image.width), image.mode in _GREY)


@dataclass(frozen=True, eq=False)
class ImageReader:
    """What images become: tensors of one shape, ``(pixels - mean) / std`` by channel with pixels between 0 and 1."""

    size: tuple[int, int]  # height and width
    resizes: bool  # or else images of another size are refused
    channels: int
    greys: bool  # whether colour becomes grey where there is one channel, or else is refused
    mean: NDArray[np.float32] | None  # (1 or C, 1, 1)
    std: NDArray[np.float32] | None

    def read(self, path: str) -> Tensor:  # (C, H, W)
        with opened(path) as image:
            values = self._values(self._fitted(self._converted(image, path), path))
        if self.mean is not None:
            values -= self.mean
        if self.std is not None:
            values /= self.std
        return torch.from_numpy(values)

    def _converted(self, image: "Image", path: str) -> "Image":
        mode = "L" if self.channels == 1 else "RGB"
        if image.mode == mode:
            return image
        if image.mode.startswith("I"):  # 16 bits, which Pillow would cut off
            return image.convert("F")
        if self.channels == 1 and not self.greys and image.mode not in _GREY:
            problem = f"{path} has colours; the images that were looked at first are grey"
            raise BhcError(problem, hint="channels=3 (--channels) keeps colours, channels=1 makes them grey")
        if "transparency" in image.info:  # of a palette: Pillow warns where it is dropped at once
            image = image.convert("RGBA")
        return image.convert(mode)

    def _fitted(self, image: "Image", path: str) -> "Image":
        """Resized to cover the size, its sides to scale, and cropped in the middle."""
        from PIL.Image import Resampling

        (height, width), (high, wide) = self.size, (image.height, image.width)
        if (high, wide) == self.size:
            return image
        if not self.resizes:
            raise different_sizes(path, (high, wide), "the other images", self.size)
        if height * wide >= width * high:
            high, wide = height, height * wide // high
        else:
            high, wide = width * high // wide, width
        _check_pixels(path, wide, high)  # a long thin image becomes much larger
        top, left = round((high - height) / 2), round((wide - width) / 2)
        resized = image.resize((wide, high), Resampling.BILINEAR)
        return resized.crop((left, top, left + width, top + height))

    def _values(self, image: "Image") -> NDArray[np.float32]:  # (C, H, W)
        pixels = np.asarray(image)
        planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        white = _WHITE_OF_16_BITS if image.mode == "F" else _WHITE
        values = np.divide(planes, white, dtype=np.float32, order="C")
        return values if len(values) == self.channels else values.repeat(self.channels, axis=0)


def height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    try:
        height, width = map(as_index, (size, size) if isinstance(size, SupportsIndex) else size)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1 or height * width > MOST_PIXELS:
        allowed = f"one number, or height and width, with at most {MOST_PIXELS:,} pixels"
        raise BhcError(f"size={size!r}", hint=f"give {allowed}")
    return height, width


def by_channel(values: Numbers | None, channels: int, name: str) -> NDArray[np.float32] | None:  # (1 or C, 1, 1)
    """One number for all channels, or one a channel; a ``std`` is over 0."""
    if values is None:
        return None
    try:
        numbers = np.array(values, dtype=np.float32).reshape(-1, 1, 1)
    except (TypeError, ValueError):
        numbers = np.empty((0, 1, 1), dtype=np.float32)
    if len(numbers) not in (1, channels) or not np.isfinite(numbers).all() or (name == "std" and (numbers <= 0).any()):
        allowed = "one number, or one a channel" + (", each over 0" if name == "std" else "")
        raise BhcError(f"{name}={values!r} for {channels} channels", hint=f"give {allowed}")
    return numbers


def different_sizes(path: str, size: tuple[int, int], other: str, other_size: tuple[int, int]) -> BhcError:
    (height, width), (high, wide) = size, other_size
    problem = f"{path} is {height} x {width} (height, width), {other} {high} x {wide}"
    return BhcError(problem, hint="size=... (--size) resizes and crops all images to one size")


def _check_pixels(path: str, width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise _unreadable(path, f"it would have {width:,} x {height:,} pixels; at most {MOST_PIXELS:,} are decoded")


def _unreadable(path: str, why: str) -> UnreadableImage:
    return UnreadableImage(f"{path} cannot be read: {why}", hint=MEND)


MOST_LISTED = 5  # in a message
_ARE_IMAGES = f"images are {', '.join(SUFFIXES)} files"


@dataclass(frozen=True)
class ListedFiles:
    """Files by the folder they are in, in few objects: a million of them are soon sent to a worker."""

    root: str
    folders: tuple[str, ...]  # within the root: of a class each, or nothing for what lies right in it
    names: bytes  # end to end
    ends: NDArray[np.int64]  # (N,), where each name ends
    labels: NDArray[np.int64]  # (N,), the place of its folder

    @classmethod
    def of(cls, root: str, by_folder: Mapping[str, Sequence[str]]) -> "ListedFiles":
        names = [os.fsencode(name) for own in by_folder.values() for name in own]
        labels = np.repeat(np.arange(len(by_folder)), [len(own) for own in by_folder.values()])
        return cls(root, tuple(by_folder), b"".join(names), _ends(names), labels)

    def __len__(self) -> int:
        return len(self.ends)

    def name(self, place: int) -> bytes:
        return self.names[self.ends[place - 1] if place else 0 : self.ends[place]]

    def path(self, place: int) -> str:
        return os.path.join(self.root, self.folders[self.labels[place]], os.fsdecode(self.name(place)))

    def at(self, places: NDArray[np.int64]) -> "ListedFiles":
        names = [self.name(place) for place in places]
        return ListedFiles(self.root, self.folders, b"".join(names), _ends(names), self.labels[places])


def _ends(names: Sequence[bytes]) -> NDArray[np.int64]:
    return np.cumsum([len(name) for name in names], dtype=np.int64)


def list_by_class(root: str, *, boundary: str) -> ListedFiles:
    """The images in the folders of a root, one a class."""
    folders, others = _folders_in(root, boundary)
    if not folders:
        hint = f"put images into {root}/CLASS/; without labels: bhc.data.unlabelled_images, --labels none"
        raise BhcError(f"{root} has no folder of a class; {others}", hint=hint)
    by_class = {}
    for name in folders:
        folder = os.path.join(root, name)
        by_class[name], others = _entries(folder, boundary, wanted=_is_image)
        if not by_class[name]:
            hint = f"{_ARE_IMAGES} right in the folder of their class"
            raise BhcError(f"the class {folder} has no image; {others}", hint=hint)
    return ListedFiles.of(root, by_class)


def list_all(root: str, *, boundary: str) -> ListedFiles:
    """The images right in a root, and then those in its folders, whatever these are called."""
    folders, _ = _folders_in(root, boundary)
    right_in_it, others = _entries(root, boundary, wanted=_is_image)
    found = {name: _entries(os.path.join(root, name), boundary, wanted=_is_image)[0] for name in folders}
    files = ListedFiles.of(root, {name: own for name, own in ({"": right_in_it} | found).items() if own})
    if not len(files):
        raise BhcError(f"{root} has no image; {others}", hint=f"{_ARE_IMAGES} in it, or right in one of its folders")
    return files


def _folders_in(root: str, boundary: str) -> tuple[list[str], str]:
    if not os.path.isdir(root):
        raise BhcError(f"there is no folder {root}", hint="give a folder that has images, or one folder a class")
    if not _is_inside(root, boundary):
        raise _leads_out(root, boundary)
    return _entries(root, boundary, wanted=os.DirEntry.is_dir)


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
    counts = ", ".join(f"{kind} ({count:,})" for kind, count in others.most_common(MOST_LISTED))
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
