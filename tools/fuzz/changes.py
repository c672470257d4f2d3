"""Ways to damage a file, by accident and on purpose."""

import math
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from tools.fuzz.envelope import NAME, joined, split, with_checksum

from bhc.files import parse_tensors, tensors_to_bytes
from bhc.formats.bhc_content import CHECKSUM, MAGIC
from bhc.formats.coding import dumps


@dataclass(frozen=True)
class Changed:
    """A file after a change."""

    content: bytes
    mended: bool  # the checksum was made to fit


HOSTILE: tuple[Any, ...] = (
    0, 1, 2, 3, -1, -2, 127, 128, 255, 4095, 4096, 4097, 65535, 65536, 1 << 20, 1 << 22, (1 << 22) + 1, 1 << 28,
    (1 << 31) - 1, 1 << 31, 1 << 32, 10**9, 10**12, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 31), -(1 << 63),
    0.0, -0.0, 1.0, -1.0, 0.5, 1e-37, 1e-320, 1e15, 1e16, 1e30, 1e38, 1e300, math.inf, -math.inf, math.nan,
    "", "a", "a.b", "fc", "fc1", "conv1", "forward", "weight", "relu1", "none", "same", "valid", "\0", "x" * 5000,
    None, True, False, b"", b"\0", b"\xff" * 9, bytes(300), b"\x11" * 33000, b"\x01" * 65535,
    [], [0], [[]], [1, 1], [2, 2], [3, 3], [0, 0], [4096, 4096], [1, 1, 1], [1 << 40, 1 << 40], [-1, -1], [0.5, 0.5],
    [0] * 3000, [[0]] * 300, {}, {0: 0}, {"a": []},
    [0, 0, 1], [0, -1, 3], [0, -32767, 65535], [0, 0, 1 << 40], [0, 1 << 40, 2], [0, 0, 0], [0, 0, -5],
    [1, -2048, 4096, 79, 2048], [1, -2048, 4096, 39, 0], [1, 0, 5000, 3, 3], [1, 0, 9, 80, 3], [1, 0, 9, 5, 9],
    [2, 0, 65535, b"\x10" * 32768], [2, 0, 3, b"\0\0"], [2, 0, 3, b"\x12\x3f"], [3, -32767, b"\x01" * 65535],
    [3, 0, b"\0\0"], [3, -1, b"\1\2\3"], [4, 0, 3],
    [0.5, [0, -32767, 65535]], [0.5, [0, 0, 1]], [0.5, [0, -1, 3]], [1e15, [0, 32767, 1]],
    [0, "big", 1 << 20, [0.5, [0, 0, 1]], False], [0, "big", 10**9, [0.5, [0, 0, 1]], False], [0, "f", 3, None, None],
    [1, "c", 64, [1, 1], [1, 1], [4096, 4096], [1, 1], [0.5, [0, 0, 1]], False],
    [1, "c", 2, [1, 1], [1, 1], "same", [1, 1], [0.5, [0, 0, 1]], False], [2], [2, 2], [4, 0.5], [5, 1e15], [7, "tanh"],
    [10, 2, 2, 0, 1], [10, [2, 2], [1, 1], [1, 1], [2, 2]], [11, 3, 1, 1], [11, 1 << 40, 1, 0], [12], [13, 0.0, 1.0],
    [13, 0.0, 0.0], [14, 1], [14, 0], [14, 1 << 40], [15], [99, 1],
    [15, 0, [2]], [15, 1, [2]], [15, 2, [2]], [15, 3, [12]], [15, 2, [15, 2, [2]]], [15, 2, [16, 1, 2]],
    [15, 1 << 40, [2]],
    [15, 2, [0, "late", 3, [0.5, [0, 0, 1]], False]], [15, -1, [2]], [15, 2, []], [15, 2], [15, 2.0, [2]],
    [16, 1, 1], [16, 1, 2], [16, 0, 1], [16, 2, 3], [16, 1], [16, 1, 1, 1], [16, 1, 1 << 40],
    [16, 1.0, 1], [16, True, 1],
    [17, 1, 1], [17, 1, 2], [17, 2, 4], [17, -1, 1], [18, 1, 1], [18, 1, 2], [18, 1], [18],
    [18, 3, 2, 1], [18, *[1] * 3000],
    [19, "g", 4, [3, 3], [1, 1], [1, 1], [1, 1], 2, [0.5, [0, 0, 1]], False],
    [19, "g", 4, [1], [1], [0], [1], 1, [0.5, [0, 0, 1]], False], [19, "g", 4, [1], [1], [0], [1], 0, None, False],
    [19, "g", 2, [1, 1], [1, 1], [0, 0], [1, 1], 1, [0.5, [0, 0, 1]], False],
    [19, "g", 2, [], [], [], [], 1, None, False],
    [19, "g", 4, [1, 1, 1], [1, 1, 1], "same", [1, 1, 1], 1 << 40, [0.5, [0, 0, 1]], False],
    [20, [0.0], [1.0]], [20, [0.0, 1.0], [1.0, 2.0]], [20, [0.0], [0.0]], [20, [], []], [20, [0.0, 1.0], [1.0]],
    [21], [21, 1],
    [22, 0, 0], [22, 1, 1], [22, 0, 4096], [22, 4097, 0], [22, -1, 1], [22, 1], [23, True], [23, False], [23, 1], [23],
    [24, 1], [24, 2], [24, 0], [24, [2, 2]], [24, 4097], [25, 2, 1, 0, 1], [25, [2], [1], [1], [1]], [26, 2, 1, 1, 1],
    [27, [2], [1], [0]], [27, 2, 1, 0], [28, 2, 1, 1], [28, [1, 2, 1], 1, 0], [29], [30], [31],
    [32, 1.0, 20.0], [32, 0.0, 1.0], [32, 1, 20], [32, 1.0], [33], [34, 1],
)  # fmt: skip


