"""A second reader of packed files, written from ``docs/format.md`` alone: plain Python, no library but zlib.

It is slow and checks only what it needs to; its use is to agree with the real reader. For the shapes that calls of
torch's operators give it asks torch, under the numbers of ``docs/operators.md``.
"""

import re
import struct
import zlib
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch

from .reference_coding import RangeDecoder, prior_weights

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = 2
CARD_TABLE = (DOCS / "format.md").read_text().split("| number | name | meaning |")[1].split("\n\n")[0]
CARD_NAMES = re.findall(r"^\| \d+ \| (\w+) \|", CARD_TABLE, re.MULTILINE)


@dataclass
class Layer:
    """A weighted layer or an affine step: codes and steps, or floats, in the order of the file."""

    name: str
    shape: tuple[int, ...]
    step: float | None = None
    codes: list[int] = field(default_factory=list)
    floats: list[float] = field(default_factory=list)
    bias_step: float | None = None
    bias_codes: list[int] = field(default_factory=list)
    bias_floats: list[float] = field(default_factory=list)
    own: list[tuple[tuple[int, ...], str]] = field(default_factory=list)  # of a call: shapes and dtypes


@dataclass
class File:
    """All that a file says."""

    input_shape: list[int]
    steps: list[list[Any]]
    labels: list[int]
    temperature: float
    card: dict[str, Any]
    shapes: list[tuple[int, ...]]  # after each step, of one example
    firsts: list[int] = field(default_factory=list)  # after each step, the size of the first axis for two examples
    reads: list[list[int]] = field(default_factory=list)  # the numbers of the steps that each reads; -1 is the input
    masks: list[list[int]] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)


def read(content: bytes) -> File:
    """The file taken apart."""
    if content[:3] != b"BHC" or content[3] != 2:
        raise ValueError("not a packed file of version 2")
    body = content[:-4]
    if zlib.crc32(body) != int.from_bytes(content[-4:], "little"):
        raise ValueError("wrong checksum")
    size, at = read_varint(body, 4)
    header, end = read_value(body, at)
    if end != at + size:
        raise ValueError("wrong length of the header")
    file = File(*(header[key] for key in range(4)), spell_out(header[4]), shapes=[])
    layers, selections = walk(file)
    size, at = read_varint(body, end)
    decoder = RangeDecoder(body[at : at + size])
    file.masks = [decoder.symbols(arriving, [arriving - kept, kept]) for arriving, kept in selections]
    at += size
    for layer, (weight, bias) in layers:
        at = read_plain(body, at, layer, weight, bias)
        file.layers.append(layer)
    decoder = RangeDecoder(body[at:])
    for layer, (weight, _) in layers:
        if weight is not None:
            lowest, weights = prior_weights(weight[1])
            layer.step = weight[0]
            layer.codes = [lowest + symbol for symbol in decoder.symbols(prod(layer.shape), weights)]
    return file


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = content[at]
        number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return number, at


def read_value(content: bytes, at: int) -> tuple[Any, int]:
    """One CBOR value and the place after it."""
    major, low, at = content[at] >> 5, content[at] & 31, at + 1
    size = {24: 1, 25: 2, 26: 4, 27: 8}.get(low, 0)
    argument, at = content[at : at + size], at + size
    if major == 7:
        if size > 1:
            return struct.unpack({2: ">e", 4: ">f", 8: ">d"}[size], argument)[0], at
        return {20: False, 21: True, 22: None}[low], at
    number = int.from_bytes(argument, "big") if size else low
    if major < 2:
        return (number, -1 - number)[major], at
    if major == 2:
        return content[at : at + number], at + number
    if major == 3:
        return content[at : at + number].decode(), at + number
    items = []
    for _ in range(number if major == 4 else 2 * number):
        item, at = read_value(content, at)
        items.append(item)
    return (items if major == 4 else dict(zip(items[::2], items[1::2], strict=True))), at


def spell_out(value: Any) -> Any:
    if isinstance(value, dict):
        return {CARD_NAMES[key] if isinstance(key, int) else key: spell_out(item) for key, item in value.items()}
    return [spell_out(item) for item in value] if isinstance(value, list) else value


