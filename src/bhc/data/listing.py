"""Which images a folder has, by name and class: nothing is opened, and no link is followed out of a boundary."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bhc.data.decoding import SUFFIXES
from bhc.errors import BhcError

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