def change(rng: random.Random, sources: Sequence[bytes]) -> Changed:
    """One source, changed in one of many ways."""
    source = rng.choice(sources)
    if rng.random() < 0.45:
        content = source
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            content = rng.choice(BLUNT)(rng, content, rng.choice(sources))
        return Changed(content, mended=False)
    if not source.startswith(MAGIC):
        return Changed(_hostile_version_1(rng, source), mended=True)
    if rng.random() < 0.35:
        body = source[:-CHECKSUM]
        for _ in range(rng.choice((1, 1, 2))):
            body = rng.choice(BLUNT)(rng, body, rng.choice(sources)[:-CHECKSUM])
        return Changed(with_checksum(body), mended=True)
    return Changed(_hostile_header(rng, source), mended=True)


def _flip(rng: random.Random, content: bytes, _: bytes) -> bytes:
    return _edit(content, rng.randrange(max(len(content), 1)), lambda byte: byte ^ 1 << rng.randrange(8))


def _set(rng: random.Random, content: bytes, _: bytes) -> bytes:
    value = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return _edit(content, rng.randrange(max(len(content), 1)), lambda _: value)


def _edit(content: bytes, place: int, new: Callable[[int], int]) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[place] = new(changed[place])
    return bytes(changed)


def _truncate(rng: random.Random, content: bytes, _: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _insert(rng: random.Random, content: bytes, _: bytes) -> bytes:
    place = rng.choice((rng.randrange(len(content) + 1), len(content)))
    return content[:place] + rng.randbytes(rng.choice((1, 2, 8, 100))) + content[place:]


def _delete(rng: random.Random, content: bytes, _: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + content[place + rng.choice((1, 2, 8)) :]


def _splice(rng: random.Random, content: bytes, other: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)] + other[rng.randrange(len(other) + 1) :]


def _repeat(rng: random.Random, content: bytes, _: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + content[max(0, place - rng.randrange(1, 40)) :]


BLUNT = (_flip, _flip, _set, _truncate, _insert, _delete, _splice, _repeat)


def _hostile_header(rng: random.Random, source: bytes) -> bytes:
    """Values in the header replaced, dropped, doubled or exchanged; then written as plain CBOR, or not so plain."""
    header, rest = split(source)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        header = _replaced(rng, header)
    packed = dumps(header)
    way = rng.random()
    if way < 0.03:
        packed = _long_form(rng, packed)
    elif way < 0.06:
        depth = rng.choice((5, 9, 100, 10**5))
        packed = rng.choice((b"\x81", b"\xa1\x00", b"\x9a\xff\xff\xff\xff", b"\xc0")) * depth + packed
    return joined(packed, rest)


def _replaced(rng: random.Random, root: Any) -> Any:
    """Go down from the root some levels, and change something there."""
    root = deepcopy(root)
    above, value = None, root
    while isinstance(value, list | dict) and value and (above is None or rng.random() < 0.8):
        key = rng.randrange(len(value)) if isinstance(value, list) else rng.choice(list(value))
        above, value = (value, key), value[key]
    if above is None:
        return rng.choice(HOSTILE)
    container, key = above
    way = rng.random()
    if way < 0.6:
        container[key] = deepcopy(rng.choice(HOSTILE))
    elif way < 0.7:
        del container[key]
    elif way < 0.8 and isinstance(container, list):
        container[key:key] = [deepcopy(value)] * rng.choice((1, 1, 2, 50, 300))
    elif way < 0.9 and isinstance(container, list):
        container.insert(key, deepcopy(rng.choice(HOSTILE)))
    elif isinstance(container, list):
        rng.shuffle(container)
    else:
        container[rng.choice((5, 18, 19, 1 << 40, -1, "new", "classes", True))] = container.pop(key)
    return root


def _long_form(rng: random.Random, packed: bytes) -> bytes:
    """A number in the header in a longer form than it needs."""
    place = rng.randrange(len(packed))
    major, low = divmod(packed[place], 32)
    return packed[:place] + bytes([32 * major + 25, 0, low]) + packed[place + 1 :]


def _hostile_version_1(rng: random.Random, source: bytes) -> bytes:
    tensors, header = parse_tensors(source, NAME)
    if rng.random() < 0.3:
        name = rng.choice(list(tensors))
        tensors[name] = rng.choice(
            (
                lambda x: x.double(),
                lambda x: x.half(),
                lambda x: x.long(),
                lambda x: x.flatten()[:1],
                lambda x: x[None],
                lambda x: x * 1000,
                lambda x: x * 0,
                lambda x: x * math.nan,
                lambda x: torch.zeros(0),
            )
        )(tensors[name])
    for _ in range(rng.choice((0, 1, 1, 2))):
        header = _without_bytes(_replaced(rng, header))
    return tensors_to_bytes(tensors, header)


def _without_bytes(value: Any) -> Any:
    """JSON knows neither bytes nor several kinds of keys."""
    if isinstance(value, dict):
        return {str(key): _without_bytes(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_bytes(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value
