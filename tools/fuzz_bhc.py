"""Damaged and hostile ``.bhc`` files: each must be refused with a BhcError, or read to a sound network.

    python tools/fuzz_bhc.py --count 100000 --seed 0

Makes a handful of valid files, changes them, and reads them. Where a change has the checksum mended the parser
itself is put to the test; where it has not, a file that reads must hold the very network it was made from. Each file
has 100 ms and 100 MB; one that takes longer is timed three times more, and the best counts, for the machine may have
had other things to do. Exits with 1 if a file fails, and saves it.
"""

import argparse
import math
import random
import resource
import sys
import time
import tracemalloc
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bhc.emission.compressed import Compressed, from_file
from bhc.errors import BhcError
from bhc.formats import Codes, QuantisedNetwork, pack
from bhc.formats.file import NetworkFile, parse_network
from bhc.formats.packed.cbor import dumps, loads
from bhc.formats.packed.coder import encode
from bhc.formats.packed.layout import CHECKSUM, MAGIC, to_varint
from bhc.formats.packed.priors import Counted
from bhc.formats.packed.write import abbreviate
from bhc.graph import Select, Shape, chain_shapes, describe, pair
from bhc.models.normalise import Normalise
from bhc.tensors import parse_tensors, tensors_to_bytes

LONGEST_MS, LARGEST_BYTES = 100.0, 100 << 20
WATCHED, BATCH = 10, 200  # of every tenth file Python's and numpy's memory is watched too, so many files together
SMALL = 1 << 22  # operations; larger networks are run on paper only
NAME = Path("fuzzed.bhc")

CARD = {
    "context": {"classes": [3, 4, 7]},
    "threshold": -0.75,
    "scale": 0.5,
    "architecture_before": [6, 8],
    "weights_before": 9000,
    "parameter_bytes_before": 40000,
    "flops_before": 18000,
    "images": 200,
    "wrong_before": 1,
    "wrong": 3,
    "reference_bits": [4, 5],
    "rescued": [1],
    "outside": [-2.0, -1.0],
    "class_names": ["three", "four", "größer"],
}


# Valid files


