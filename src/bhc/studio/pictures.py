"""Images as PNG files, written by hand: five lines of format need no library."""

import struct
import zlib

from torch import Tensor

GREY, COLOUR = 0, 2
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def is_picture(shape: tuple[int, ...]) -> bool:
    """Whether inputs of a shape can be looked at: one channel or three, rows and columns."""
    return len(shape) == 3 and shape[0] in (1, 3)


def png(image: Tensor) -> bytes:  # (1 or 3, H, W) uint8
    """The PNG file of an image."""
    channels, height, width = image.shape
    rows = image.permute(1, 2, 0).reshape(height, width * channels).numpy()
    lines = b"".join(b"\0" + row.tobytes() for row in rows)  # each begins with the filter: none
    head = struct.pack(">IIBBBBB", width, height, 8, GREY if channels == 1 else COLOUR, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")
    return SIGNATURE + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
