"""A compressed public file, known by what is inside it."""

import gzip
import hashlib
import io
import zlib
from dataclasses import dataclass

from bhc.errors import BhcError


@dataclass(frozen=True)
class PackedFile:
    """A ``.gz`` file, with the size and the SHA-256 of its decompressed content.

    The content is what is verified and not the file: the same data compressed by somebody else
    has other bytes on the disk and is just as good.
    """

    name: str
    size: int
    sha256: str

    @property
    def packed_limit(self) -> int:
        """The most bytes the compressed file may have: what does not compress grows a little."""
        return self.size + self.size // 100 + 1024

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
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
                content = file.read(self.size + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise self._damaged(where, f"it does not decompress ({error})") from error
        self.check(content, where=where)
        return content

    def pack(self, content: bytes) -> bytes:
        """Compress quickly; the same content always gives the same bytes."""
        return gzip.compress(content, compresslevel=1, mtime=0)

    def _damaged(self, where: str, why: str) -> BhcError:
        return BhcError(
            f"{where} is damaged: {why}; decompressed, {self.size:,} bytes with SHA-256 {self.sha256} are expected",
            hint=f"replace it by the original {self.name}, or remove it so that another source is used",
        )
