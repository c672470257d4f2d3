"""Files that are either whole or not there: every file the library writes goes through here."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from bhc.errors import BhcError


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` that takes its name only when everything was written.

    An error, a full disk, an interrupt or a killed process leaves the old file as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def make_folder(path: Path) -> None:
    """Make sure that ``path`` is a folder that can be written to; better said before hours of work than after."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise BhcError(f"cannot write to the folder {path}: {error.strerror or error}") from error


def remove_leftovers(path: Path) -> None:
    """Delete what a killed process had half written under the name of ``path``."""
    for left_over in path.parent.glob(f".{path.name}.*.part"):
        left_over.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` in one step."""
    try:
        with atomic_writer(path) as file:
            file.write(content)
    except OSError as error:
        raise BhcError(
            f"could not write {path}: {error.strerror or error}",
            hint="free some space or choose another place; what was there before is untouched",
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON value, indented, in one step."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def append_json_line(path: Path, record: dict[str, Any], *, hint: str = "") -> None:
    """One more object, a line, at the end of a file; what a killed process left of a line stays a line of its own."""
    try:
        with path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise BhcError(f"could not write {path}: {error.strerror or error}", hint=hint) from error


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one a line; lines that are none are left out, and so is a file that is not there."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def read_bytes(path: Path, *, limit: int) -> bytes:
    """Read a whole file of at most ``limit`` bytes."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise BhcError(f"{path} is larger than the {limit:,} bytes such a file may have")
            return file.read(size)
    except OSError as error:
        raise BhcError(f"could not read {path}: {error.strerror or error}") from error


def read_json(path: Path, *, limit: int = 16 << 20) -> Any:
    """Read a JSON file of bounded size."""
    try:
        return json.loads(read_bytes(path, limit=limit))
    except (ValueError, RecursionError) as error:
        raise BhcError(f"{path} is not valid JSON: {error}") from error
