"""The cache: what was fetched once is on the disk from then on."""

import os
from dataclasses import dataclass
from pathlib import Path

from bhc.data.folder import FolderSource
from bhc.data.packed import PackedFile
from bhc.data.source import Source, logger
from bhc.errors import BhcError
from bhc.files import write_bytes


def cache_dir() -> Path:
    """The folder of the cache: ``BHC_CACHE``, else ``$XDG_CACHE_HOME/bhc``, else ``~/.cache/bhc``."""
    if own := os.environ.get("BHC_CACHE"):
        return Path(own).expanduser()
    if common := os.environ.get("XDG_CACHE_HOME"):
        return Path(common) / "bhc"
    return Path.home() / ".cache" / "bhc"


@dataclass(frozen=True)
class Cache:
    """The cached files of one data set."""

    folder: Path

    @property
    def title(self) -> str:
        return f"cache {self.folder}"

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        return FolderSource(self.folder).fetch(files)

    def store(self, files: tuple[PackedFile, ...], contents: dict[str, bytes]) -> None:
        """Write each file in one step, so that a process that reads meanwhile never sees half of one."""
        for file in files:
            write_bytes(self.folder / file.name, file.pack(contents[file.name]))


@dataclass(frozen=True)
class Kept:
    """A source whose files are kept in a cache, where they replace what is damaged there."""

    source: Source
    cache: Cache

    @property
    def title(self) -> str:
        return self.source.title

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        contents = self.source.fetch(files)
        try:
            self.cache.store(files, contents)
        except BhcError as error:
            # The data is at hand: a full disk or a read-only home costs the next fetch, not this one.
            logger.warning("not kept in the cache: %s", error.problem)
        return contents
