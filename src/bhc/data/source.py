"""A source gives the files of a data set, or says why it cannot; sources are tried in order."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from bhc.data.packed import PackedFile
from bhc.errors import BhcError

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


class Place(Protocol):
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