def make_sources(seed: int = 0) -> list[bytes]:
    """Small networks with all that a file can hold, in both versions."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    return [pack(_lenet_5(rng)), pack(_lenet_300(rng)), pack(_activations(rng)), pack(_floats()), _version_1()]


def _lenet_5(rng: np.random.Generator) -> QuantisedNetwork:
    chain = nn.Sequential(
        OrderedDict(
            normalise=Normalise(0.0, 255.0),
            conv1=nn.Conv2d(1, 3, 3, padding="same"),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            conv2=nn.Conv2d(3, 4, (3, 2), stride=2, padding=1, dilation=2, bias=False),
            average=nn.AvgPool2d((2, 1), 1),
            flatten=nn.Flatten(),
            kept=Select(torch.tensor([0, 3, 4, 5])),
            fc=nn.Linear(4, 3),
        )
    )
    return _quantised(chain, (1, 10, 12), rng, {"conv1": 3, "conv2": 9, "fc": 40}, biased=["conv1", "fc"])


def _lenet_300(rng: np.random.Generator) -> QuantisedNetwork:
    chain = nn.Sequential(
        OrderedDict(
            normalise=Normalise(0.5, 16.0),
            flatten=nn.Flatten(),
            kept=Select(torch.from_numpy(np.sort(rng.permutation(64)[:21]))),
            fc1=nn.Linear(21, 12),
            relu=nn.ReLU(),
            fc2=nn.Linear(12, 3),
        )
    )
    return _quantised(chain, (1, 8, 8), rng, {"fc1": 2, "fc2": 20000}, biased=["fc1"])


def _activations(rng: np.random.Generator) -> QuantisedNetwork:
    steps = [nn.ReLU6(), nn.LeakyReLU(0.1), nn.ELU(0.5), nn.SELU(), nn.GELU("tanh"), nn.SiLU(), nn.Tanh()]
    chain = nn.Sequential(nn.Linear(5, 4, bias=False), *steps, nn.Linear(4, 3))
    return _quantised(chain, (5,), rng, {"0": 0, "8": 1}, biased=[])


def _floats() -> QuantisedNetwork:
    chain = nn.Sequential(OrderedDict(fc1=nn.Linear(4, 3), relu=nn.ReLU(), fc2=nn.Linear(3, 3, bias=False)))
    chain = chain.eval().requires_grad_(False)
    return QuantisedNetwork(chain, (4,), (3, 4, 7), temperature=1.5, card=CARD)


def _quantised(
    chain: nn.Sequential, shape: tuple[int, ...], rng: np.random.Generator, spread: dict[str, int], biased: list[str]
) -> QuantisedNetwork:
    weights, biases = {}, {}
    for name, wide in spread.items():
        size = tuple(chain.get_submodule(name).weight.shape)  # type: ignore[union-attr, arg-type]
        codes = np.clip(np.rint(rng.laplace(0, wide / 2, size)), -32767, 32767)
        weights[name] = Codes(codes.astype(np.int32), 0.125)
        if name in biased:
            biases[name] = Codes(rng.integers(-127, 128, size[0], dtype=np.int32), 2.0**-7)
    card = CARD | {"architecture_before": [9] * len(spread), "reference_bits": [6] * len(spread)}
    build = QuantisedNetwork.build
    return build(
        chain, weights=weights, biases=biases, input_shape=shape, labels=(3, 4, 7), temperature=0.875, card=card
    )


def _version_1() -> bytes:
    network = _floats()
    chain = nn.Sequential(OrderedDict(normalise=Normalise(0.0, 16.0), kept=Select(torch.tensor([1, 2, 4, 5]))))
    for name, module in network.chain.named_children():
        chain.add_module(name, module)
    report = {
        "context": {"classes": [3, 4, 7]}, "classes": [3, 4, 7], "threshold": -0.75, "layers": ["fc1", "fc2"],
        "architecture_before": [9, 8], "architecture": [4, 3], "bits": [32, 32], "layer_weights": [12, 9],
        "weights_before": 9000, "weights_after": 21, "parameter_bytes_before": 40000, "flops_before": 18000,
        "flops_after": 42, "error_before": 1.0, "error": 2.5, "validation_images": 200, "emit_ms": 3.5,
        "file_bytes": None, "notes": [], "pruning_ratio": 400.0, "bits_ratio": 400.0, "file_ratio": None,
    }  # fmt: skip
    header = {
        "format": "bhc", "version": 1, "network": describe(chain), "input_shape": [6], "temperature": 1.25,
        "report": report,
    }  # fmt: skip
    return tensors_to_bytes(chain.state_dict(), header)


def make_extremes() -> list[bytes]:
    """Files that go to the limits of what a small file may hold, and some that go beyond."""
    constant, wide, two = [0.5, [0, 7, 1]], [0.5, [0, -32767, 65535]], [0.5, [0, 0, 2]]
    half = 1 << 19
    return [
        _extreme([1000], [[0, "a", 1000, constant, False], [0, "b", 2, constant, None]], plain=bytes(8)),
        _extreme([1000], [[0, "a", 1000, two, False], [0, "b", 2, constant, False]]),
        _extreme([half], [[0, "a", 1, two, False], *_narrow()]),
        _extreme([half], [[14, half], [0, "a", 1, constant, False], *_narrow()], masks=[(half, half)]),
        _extreme([half], [[14, half // 2], *_narrow()], masks=[(half, half // 2)]),
        _extreme([half], [[14, half // 4], [14, 9], *_narrow()], masks=[(half, half // 4), (half // 4, 9)]),
        _extreme([1000, 1000], [[12], [14, 1], *_narrow()], masks=[(1000000, 1)]),
        _extreme([1000, 1000], [[12], [14, 1], *_narrow()], masks=[(1000000, 0)]),
        _extreme([1 << 22], [[14, 1], *_narrow()]),
        _extreme([4, 1024, 1024], [*_same(40, 4), *_end()]),
        _extreme([1, 1000, 1000], [[1, "c", 1, [800, 800], [1, 1], [0, 0], [1, 1], constant, False], *_end()]),
        _extreme([1, 2048, 2048], [[10, 2000, 1, 0, 1], *_end()]),
        _extreme([1, 2000, 2000], [[11, 4096, 9, 2048], *_end()]),
        _extreme([2], [[0, str(number), 2, [0.5, [0, -1, 3]], 0.5] for number in range(128)], plain=bytes(256)),
        _extreme([2], [[0, str(number), 2, wide, False] for number in range(15)]),
        _extreme([2], [[0, str(number), 2, wide, False] for number in range(128)]),
        _extreme([2], [[0, str(number), 2, [0.5, [1, -9, 4096, number % 80, 9]], False] for number in range(128)]),
        _extreme([2], [[kind] for kind in (2, 3, 6, 8, 9, 12) for _ in range(21)] + _narrow()),
        _extreme([2], [[2]] * 100_000 + _narrow()),
        _extreme([2], _narrow(), card=CARD | {"context": {"classes": [[]] * 8000}}),
        _extreme([2], _narrow(), card=CARD | {str(number): 0 for number in range(4000)}),
        _extreme([2], [[0, "x" * 60_000, 2, constant, False]]),
    ]


def _narrow() -> list[Any]:
    return [[0, "end", 2, [0.5, [0, 1, 1]], False]]


def _end() -> list[Any]:
    return [[12], [0, "all", 1, [0.5, [0, 0, 1]], False], *_narrow()]


def _same(count: int, channels: int) -> list[Any]:
    """Convolutions that leave large maps as large as they are."""
    rest = [channels, [1, 1], [1, 1], [0, 0], [1, 1], [0.5, [0, 0, 1]], False]
    return [[1, f"c{number}", *rest] for number in range(count)]


def _extreme(
    shape: list[int],
    steps: list[Any],
    *,
    masks: Sequence[tuple[int, int]] = (),
    plain: bytes = b"",
    card: dict[str, Any] | None = None,
) -> bytes:
    """A file whose select steps read their last values, and whose codes are all the first of their prior."""
    card = dict(card or CARD) | {"architecture_before": [1] * sum(step[0] < 2 for step in steps)}
    for name in ("reference_bits", "rescued", "class_names"):
        card.pop(name)
    header = {0: shape, 1: steps, 2: [3, 4], 3: 1.0, 4: abbreviate(card)}
    parts = [
        (np.arange(arriving, dtype=np.int32) >= arriving - kept, Counted((arriving - kept, kept)))
        for arriving, kept in masks
    ]
    stream = encode([(mask.astype(np.int32), prior) for mask, prior in parts])
    return joined(dumps(header), to_varint(len(stream)) + stream + plain)


# Changes


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


# Judging


class Unsound(Exception):
    """A file was read that should have been refused, or not read as it should."""


@dataclass
class Tally:
    """What came of many files."""

    count: int = 0
    refused: int = 0
    read: int = 0
    slowest_ms: float = 0.0
    traced_bytes: int = 0
    grown_bytes: int = 0
    failures: list[tuple[bytes, str]] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.count:,} files: {self.refused:,} refused, {self.read:,} read, {len(self.failures)} failures;"
            f" slowest {self.slowest_ms:.1f} ms; memory: {self.traced_bytes / 1e6:.1f} MB at most in Python and numpy,"
            f" the process grew by {self.grown_bytes / 1e6:.1f} MB"
        )


def fuzz(
    count: int, seed: int, *, longest_ms: float = LONGEST_MS, progress: Callable[[Tally], None] | None = None
) -> Tally:
    """Change and read ``count`` files."""
    rng, tally = random.Random(seed), Tally()
    sources = make_sources(seed)
    originals = [_read(source) for source in sources]
    _warm_up(sources, originals)
    start, watched = _resident(), []
    extremes = [Changed(content, mended=True) for content in make_extremes()]
    for number in range(count):
        changed = extremes[number] if number < len(extremes) else change(rng, sources)
        if number % WATCHED == 0 or number < len(extremes):
            watched.append(changed.content)
        try:
            _judge(changed, originals, tally, longest_ms)
            tally.grown_bytes = _resident() - start
            if tally.grown_bytes > LARGEST_BYTES:
                start = _resident()  # so that one file is blamed, not all that follow
                raise Unsound(f"memory grew by {tally.grown_bytes:,} bytes")
        except Exception as error:  # whatever it is, it is a finding
            tally.failures.append((changed.content, f"{type(error).__name__}: {error}"))
        tally.count += 1
        if len(watched) == BATCH or tally.count == count:
            before = _resident()
            _watch_memory(watched, tally)
            watched.clear()
            start += _resident() - before  # the watch takes memory of its own
        if progress is not None and tally.count % 5000 == 0:
            progress(tally)
    return tally


def _warm_up(sources: list[bytes], originals: list[Compressed]) -> None:
    """Have tables made, modules imported and memory fetched that are needed once and not for each file."""
    rng = random.Random(0)
    for _ in range(200):
        _attempt(change(rng, sources).content)
    for original in originals:
        check_sound(original, largest=0)
        check_sound(original)


def _judge(changed: Changed, originals: list[Compressed], tally: Tally, longest_ms: float) -> None:
    began = time.perf_counter()
    result = _attempt(changed.content)
    took = 1e3 * (time.perf_counter() - began)
    if took > longest_ms:
        took = min(_time(changed.content) for _ in range(3))
    tally.slowest_ms = max(tally.slowest_ms, took)
    if took > longest_ms:
        raise Unsound(f"took {took:.0f} ms")
    if result is None:
        tally.refused += 1
        return
    tally.read += 1
    check_sound(result)
    if not changed.mended and not any(same(result.network, original.network) for original in originals):
        raise Unsound("a damaged file was read, and not to the network it was made from")


def _watch_memory(contents: list[bytes], tally: Tally) -> None:
    """Read again with an eye on what Python and numpy allocate; in one go, for each start of the watch costs some."""
    tracemalloc.start()
    for content in contents:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        _attempt(content)
        taken = tracemalloc.get_traced_memory()[1] - before
        tally.traced_bytes = max(tally.traced_bytes, taken)
        if taken > LARGEST_BYTES:
            tally.failures.append((content, f"took {taken:,} bytes"))
    tracemalloc.stop()


def _read(content: bytes) -> Compressed:
    file: NetworkFile = parse_network(content, NAME)
    compressed = from_file(file, NAME)
    str(compressed.report)  # what is read can be shown
    return compressed


def _attempt(content: bytes) -> Compressed | None:
    """None if the file was refused as it should be."""
    try:
        return _read(content)
    except BhcError:
        return None


def _time(content: bytes) -> float:
    """By the clock of this process, which stands still while others have the processor."""
    began = time.process_time()
    _attempt(content)
    return 1e3 * (time.process_time() - began)


def _resident() -> int:
    """The most memory the process ever had, in bytes; macOS counts bytes, others kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@torch.no_grad()
