"""Plain data as few bytes: the part of CBOR (RFC 8949) that a header needs, in its one shortest form."""

import struct
from typing import Any

DEEPEST = 12
MOST_VALUES = 1 << 17  # a header of real use has some hundreds, that of a deep transformer tens of thousands
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}  # additional information: struct format
_SIMPLE = {20: False, 21: True, 22: None}
_SIZES = {24: 1, 25: 2, 26: 4, 27: 8}


def dumps(value: Any) -> bytes:
    """The shortest encoding of numbers, text, bytes, lists and dicts; a dict keeps its order."""
    match value:
        case None | bool():
            return bytes([0xE0 | next(code for code, simple in _SIMPLE.items() if simple is value)])
        case int():
            return _head(0, value) if value >= 0 else _head(1, -1 - value)
        case float():
            return _float(value)
        case bytes():
            return _head(2, len(value)) + value
        case str():
            text = value.encode()
            return _head(3, len(text)) + text
        case list() | tuple():
            return _head(4, len(value)) + b"".join(map(dumps, value))
        case dict():
            pairs = b"".join(dumps(key) + dumps(item) for key, item in value.items())
            return _head(5, len(value)) + pairs
    raise TypeError(f"cannot store a {type(value).__name__}")


def loads(content: bytes) -> Any:
    """Read one value that fills ``content``; ValueError for anything else. What it allocates, the bytes contain."""
    value, end = _Reader(content).value(0, 0)
    if end != len(content):
        raise ValueError("bytes follow the header's value")
    return value


def brief(value: Any) -> str:
    """A value for an error message, which must not grow with what a file holds."""
    if isinstance(value, list) and len(value) <= 5 and all(isinstance(part, int | float | None) for part in value):
        return str(value)
    if isinstance(value, list | dict | bytes | str):
        return f"a {type(value).__name__} of {len(value)}"
    return str(value)


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for code, size in _SIZES.items():
        if number < 1 << (8 * size):
            return bytes([major << 5 | code]) + number.to_bytes(size, "big")
    raise ValueError(f"{number} does not fit into eight bytes")


def _float(value: float) -> bytes:
    for code, form in _FLOATS.items():
        try:
            packed = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, packed)[0] == value or code == 27:
            return bytes([0xE0 | code]) + packed
    raise AssertionError("a double fits into eight bytes")


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.values = 0

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """The value at a place, and the place after it."""
        self.values += 1
        if depth > DEEPEST or self.values > MOST_VALUES:
            raise ValueError("values are too many, or nested too deeply")
        major, code = divmod(self.bytes(at, 1)[0], 32)
        if major == 7:
            return self.simple(code, at + 1)
        number, at = self.number(code, at + 1)
        if major < 2:
            return (number if major == 0 else -1 - number), at
        # Every byte, letter or item takes a byte of the file or more, so no size can be a lie.
        if number > len(self.content) - at:
            raise ValueError("a value is cut off")
        if major == 2:
            return self.bytes(at, number), at + number
        if major == 3:
            return self.bytes(at, number).decode(), at + number
        if major not in (4, 5):
            raise ValueError(f"an unknown kind of value, {major}")
        items = []
        for _ in range(number * (major - 3)):
            item, at = self.value(at, depth + 1)
            items.append(item)
        return (items if major == 4 else self.pairs(items)), at

    def pairs(self, items: list[Any]) -> dict[Any, Any]:
        keys = items[::2]
        if not all(type(key) in (int, str) for key in keys) or len(set(keys)) < len(keys):  # a bool is an int
            raise ValueError("a key is neither a number nor text, or stands twice")
        return dict(zip(keys, items[1::2], strict=True))

    def number(self, code: int, at: int) -> tuple[int, int]:
        if code < 24:
            return code, at
        if code not in _SIZES:
            raise ValueError(f"an unknown size of a number, {code}")
        return int.from_bytes(self.bytes(at, _SIZES[code]), "big"), at + _SIZES[code]

    def simple(self, code: int, at: int) -> tuple[Any, int]:
        if code in _SIMPLE:
            return _SIMPLE[code], at
        if code not in _FLOATS:
            raise ValueError(f"an unknown simple value, {code}")
        return struct.unpack(_FLOATS[code], self.bytes(at, _SIZES[code]))[0], at + _SIZES[code]

    def bytes(self, at: int, count: int) -> bytes:
        if count > len(self.content) - at:
            raise ValueError("a value is cut off")
        return self.content[at : at + count]
