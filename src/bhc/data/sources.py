"""Public files known by what is inside them, and the sources they come from, which are tried in order."""

import gzip
import hashlib
import http.client
import importlib.util
import io
import logging
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bhc.errors import BhcError
from bhc.files import read_bytes

logger = logging.getLogger("bhc.data")


@dataclass(frozen=True)
class Plain:
    """How a file stands on the disk: as it is."""

    def limit(self, size: int) -> int:
        """The most bytes a file may have on the disk whose content has ``size``."""
        return size

    def unpack(self, packed: bytes, *, limit: int) -> bytes:
        """The content, of which no more than ``limit`` bytes are decompressed."""
        return packed[:limit]

    def pack(self, content: bytes) -> bytes:
        """The file; the same content always gives the same bytes."""
        return content


@dataclass(frozen=True)
class Gzip(Plain):
    """Compressed."""

    def limit(self, size: int) -> int:
        return size + size // 100 + 1024  # what does not compress grows a little

    def unpack(self, packed: bytes, *, limit: int) -> bytes:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            return file.read(limit)

    def pack(self, content: bytes) -> bytes:
        return gzip.compress(content, compresslevel=1, mtime=0)  # level 1: quickly


@dataclass(frozen=True)
class PackedFile:
    """A file with the size and the SHA-256 of its decompressed content.

    The content is what is verified and not the file: the same data compressed by somebody else
    has other bytes on the disk and is just as good.
    """

    name: str
    size: int
    sha256: str
    packing: Plain = Gzip()

    @property
    def packed_limit(self) -> int:
        """The most bytes the file may have on the disk."""
        return self.packing.limit(self.size)

    def check(self, content: bytes, *, where: str) -> None:
        """Raise unless the decompressed ``content`` is the expected one, byte for byte."""
        if len(content) < self.size:
            raise self._damaged(where, f"it ends after {len(content):,} bytes")
        if len(content) > self.size:
            raise self._damaged(where, f"it goes on after {self.size:,} bytes")
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise self._damaged(where, f"its content was altered (SHA-256 {found})")

    def unpack(self, packed: bytes, *, where: str) -> bytes:
        """Decompress and check; never more than one byte beyond the expected size is decompressed."""
        try:
            content = self.packing.unpack(packed, limit=self.size + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise self._damaged(where, f"it does not decompress ({error})") from error
        self.check(content, where=where)
        return content

    def pack(self, content: bytes) -> bytes:
        """The file on the disk; the same content always gives the same bytes."""
        return self.packing.pack(content)

    def _damaged(self, where: str, why: str) -> BhcError:
        return BhcError(
            f"{where} is damaged: {why}; as content, {self.size:,} bytes with SHA-256 {self.sha256} are expected",
            hint=f"replace it by the original {self.name}, or remove it so that another source is used",
        )


class Unavailable(BhcError):
    """This source cannot give the data set; the next one may."""


class Source(Protocol):
    """A place data sets come from."""

    @property
    def title(self) -> str:
        """The place, as a message names it."""

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        """Give the decompressed and checked content of each file by its name.

        Raise ``Unavailable`` where the next source should be tried, and any other ``BhcError``
        where the files are there and are not what they should be.
        """


class FileLocation(Protocol):
    """Where whole files can be read by their names."""

    def address_of(self, name: str) -> str:
        """The file, as a message names it."""

    def read(self, name: str, *, limit: int) -> bytes:
        """Read a file of at most ``limit`` bytes; raise ``Unavailable`` where it is not there."""


@dataclass(frozen=True)
class FirstOf:
    """A place that may have the files in several forms; the first one that is there is taken."""

    title: str
    forms: tuple[Source, ...]

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        problems = []
        for form in self.forms:
            try:
                return form.fetch(files)
            except Unavailable as error:
                problems.append(error.problem)
        raise Unavailable("; ".join(dict.fromkeys(problems)))


@dataclass(frozen=True)
class Wrapped:
    """A source by way of which files come in another manner."""

    source: Source

    @property
    def title(self) -> str:
        return self.source.title


class Tolerant(Wrapped):
    """A source whose damaged files are passed over with a warning."""

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        try:
            return self.source.fetch(files)
        except Unavailable:
            raise
        except BhcError as error:
            logger.warning("%s is passed over: %s", self.title, error.problem)
            raise Unavailable(error.problem) from error


def obtain(name: str, files: tuple[PackedFile, ...], *, sources: Iterable[Source]) -> dict[str, bytes]:
    """Take the files of the data set ``name`` from the first source that has them."""
    failures = []
    for source in sources:
        try:
            contents = source.fetch(files)
        except Unavailable as error:
            failures.append(f"\n  - {source.title}: {error.problem}")
            continue
        logger.info("%s comes from %s", name, source.title)
        return contents
    names = ", ".join(file.name for file in files)
    raise BhcError(
        f"no source gives the data set '{name}':{''.join(failures)}",
        hint=f"put {names} into a folder FOLDER/{name} and set BHC_DATA=FOLDER",
    )


@dataclass(frozen=True)
class Form:
    """One way to publish a file: by itself, as the catalogue describes it."""

    def stored_name(self, file: PackedFile) -> str:
        """The name the file has in this form."""
        return file.name

    def limit(self, file: PackedFile) -> int:
        """The most bytes it may have."""
        return file.packed_limit

    def content(self, stored: bytes, file: PackedFile, *, where: str) -> bytes:
        """The checked content of ``file``, from the bytes stored at ``where``."""
        return file.unpack(stored, where=where)


OWN_FORM = Form()


def _read_all(files: tuple[PackedFile, ...], location: FileLocation, form: Form) -> dict[str, bytes]:
    """The checked content of each file by its name, from the names that the form has for them."""
    stored = {file: form.stored_name(file) for file in files}
    return {
        file.name: form.content(location.read(name, limit=form.limit(file)), file, where=location.address_of(name))
        for file, name in stored.items()
    }


@dataclass(frozen=True)
class FolderSource:
    """A folder with the files under the names they have in one form."""

    folder: Path
    form: Form = OWN_FORM

    @property
    def title(self) -> str:
        return f"folder {self.folder}"

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        missing = [name for name in map(self.form.stored_name, files) if not self._has(name)]
        if missing:
            raise Unavailable(f"it lacks {', '.join(missing)}")
        return _read_all(files, self, self.form)

    def address_of(self, name: str) -> str:
        return str(self.folder / name)

    def read(self, name: str, *, limit: int) -> bytes:
        if not self._has(name):
            raise Unavailable(f"it lacks {name}")
        return read_bytes(self.folder / name, limit=limit)

    def _has(self, name: str) -> bool:
        # os.path and not pathlib: a folder that may not be searched has no files, which is no error here.
        return os.path.isfile(self.folder / name)


@dataclass(frozen=True)
class PackageSource:
    """A folder inside an installed Python package, which is found and not imported."""

    package: str
    distribution: str  # the name it is installed by
    subfolder: str

    @property
    def title(self) -> str:
        return f"the installed package {self.distribution}"

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        spec = importlib.util.find_spec(self.package)
        places = spec.submodule_search_locations if spec else None
        if not places:
            raise Unavailable(f"{self.distribution} is not installed")
        return FolderSource(Path(places[0]) / self.subfolder).fetch(files)


_TIMEOUT = 20.0  # seconds without an answer
_CHUNK = 1 << 16


@dataclass(frozen=True)
class WebSource:
    """An address below which the files stand under the names they have in one form.

    Nothing that arrives is trusted: a file is read up to its known size and its content is checked.
    """

    address: str  # ends in a slash
    form: Form = OWN_FORM

    @property
    def title(self) -> str:
        return self.address

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        return _read_all(files, self, self.form)

    def address_of(self, name: str) -> str:
        return self.address + name

    def read(self, name: str, *, limit: int) -> bytes:
        try:
            return _download(self.address_of(name), limit=limit)
        except urllib.error.HTTPError as error:
            error.close()
            raise Unavailable(f"{name}: the server answers {error.code} {error.reason}") from error
        except urllib.error.URLError as error:
            raise Unavailable(f"{name}: {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{name}: {str(error) or type(error).__name__}") from error


def _download(address: str, *, limit: int) -> bytes:
    """Read what stands at ``address``, in pieces and to no more than ``limit`` bytes."""
    packed = bytearray()
    with urllib.request.urlopen(address, timeout=_TIMEOUT) as response:
        while chunk := response.read(_CHUNK):
            packed += chunk
            if len(packed) > limit:
                raise BhcError(f"{address} is larger than the {limit:,} bytes such a file may have")
    return bytes(packed)
