"""The order of things in a file: magic, version, header, kept inputs, plain arrays, coded weights, checksum.

Also what the values in its header may be; everything else is a ValueError that says what was found.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from bhc.formats.packed.cbor import brief, dumps
from bhc.formats.packed.coding import BIT, Counted, StatedPrior, coding_cost, description_cost, encode
from bhc.formats.quantised import Codes
from bhc.layers import kind_tagged

MAGIC, VERSION, CHECKSUM = b"BHC", 2, 4
INPUT_SHAPE, STEPS, LABELS, TEMPERATURE, CARD = range(5)  # keys of the header

FROM = 15  # in the place of a kind's number: a step that reads another value than the one before it

# Names in the card that are stored as their place in this list; others are written out. Add at the end only.
CARD_NAMES = (
    "context", "classes", "appearance", "domain", "budget", "threshold", "scale", "architecture_before",
    "weights_before", "parameter_bytes_before", "flops_before", "images", "wrong_before", "wrong",
    "reference_bits", "rescued", "outside", "class_names", "features", "guarantee", "alarm",
)  # fmt: skip
CARD_NUMBERS = {name: number for number, name in enumerate(CARD_NAMES)}

MOST_STEPS = 1 << 12
LARGEST_ACTIVATION = 1 << 22  # numbers between two steps
LARGEST_ACTIVATIONS = 1 << 26  # all of them together
# A constant layer takes no bytes, so a small file may hold some numbers for nothing; but not any number of them.
FREE_NUMBERS, NUMBERS_A_BYTE = 1 << 20, 64
LARGEST_LABEL = (1 << 31) - 1
# Within these no product of a code, a step and a normalisation leaves the range of a 32-bit float.
SMALLEST_STEP, SMALLEST_NUMBER, LARGEST_NUMBER = 1e-37, 1e-15, 1e15


def most_numbers(size: int) -> int:
    """How many coded weights, codes in tables, and values to choose from a file of ``size`` bytes may have in all."""
    return FREE_NUMBERS + NUMBERS_A_BYTE * size


@dataclass(frozen=True)
class Selection:
    """Which of the values that arrive a layer reads, or at which of many places what it writes stands."""

    layer: int  # the place, among those with numbers, of the next layer
    mask: np.ndarray  # 0 or 1, int32

    @property
    def prior(self) -> Counted:
        kept = int(self.mask.sum())
        return Counted((len(self.mask) - kept, kept))

    @property
    def coded_bytes(self) -> float:
        return coding_cost(self.prior, np.array(self.prior.counts)) / (8 * BIT)


@dataclass(frozen=True)
class PackedLayer:
    """The numbers of one weighted layer."""

    name: str
    weights: Codes | None  # None: 32-bit floats, in ``plain``
    prior: StatedPrior | None
    plain: bytes  # float weights where there are no codes, then biases

    @property
    def coded_bytes(self) -> float:
        """What the weights take in the coded stream, by their information under the prior."""
        if self.weights is None or self.prior is None:
            return 0.0
        counts = np.bincount(self.weights.codes.ravel() - self.prior.lowest, minlength=self.prior.count)
        return coding_cost(self.prior, counts) / (8 * BIT)


@dataclass(frozen=True)
class Part:
    """Bytes of a file and what they are for; a share of a coded stream need not be whole."""

    name: str
    bytes: float
    layer: str | None = None


@dataclass
class Content:
    """Everything in a file, taken apart."""

    header: dict[int, Any]
    selections: list[Selection] = field(default_factory=list)
    layers: list[PackedLayer] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """The file."""
        header, selection = self.header_bytes, self._selection_stream
        body = b"".join(
            [
                MAGIC,
                bytes([VERSION]),
                to_varint(len(header)),
                header,
                to_varint(len(selection)),
                selection,
                *[layer.plain for layer in self.layers],
                self._weight_stream,
            ]
        )
        return body + zlib.crc32(body).to_bytes(CHECKSUM, "little")

    @property
    def numbers(self) -> int:
        """What counts towards ``most_numbers``."""
        coded = sum(layer.weights.codes.size for layer in self.layers if layer.weights is not None)
        tables = sum(layer.prior.count for layer in self.layers if layer.prior is not None)
        return coded + tables + sum(len(selection.mask) for selection in self.selections)

    def parts(self) -> Iterator[Part]:
        """What the bytes are for; they add up to the size of the file."""
        header, selection, stream = self.header_bytes, self._selection_stream, self._weight_stream
        frame = len(MAGIC) + 1 + len(to_varint(len(header))) + len(to_varint(len(selection))) + CHECKSUM
        card, priors = len(dumps(self.header[CARD])), 0
        yield Part("magic, version, lengths, checksum", frame)
        yield Part("context and report", card)
        for layer in self.layers:
            if layer.prior is not None:
                size = description_cost(layer.prior) // (8 * BIT)
                priors += size
                yield Part("prior of the weights", size, layer.name)
        yield Part("architecture, labels, steps", len(header) - card - priors)
        last = len(self.layers) - 1
        masks = [(self.layers[min(mask.layer, last)].name, mask.coded_bytes) for mask in self.selections]
        yield from _shares("inputs read", masks, selection)
        for layer in self.layers:
            if layer.plain:
                name = "biases" if layer.weights is not None else "weights and biases as floats"
                yield Part(name, len(layer.plain), layer.name)
        yield from _shares("weights", [(layer.name, layer.coded_bytes) for layer in self.layers], stream)

    @cached_property
    def header_bytes(self) -> bytes:
        return dumps(self.header)

    @cached_property
    def _selection_stream(self) -> bytes:
        return encode([(selection.mask, selection.prior) for selection in self.selections])

    @cached_property
    def _weight_stream(self) -> bytes:
        return encode(
            [
                (layer.weights.codes, layer.prior)
                for layer in self.layers
                if layer.weights is not None and layer.prior is not None
            ]
        )


def _shares(name: str, wanted: list[tuple[str, float]], stream: bytes) -> Iterator[Part]:
    """A stream's bytes divided over what it holds, by information."""
    total = sum(size for _, size in wanted)
    for layer, size in wanted:
        if total and stream:
            yield Part(name, len(stream) * size / total, layer)


