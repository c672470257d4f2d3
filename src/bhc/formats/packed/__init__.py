"""The packed ``.bhc`` file, version 2; ``docs/format.md`` specifies it byte by byte."""

from bhc.formats.packed.content import FROM, LARGEST_ACTIVATION, LARGEST_LABEL, MAGIC, VERSION, Part
from bhc.formats.packed.read import unpack
from bhc.formats.packed.write import pack, packed_parts, packed_size

__all__ = [
    "FROM",
    "LARGEST_ACTIVATION",
    "LARGEST_LABEL",
    "MAGIC",
    "VERSION",
    "Part",
    "pack",
    "packed_parts",
    "packed_size",
    "unpack",
]
