"""Files that are either whole or not there: every file the library writes goes through here; and tensors in them."""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

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


LARGEST_FILE = 64 << 30
LARGEST_ARRAY = 1 << 30


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write atomically; the old file survives whatever happens on the way."""
    write_bytes(path, tensors_to_bytes(tensors, header))


def tensors_to_bytes(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    content: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        numbers = tensor.detach().cpu().contiguous()
        # Safetensors takes none that share their memory, as the weights of two steps may.
        content[name] = numbers.clone() if numbers.data_ptr() in places else numbers
        places.add(numbers.data_ptr())
    text = json.dumps(header, sort_keys=True)
    # One entry: the order of several is not the same twice.
    label = json.dumps({"header": text, "sha256": _checksum(content, text)})
    return safetensors.torch.save(content, {"bhc": label})


def read_tensors(path: Path, *, limit: int = LARGEST_FILE) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read back what ``write_tensors`` wrote, or raise if a bit of it has changed."""
    if not path.exists():
        raise BhcError(f"{path} does not exist")
    return parse_tensors(read_bytes(path, limit=limit), path)


def parse_tensors(content: bytes, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The same for the content of a file; ``path`` is its name in messages."""
    try:
        metadata = _metadata(content)
        header = json.loads(metadata["header"])
        tensors = safetensors.torch.load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise BhcError(
            f"{path} was not written by bhc, or is damaged: {error}", hint="restore it from a copy, or start anew"
        ) from error
    if _checksum(tensors, metadata["header"]) != metadata.get("sha256"):
        raise BhcError(f"{path} is damaged: its checksum does not match", hint="restore it from a copy, or start anew")
    return tensors, header


def _metadata(content: bytes) -> dict[str, str]:
    """Our entry in a safetensors header; the library hands it out only for files on disk."""
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= len(content) - 8:
        raise ValueError("its header is cut off")
    return dict(json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["bhc"]))


def _checksum(tensors: Mapping[str, Tensor], header: str) -> str:
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_array(path: Path, *, what: str) -> Tensor:
    """An array from a ``.npy`` file; never pickled objects. ``what`` says what it should be."""
    content = io.BytesIO(read_bytes(path, limit=LARGEST_ARRAY))
    try:
        array = np.load(content, allow_pickle=False)
        return torch.from_numpy(np.ascontiguousarray(array))
    except (ValueError, TypeError, EOFError, OSError, MemoryError) as error:
        raise BhcError(
            f"{path} is not an array that can be read: {error}", hint=f"write it with numpy.save(path, array), {what}"
        ) from error
