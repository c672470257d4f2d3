"""The rows of the CIFAR-10 files: a byte for the label, then 32 x 32 pixels of red, of green and of blue."""

from math import prod

import numpy as np
from numpy.typing import NDArray

from bhc.errors import BhcError

IMAGE_SHAPE = (3, 32, 32)
PIXELS = prod(IMAGE_SHAPE)


def format_rows(
    images: NDArray[np.uint8],  # (N, 3072)
    labels: NDArray[np.uint8],  # (N,)
) -> bytes:
    """Write labels and pixels as the content of a binary file."""
    return np.concatenate([labels[:, None], images], axis=1).tobytes()


def parse_rows(content: bytes, *, where: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read the content of a binary file: images (N, 3, 32, 32) and labels (N,)."""
    if not content or len(content) % (1 + PIXELS):
        raise BhcError(f"{where} has {len(content):,} bytes; expected are whole rows of {1 + PIXELS:,} bytes")
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + PIXELS)
    return rows[:, 1:].reshape(-1, *IMAGE_SHAPE), rows[:, 0]
