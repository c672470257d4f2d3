"""From a quantised network to a file's content: magic, version, header, kept inputs, plain arrays, coded weights,
checksum. This is version 2; ``docs/format.md`` specifies it byte by byte.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.formats.coding import (
    BIT,
    LARGEST_BELL,
    TOTAL,
    Bell,
    Bytes,
    Counted,
    Flat,
    Nibbles,
    StatedPrior,
    bell_curves,
    bits_of,
    brief,
    coding_cost,
    description_cost,
    dumps,
    encode,
    log2,
    to_frequencies,
)
from bhc.formats.quantised import Codes, QuantisedNetwork
from bhc.graph import INPUT, shaped_steps
from bhc.layers import Tied, kind_of, kind_tagged
from bhc.layers.arguments import LARGEST_NUMBER, SMALLEST_NUMBER, expect

MAGIC, VERSION, CHECKSUM = b"BHC", 2, 4
INPUT_SHAPE, STEPS, LABELS, TEMPERATURE, CARD = range(5)  # keys of the header

# In the place of a kind's number: a step that reads another value than the one before it, and one with the numbers of
# a layer that an earlier step has called.
FROM, AGAIN = 15, 43

# Names in the card that are stored as their place in this list; others are written out. Add at the end only.
CARD_NAMES = (
    "context", "classes", "appearance", "domain", "budget", "threshold", "scale", "architecture_before",
    "weights_before", "parameter_bytes_before", "flops_before", "images", "wrong_before", "wrong",
    "reference_bits", "rescued", "outside", "class_names", "features", "guarantee", "alarm", "round_to", "measure",
    "origin",
)  # fmt: skip
CARD_NUMBERS = {name: number for number, name in enumerate(CARD_NAMES)}

MOST_STEPS = 1 << 12
LARGEST_ACTIVATION = 1 << 22  # numbers between two steps
LARGEST_ACTIVATIONS = 1 << 26  # all of them together
# A constant layer takes no bytes, so a small file may hold some numbers for nothing; but not any number of them.
FREE_NUMBERS, NUMBERS_A_BYTE = 1 << 20, 64
LARGEST_LABEL = (1 << 31) - 1


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


def take_apart(network: QuantisedNetwork, priors: Mapping[str, StatedPrior] | None = None) -> Content:
    """The network as a file sees it; ``priors`` of layers where they are known already."""
    priors = priors or {}
    steps: list[list[Any]] = []
    content = Content(
        {
            INPUT_SHAPE: list(network.input_shape),
            STEPS: steps,
            LABELS: [int(label) for label in network.labels],
            TEMPERATURE: float(network.temperature),
            CARD: abbreviate(dict(network.card)),
        }
    )
    writer = _Writer(network, content, priors)
    places, owners = {INPUT: -1}, network.graph.owners
    for place, shaped in enumerate(shaped_steps(network.graph, network.input_shape)):
        kind = kind_of(shaped.module)
        owner = owners.get(shaped.name, shaped.name)
        if owner == shaped.name:
            step = kind.write(shaped.module, shaped.name, shaped.arriving[0], writer)
        else:
            step = [AGAIN, place - places[owner], isinstance(shaped.module, Tied)]
        back = [place - places[name] for name in shaped.step.reads]
        if kind.joins:
            step += back
        steps.append(step if back == [1] or kind.joins else [FROM, *back, step])
        places[shaped.name] = place
    return content


USUAL_COUNT, USUAL_BELLS = 64, 256  # codes of most layers; how many tables of bells for them are kept, 10 MB at most


def choose_prior(codes: np.ndarray) -> StatedPrior:
    """The prior under which ``codes`` and the prior itself take the fewest bytes; the first of equals."""
    lowest = int(codes.min()) if codes.size else 0
    counts = np.bincount(codes.ravel().astype(np.int64) - lowest, minlength=1)
    return min(_candidates(lowest, counts), key=lambda offer: offer[1] + description_cost(offer[0]))[0]


def _candidates(lowest: int, counts: np.ndarray) -> Iterator[tuple[StatedPrior, int]]:
    """Priors to choose from, each with what the codes cost under it."""
    count = len(counts)
    flat = Flat(lowest, count)
    yield flat, coding_cost(flat, counts)
    if count == 1:
        return
    if count <= LARGEST_BELL:
        average = int((counts * np.arange(count)).sum() // counts.sum())
        for centre in sorted({average, min(max(-lowest, 0), count - 1)}):
            yield _best_bell(lowest, counts, centre)
    rarity = 16 * BIT - bits_of(np.maximum(counts, 1)) if counts.max() <= TOTAL else log2(np.maximum(counts, 1))
    rarity = rarity.max() - rarity  # how far below the most frequent, as a power of two
    for steps, kind, highest in ((2, Nibbles, 15), (16, Bytes, 255)):
        levels = np.maximum(highest - (rarity * steps + BIT // 2) // BIT, 1)
        prior = kind(lowest, tuple(np.where(counts > 0, levels, 0).tolist()))
        yield prior, coding_cost(prior, counts)


def _best_bell(lowest: int, counts: np.ndarray, centre: int) -> tuple[Bell, int]:
    """All shapes at once; they cost the same to describe."""
    count = len(counts)
    bits = (_usual_bell_bits if count <= USUAL_COUNT else _bell_bits)(count, centre)
    costs = (counts * bits).sum(1)
    shape = int(costs.argmin())
    return Bell(lowest, count, shape, centre), int(costs[shape])


def _bell_bits(count: int, centre: int) -> np.ndarray:  # (2 * WIDTHS, count)
    """What each of ``count`` codes costs under every bell around ``centre``, in 1/256 bit."""
    return bits_of(to_frequencies(bell_curves(count)[:, np.abs(np.arange(count) - centre)]))


_usual_bell_bits = lru_cache(USUAL_BELLS)(_bell_bits)


class _Writer:
    """Where the kinds of layers put their numbers (``layers.protocols.FileWriter``)."""

    def __init__(self, network: QuantisedNetwork, content: Content, priors: Mapping[str, StatedPrior]) -> None:
        self.network, self.content, self.priors = network, content, priors

    def weighted(self, name: str, module: Any) -> list[Any]:
        """``[step, prior]`` or null for float weights; for biases a step, null for floats, or false for none."""
        weights, biases = self.network.weights.get(name), self.network.biases.get(name)
        prior = None if weights is None else self.priors.get(name) or choose_prior(weights.codes)
        plain = b"" if weights is not None else _raw(module.weight)
        if module.bias is not None:
            plain += _raw(module.bias) if biases is None else biases.codes.astype(np.int8).tobytes()
        self.content.layers.append(PackedLayer(name, weights, prior, plain))
        weight_form = None if weights is None or prior is None else [float(weights.step), prior.to_list()]
        return [weight_form, False if module.bias is None else None if biases is None else float(biases.step)]

    def floats(self, name: str, module: nn.Module) -> None:
        numbers = b"".join(map(_raw, (*module.parameters(), *module.buffers())))
        self.content.layers.append(PackedLayer(name, None, None, numbers))

    def selection(self, index: Tensor, count: int, *, of_last: bool = False) -> None:
        layer = len(self.content.layers) - of_last
        self.content.selections.append(Selection(layer, _mask(index, count)))


def _mask(places: Tensor, arriving: int) -> np.ndarray:
    """Which values are read. A file does not know their order, so it must be the natural one."""
    index = places.numpy()
    if (np.diff(index) <= 0).any():
        raise BhcError("a step reads its inputs twice or out of order, which a .bhc file cannot say")
    mask = np.zeros(arriving, dtype=np.int32)
    mask[index] = 1
    return mask


def abbreviate(value: Any) -> Any:
    """The same plain data with the known names as numbers."""
    if isinstance(value, dict):
        return {CARD_NUMBERS.get(name, name): abbreviate(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [abbreviate(item) for item in value]
    return value


def spell_out(value: Any) -> Any:
    """The same plain data with numbers turned back into names."""
    if isinstance(value, dict):
        return {_name(name): spell_out(item) for name, item in value.items()}
    if isinstance(value, list):
        return [spell_out(item) for item in value]
    return value


def _name(key: int | str) -> str:
    if isinstance(key, str):
        return key
    if not 0 <= key < len(CARD_NAMES):
        raise ValueError(f"the unknown name {key}")
    return CARD_NAMES[key]


def _raw(values: Tensor) -> bytes:
    """Floats in 32 bits, whole numbers and truths as they are, the lowest byte first."""
    array = values.detach().cpu().numpy()
    return array.astype("<f4" if values.is_floating_point() else array.dtype.newbyteorder("<")).tobytes()


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


def name_of(step: Any) -> str | None:
    """The name that a step has in the file; None for those that get one when they are read."""
    match step:
        case [tag, _, own] if tag == FROM:
            step = own
    if not (isinstance(step, list) and len(step) > 1 and isinstance(step[1], str)):
        return None
    try:
        return step[1] if kind_tagged(step[0]).keeps_name else None
    except ValueError:
        return None


def _whole(numbers: Any, lowest: int, highest: int) -> bool:
    return isinstance(numbers, list) and all(type(n) is int and lowest <= n <= highest for n in numbers)


def positive(number: Any, smallest: float = SMALLEST_NUMBER) -> float:
    """A number that a single-precision float can hold and divide by."""
    fine = type(number) is float and abs(number) <= LARGEST_NUMBER
    expect(fine, f"{brief(number)} in the place of a finite number")
    expect(number >= smallest, f"{brief(number)} in the place of a positive number")
    return float(number)
