"""Archives that carry all files of a data set; they are read in memory and nothing is unpacked to the disk."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from bhc.data.packed import PackedFile
from bhc.data.source import OWN_FORM, FileLocation, Form
from bhc.errors import BhcError

_SLACK = 1 << 20  # bytes of headers, padding and small other files, in the archive and around it
_REPLACE = "replace it by the original, or remove it so that another source is used"


@dataclass(frozen=True)
class Archive:
    """A ``.tar.gz`` file by its public name, with the files in one folder of it."""

    name: str
    folder: str
    form: Form = OWN_FORM

    def members(self, files: tuple[PackedFile, ...]) -> dict[str, PackedFile]:
        """The files by their names in the archive."""
        return {f"{self.folder}/{self.form.stored_name(file)}": file for file in files}

    def limit(self, files: tuple[PackedFile, ...]) -> int:
        """The most bytes the archive may have, compressed or not: pictures hardly compress."""
        return sum(self.form.limit(file) for file in files) + _SLACK


@dataclass(frozen=True)
class ArchiveSource:
    """An archive at some place."""

    place: FileLocation
    archive: Archive

    @property
    def title(self) -> str:
        return self.place.address_of(self.archive.name)

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        limit, form = self.archive.limit(files), self.archive.form
        members = self.archive.members(files)
        packed = self.place.read(self.archive.name, limit=limit)
        limits = {name: form.limit(file) for name, file in members.items()}
        stored = read_members(packed, limits, total=limit, where=self.title)
        return {
            file.name: form.content(stored[name], file, where=f"{name} in {self.title}")
            for name, file in members.items()
        }


def read_members(
    packed: bytes,
    limits: Mapping[str, int],  # the most bytes of each wanted member
    *,
    total: int,  # the most bytes of the whole archive
    where: str,
) -> dict[str, bytes]:
    """The wanted members of a ``.tar.gz`` archive; whatever else is in it is passed over.

    Names are compared and never used as paths, so a member cannot reach a place of its own choice.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as content:
            bounded = _Bounded(content, total, where)
            # "r|" reads from the front to the back only, which is all a bounded reader can do.
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                found = _read_wanted(archive, limits, where)
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise BhcError(
            f"{where} is damaged: it cannot be read as a .tar.gz archive ({error})", hint=_REPLACE
        ) from error
    missing = [name for name in limits if name not in found]
    if missing:
        raise BhcError(f"{where} lacks {', '.join(missing)}", hint=_REPLACE)
    return found


def _read_wanted(archive: tarfile.TarFile, limits: Mapping[str, int], where: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for member in archive:
        name = member.name.removeprefix("./")  # some programs put it in front of every name
        if name not in limits or not member.isreg() or member.issparse():
            continue
        # Before a byte is read: a header can declare any size.
        if member.size > limits[name]:
            raise BhcError(
                f"{name} in {where} has {member.size:,} bytes; at most {limits[name]:,} are expected", hint=_REPLACE
            )
        file = archive.extractfile(member)
        if file is not None:
            found[name] = file.read()
    return found


class _Bounded(io.RawIOBase):
    """Reads up to so many bytes: a small archive can decompress to any size."""

    def __init__(self, file: gzip.GzipFile, limit: int, where: str) -> None:
        self._file = file
        self._left = limit
        self._limit = limit
        self._where = where

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise BhcError(
                f"{self._where} decompresses to more than the {self._limit:,} bytes such an archive may have",
                hint=_REPLACE,
            )
        return content
