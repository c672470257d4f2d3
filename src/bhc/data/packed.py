"""A public file, compressed or not, known by what is inside it."""

import gzip
import hashlib
import io
import zlib
from dataclasses import dataclass
from typing import Protocol

from bhc.errors import BhcError


class Packing(Protocol):
    """How a file stands on the disk."""

    def limit(self, size: int) -> int:
        """The most bytes a file may have on the disk whose content has ``size``."""

    def unpack(self, packed: bytes, *, limit: int) -> bytes:
        """The content, of which no more than ``limit`` bytes are decompressed."""

    def pack(self, content: bytes) -> bytes:
        """The file; the same content always gives the same bytes."""


@dataclass(frozen=True)
class Gzip:
    """Compressed."""

    def limit(self, size: int) -> int:
        return size + size // 100 + 1024  # what does not compress grows a little

    def unpack(self, packed: bytes, *, limit: int) -> bytes:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            return file.read(limit)

    def pack(self, content: bytes) -> bytes:
        return gzip.compress(content, compresslevel=1, mtime=0)  # level 1: quickly


@dataclass(frozen=True)
class Plain:
    """As it is."""

    def limit(self, size: int) -> int:
        return size

    def unpack(self, packed: bytes, *, limit: int) -> bytes:
        return packed[:limit]

    def pack(self, content: bytes) -> bytes:
        return content


@dataclass(frozen=True)
class PackedFile:
    """A file with the size and the SHA-256 of its decompressed content.

    The content is what is verified and not the file: the same data compressed by somebody else
    has other bytes on the disk and is just as good.
    """

    name: str
    size: int
    sha256: str
    packing: Packing = Gzip()

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
