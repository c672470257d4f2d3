"""What is around a file's header: taken off and put back with lengths and checksum mended."""

import zlib
from pathlib import Path
from typing import Any

from bhc.formats.bhc_content import CHECKSUM, MAGIC, to_varint
from bhc.formats.coding import loads

NAME = Path("fuzzed.bhc")


def with_checksum(body: bytes) -> bytes:
    """The body and the checksum that fits it."""
    return body + zlib.crc32(body).to_bytes(CHECKSUM, "little")


def split(content: bytes) -> tuple[Any, bytes]:
    """The header of a valid packed file, and the bytes between it and the checksum."""
    at, size, shift = len(MAGIC) + 1, 0, 0
    while True:
        size |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if content[at - 1] < 0x80:
            break
    return loads(content[at : at + size]), content[at + size : -CHECKSUM]


def joined(header: bytes, rest: bytes) -> bytes:
    """A packed file with that header, its length and the checksum right."""
    return with_checksum(MAGIC + b"\2" + to_varint(len(header)) + header + rest)