def check_sound(compressed: Compressed, *, largest: int = SMALL) -> None:
    """The network runs on what it says it takes, if only on paper, and its weights are what its codes say."""
    network = compressed.network
    for layer in network.layers:
        if layer.weight is not None and not torch.equal(layer.module.weight, layer.weight.values()):
            raise Unsound(f"the weights of {layer.name} are not what their codes say")
    small = sum(_operations(*step) for step in chain_shapes(network.chain, network.input_shape)) < largest
    device = "cpu" if small else "meta"
    outputs = network.module().to(device)(torch.zeros(1, *network.input_shape, device=device))
    if outputs.shape != (1, len(network.labels)):
        raise Unsound(f"outputs of shape {tuple(outputs.shape)} for {len(network.labels)} labels")


def _operations(_: str, module: nn.Module, arriving: Shape, leaving: Shape) -> int:
    """About how many a step takes for one input."""
    window = 1
    if isinstance(module, nn.Linear | nn.Conv2d):
        window = module.weight[0].numel()
    elif isinstance(module, nn.MaxPool2d | nn.AvgPool2d):
        window = math.prod(pair(module.kernel_size))
    return math.prod(arriving) + math.prod(leaving) * window


def same(one: QuantisedNetwork, other: QuantisedNetwork) -> bool:
    """Whether two networks are equal to the last bit, what is known about them included."""
    numbers = [list(network.chain.state_dict().values()) for network in (one, other)]
    kinds = [list(map(str, network.chain)) for network in (one, other)]
    about = [(n.input_shape, n.labels, n.temperature, n.card) for n in (one, other)]
    return (
        about[0] == about[1]
        and kinds[0] == kinds[1]
        and len(numbers[0]) == len(numbers[1])
        and all(map(torch.equal, *numbers))
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="folder for files that failed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tally = fuzz(arguments.count, arguments.seed, progress=lambda tally: print(tally, file=sys.stderr, flush=True))
    for number, (content, problem) in enumerate(tally.failures[:100]):
        arguments.out.mkdir(parents=True, exist_ok=True)
        path = arguments.out / f"{number}.bhc"
        path.write_bytes(content)
        print(f"{path}: {problem}")
    print(tally)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