def walk(file: File) -> tuple[list[tuple[Layer, tuple[Any, Any]]], list[tuple[int, int]]]:
    """Follow the shapes from step to step; the layers with numbers, and the select steps as (arriving, kept)."""
    layers: list[tuple[Layer, tuple[Any, Any]]] = []
    selections: list[tuple[int, int]] = []
    called: dict[int, Layer] = {}
    for place, step in enumerate(file.steps):
        backs, (kind, *arguments) = wiring(step)
        file.reads.append([place - back for back in backs])
        shapes = [file.shapes[read] if read >= 0 else tuple(file.input_shape) for read in file.reads[-1]]
        shape = shapes[0]
        first = file.firsts[file.reads[-1][0]] if file.reads[-1][0] >= 0 else EXAMPLES
        if kind == 43:
            back, transposed = arguments
            layer = called[place - back]
            _, (kind, *arguments) = wiring(file.steps[place - back])
            shape = (*shape[:-1], layer.shape[1]) if transposed else again(kind, arguments, shape, layer)
        elif kind in (0, 1, 19, 42, 44):
            layer, shape = weighted(kind, arguments, shape)
            called[place] = layer
            layers.append((layer, (arguments[-2], arguments[-1])))
        elif kind == 38:
            name, words, rows, channels, weight = arguments
            selections.append((words, rows))
            called[place] = Layer(name, (channels, rows))
            layers.append((called[place], (weight, False)))
            shape = (channels, *shape)
        elif kind == 39:
            _, bands, samples, hop = arguments
            shape = (1, bands, (shape[1] - samples) // hop + 1)
        elif kind == 40:
            firsts = [file.firsts[read] if read >= 0 else EXAMPLES for read in file.reads[-1]]
            arriving = [(size, *each) for size, each in zip(firsts, shapes, strict=True)]
            (first, *shape), own = called_operator(arguments, arriving)
            shape = tuple(shape)
            if own is not None:
                layers.append((own, (None, False)))
        elif kind == 41:
            shape = tuple(arguments[2])
        elif kind in (14, 37):
            size, axis = (*arguments, 1)[:2]
            selections.append((shape[axis - 1], size) if kind == 14 else (size, shape[axis - 1]))
            shape = (*shape[: axis - 1], size, *shape[axis:])
        elif kind in (21, 33, 34, 36):
            size = {34: (4 * shape[0] * (shape[0] + 1),), 36: shape}.get(kind, shape[:1])
            layers.append((Layer("", size), (None, None if kind < 34 else False)))
        elif kind == 17:
            shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        elif kind == 18:
            shape = (sum(each[0] for each in shapes), *shape[1:])
        else:
            shape = reshaped(kind, arguments, shape)
        file.shapes.append(shape)
        file.firsts.append(first)
    return layers, selections


def wiring(step: list[Any]) -> tuple[list[int], list[Any]]:
    """How far back a step reads, and the step without that."""
    if step[0] == 15:
        return [step[1]], step[2]
    if step[0] == 40:
        return step[4:], step[:4]
    return (step[1:], step[:1]) if step[0] in (16, 17, 18) else ([1], step)


OPERATORS = re.findall(r"^\| \d+ \| `aten\.(\w+)\.(\w+)` \|$", (DOCS / "operators.md").read_text(), re.MULTILINE)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


def called_operator(arguments: list[Any], shapes: list[tuple[int, ...]]) -> tuple[tuple[int, ...], "Layer | None"]:
    """The shape that a call gives, and the tensors of its own, all as one."""
    number, plain, rest = arguments
    dtypes = dict(rest.get(3, []))
    values = [
        torch.empty(shape, dtype=getattr(torch, DTYPES[dtypes.get(place, 0)]), device="meta")
        for place, shape in enumerate(shapes)
    ]
    own = [torch.empty(shape, dtype=getattr(torch, DTYPES[d]), device="meta") for shape, d, _ in rest.get(1, [])]

    def made(argument: Any) -> Any:
        if isinstance(argument, list):
            return [made(part) for part in argument]
        if not isinstance(argument, dict):
            return argument
        ((key, value),) = argument.items()
        if key < 2:
            return (values, own)[key][value]
        if key == 2:
            axes, times, over = value
            return prod(values[place].shape[axis] for place, axis in axes) * times // over
        return getattr(torch, DTYPES[value]) if key == 3 else torch.device("meta")

    name, overload = OPERATORS[number]
    operator = getattr(getattr(torch.ops.aten, name), overload)
    result = operator(*made(plain), **{key: made(value) for key, value in rest.get(0, {}).items()})
    result = result[rest[2]] if 2 in rest else result
    order = sorted(rest.get(1, []), key=lambda each: not each[2])  # learned ones first
    layer = Layer("", (), own=[(tuple(shape), DTYPES[dtype]) for shape, dtype, _ in order]) if order else None
    return tuple(result.shape), layer


def again(kind: int, arguments: list[Any], shape: tuple[int, ...], layer: Layer) -> tuple[int, ...]:
    """The shape that a layer gives when it is called again."""
    return (layer.shape[0], *shape) if kind == 38 else weighted(kind, arguments, shape)[1]


def weighted(kind: int, arguments: list[Any], shape: tuple[int, ...]) -> tuple[Layer, tuple[int, ...]]:
    """A layer, and the shape that it gives."""
    name, outputs, *geometry = arguments[:-2]
    if kind == 0:
        return Layer(name, (outputs, shape[-1])), (*shape[:-1], outputs)
    if kind == 42:
        hidden = shape[1] // (4, 3, 1, 1)[outputs]
        return Layer(name, (shape[1], hidden)), (shape[0], hidden)
    if kind == 44:
        places = [
            s * (h - 1) + d * (k - 1) + e + 1 - 2 * p for h, k, s, p, e, d in zip(shape[1:], *geometry, strict=True)
        ]
        return Layer(name, (outputs, shape[0], *geometry[0])), (outputs, *places)
    kernel, stride, padding, dilation, *groups = geometry
    inputs = shape[0] // (groups or [1])[0]
    return Layer(name, (outputs, inputs, *kernel)), (outputs, *window(shape, kernel, stride, padding, dilation))


def reshaped(kind: int, arguments: list[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a step without numbers gives."""
    channels, *places = shape
    if kind in (10, 11, 25, 26, 27, 28):
        kernel, stride, padding, *dilation = arguments
        return (channels, *window(shape, kernel, stride, padding, *(dilation or [1])))
    if kind == 12:
        return (prod(shape),)
    if kind == 35:
        return (channels, prod(places))
    if kind == 22:
        return (arguments[0] + channels + arguments[1], *places)
    if kind == 23:
        return (channels, *[1 for _ in places]) if arguments[0] else (channels,)
    if kind == 24:
        return (channels, *[(size + arguments[0] - 1) // arguments[0] for size in places])
    return shape


def window(shape: tuple[int, ...], kernel: Any, stride: Any, padding: Any, dilation: Any) -> tuple[int, ...]:
    """The places after a window has slid over places, in each direction."""
    if padding == "same":
        return shape[1:]
    count = len(shape) - 1
    padding = each(0 if padding == "valid" else padding, count)
    kernel, stride, dilation = each(kernel, count), each(stride, count), each(dilation, count)
    spans = [dilation[i] * (kernel[i] - 1) + 1 for i in range(count)]
    return tuple((shape[1 + i] + 2 * padding[i] - spans[i]) // stride[i] + 1 for i in range(count))


def each(value: Any, count: int) -> list[int]:
    """A size for every direction."""
    return value if isinstance(value, list) else [value] * count


def read_plain(body: bytes, at: int, layer: Layer, weight: Any, bias: Any) -> int:
    """Float weights, then biases; returns the place after them."""
    for shape, dtype in layer.own:
        form = {"int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B", "bool": "?"}.get(dtype, "f")
        numbers = struct.unpack_from(f"<{prod(shape)}{form}", body, at)
        layer.floats += map(float, numbers)
        at += struct.calcsize(f"<{prod(shape)}{form}")
    if layer.own:
        return at
    if weight is None:
        layer.floats, at = read_floats(body, at, prod(layer.shape))
    if bias is None:
        layer.bias_floats, at = read_floats(body, at, layer.shape[0])
    elif bias is not False:
        layer.bias_step = bias
        layer.bias_codes = list(struct.unpack_from(f"<{layer.shape[0]}b", body, at))
        at += layer.shape[0]
    return at


def read_floats(body: bytes, at: int, count: int) -> tuple[list[float], int]:
    return list(struct.unpack_from(f"<{count}f", body, at)), at + 4 * count