def to_varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first, the top bit set on all but the last."""
    result = bytearray()
    while number >= 0x80:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def check_header(header: Any) -> dict[int, Any]:
    """The header, if its parts have the types and sizes they must have."""
    if not isinstance(header, dict) or list(header) != [INPUT_SHAPE, STEPS, LABELS, TEMPERATURE, CARD]:
        raise ValueError("its header is not that of a network")
    shape, labels, steps = header[INPUT_SHAPE], header[LABELS], header[STEPS]
    if not _whole(shape, 1, LARGEST_ACTIVATION) or len(shape) > 4 or prod(shape) > LARGEST_ACTIVATION:
        raise ValueError(f"inputs of shape {brief(shape)}")
    if not _whole(labels, 0, LARGEST_LABEL) or len(set(labels)) < len(labels):
        raise ValueError("its labels are not different whole numbers")
    if not isinstance(steps, list) or len(steps) > MOST_STEPS or not isinstance(header[CARD], dict):
        raise ValueError("its header is not that of a network")
    positive(header[TEMPERATURE])
    return header


def inner(step: Any) -> Any:
    """The step without where it reads from."""
    return step[2] if isinstance(step, list) and len(step) == 3 and step[0] == FROM else step


def name_of(step: Any) -> str | None:
    """The name that a step has in the file; None for those that get one when they are read."""
    if not (isinstance(step, list) and len(step) > 1 and isinstance(step[1], str)):
        return None
    try:
        return step[1] if kind_tagged(step[0]).keeps_name else None
    except ValueError:
        return None


def _whole(numbers: Any, lowest: int, highest: int) -> bool:
    return isinstance(numbers, list) and all(type(n) is int and lowest <= n <= highest for n in numbers)


def moderate(number: Any) -> float:
    if type(number) is not float or not abs(number) <= LARGEST_NUMBER:
        raise ValueError(f"{brief(number)} in the place of a finite number")
    return number


def positive(number: Any, smallest: float = SMALLEST_NUMBER) -> float:
    """A number that a single-precision float can hold and divide by."""
    if moderate(number) < smallest:
        raise ValueError(f"{brief(number)} in the place of a positive number")
    return number
