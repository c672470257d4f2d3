"""Tensors in files: named ones with a JSON header of ours and a checksum of everything, and arrays that users give."""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from bhc.errors import BhcError
from bhc.files import read_bytes, write_bytes

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
