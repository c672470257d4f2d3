"""Where files come from: a source gives the files of a data set, or says why it cannot; they are tried in order."""

import http.client
import importlib.util
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bhc.data.packed import PackedFile
from bhc.errors import BhcError
from bhc.files import read_bytes

logger = logging.getLogger("bhc.data")


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

    @property
    def title(self) -> str:
        """The place, as a message names it."""

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
class Tolerant:
    """A source whose damaged files are passed over with a warning."""

    source: Source

    @property
    def title(self) -> str:
        return self.source.title

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


class Form(Protocol):
    """One way to publish a file."""

    def stored_name(self, file: PackedFile) -> str:
        """The name the file has in this form."""

    def limit(self, file: PackedFile) -> int:
        """The most bytes it may have."""

    def content(self, stored: bytes, file: PackedFile, *, where: str) -> bytes:
        """The checked content of ``file``, from the bytes stored at ``where``."""


@dataclass(frozen=True)
class OwnForm:
    """The files as the catalogue describes them."""

    def stored_name(self, file: PackedFile) -> str:
        return file.name

    def limit(self, file: PackedFile) -> int:
        return file.packed_limit

    def content(self, stored: bytes, file: PackedFile, *, where: str) -> bytes:
        return file.unpack(stored, where=where)


OWN_FORM = OwnForm()


@dataclass(frozen=True)
class FolderSource:
    """A folder with the files under the names they have in one form."""

    folder: Path
    form: Form = OWN_FORM

    @property
    def title(self) -> str:
        return f"folder {self.folder}"

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        stored = {file: self.form.stored_name(file) for file in files}
        missing = [name for name in stored.values() if not self._has(name)]
        if missing:
            raise Unavailable(f"it lacks {', '.join(missing)}")
        return {
            file.name: self.form.content(
                self.read(name, limit=self.form.limit(file)), file, where=self.address_of(name)
            )
            for file, name in stored.items()
        }

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
        stored = {file: self.form.stored_name(file) for file in files}
        return {
            file.name: self.form.content(
                self.read(name, limit=self.form.limit(file)), file, where=self.address_of(name)
            )
            for file, name in stored.items()
        }

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
