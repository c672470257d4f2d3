"""The IDX format of the MNIST files: a magic number, the dimensions, then the bytes."""

import math
import struct

import numpy as np
from numpy.typing import NDArray

from bhc.errors import BhcError

_UNSIGNED_BYTE = 0x08  # the third byte of the magic number: the type of the elements


def format_idx(array: NDArray[np.uint8]) -> bytes:
    """Write an array of unsigned bytes as the content of an IDX file."""
    magic = struct.pack(">HBB", 0, _UNSIGNED_BYTE, array.ndim)
    return magic + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def parse_idx(content: bytes, *, dimensions: int, where: str) -> NDArray[np.uint8]:
    """Read the content of an IDX file of unsigned bytes; the array is the caller's own copy.

    The magic number, the number of dimensions and the exact length are checked.
    """
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise BhcError(
            f"{where} has {len(content):,} bytes; the header of an IDX file of "
            f"{dimensions} dimension(s) alone has {header}"
        )
    zero, kind, found = struct.unpack_from(">HBB", content)
    if zero != 0 or kind != _UNSIGNED_BYTE:
        raise BhcError(
            f"{where} starts with 0x{content[:4].hex()}, which is not the magic number "
            f"of an IDX file of unsigned bytes: 0x000008{dimensions:02x}"
        )
    if found != dimensions:
        raise BhcError(f"{where} has {found} dimension(s) instead of {dimensions}")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise BhcError(
            f"{where} has {len(content):,} bytes; {expected:,} are expected for its dimensions "
            + " x ".join(str(length) for length in shape)
        )
    # Copied because the bytes are read-only, which a tensor on top of them could not honour.
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()
