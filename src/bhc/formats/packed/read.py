"""From a file's content to a quantised network, trusting nothing.

Sizes are worked out from the header step by step and checked before anything of that size is made. What was read
is written again and compared with the file: there is one way to store a network, and all others are refused.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from bhc.formats.packed.cbor import brief, loads
from bhc.formats.packed.checks import (
    SMALLEST_STEP,
    argument,
    check_header,
    inner,
    is_joint,
    is_weighted,
    moderate,
    positive,
)
from bhc.formats.packed.coder import Decoder
from bhc.formats.packed.layout import (
    CARD,
    CARD_NAMES,
    CHECKSUM,
    INPUT_SHAPE,
    KIND_NAMES,
    LABELS,
    LARGEST_ACTIVATION,
    LARGEST_ACTIVATIONS,
    MAGIC,
    STEPS,
    TEMPERATURE,
    Part,
    most_numbers,
)
from bhc.formats.packed.priors import Counted, StatedPrior, prior_from_list
from bhc.formats.packed.write import HOLDING_FLOATS, take_apart
from bhc.formats.quantised import LARGEST_BIAS_CODE, LARGEST_CODE, Codes, QuantisedNetwork
from bhc.graph import INPUT, KINDS_BY_NAME, LAYERS, Embed, Graph, Place, Select, Shape, Step, output_shape, rebuild


def unpack(content: bytes) -> tuple[QuantisedNetwork, tuple[Part, ...]]:
    """The network in a file and what its bytes are for; ValueError says what is wrong with it."""
    body, checksum = content[:-CHECKSUM], content[-CHECKSUM:]
    if zlib.crc32(body) != int.from_bytes(checksum, "little"):
        raise ValueError("its checksum does not match")
    reader = _Reader(body, len(MAGIC) + 1)
    header = check_header(loads(reader.take(reader.varint())))
    assembly = _Assembly(header, allowance=most_numbers(len(content)))
    for step in header[STEPS]:
        assembly.add(step)
    network, priors = assembly.fill(reader)
    again = take_apart(network, priors)
    if again.to_bytes() != content:
        raise ValueError("it is not stored the one way such a network is stored")
    return network, tuple(again.parts())


class _Reader:
    """Takes bytes from the front."""

    def __init__(self, content: bytes, at: int) -> None:
        self.content, self.at = content, at

    def take(self, size: int) -> bytes:
        if size > len(self.content) - self.at:
            raise ValueError("it is cut off")
        self.at += size
        return self.content[self.at - size : self.at]

    def rest(self) -> bytes:
        return self.take(len(self.content) - self.at)

    def varint(self) -> int:
        number = 0
        for place in range(5):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return number
        raise ValueError("a length is too long")


@dataclass
class _Pending:
    """A layer whose shape is known and whose numbers are still to be read."""

    name: str
    module: Any
    step: float | None
    prior: StatedPrior | None
    bias_step: float | None


class _Assembly:
    """The graph as it grows, step by step, on paper: modules without storage."""

    def __init__(self, header: dict[int, Any], *, allowance: int) -> None:
        self.header = header
        self.input_shape = tuple(header[INPUT_SHAPE])
        self.allowance = allowance
        self.room = LARGEST_ACTIVATIONS
        self.names = [INPUT]  # of what each step may read
        self.shapes: list[Shape] = [self.input_shape]
        self.reads: tuple[int, ...] = ()  # of the step that is being added, as places in ``names``
        self.steps: dict[str, Step] = {}
        self.layers: list[_Pending] = []
        self.selections: list[tuple[str, int, int]] = []  # the step, how many values there are, how many are meant
        self.placed: set[str] = set()  # of them, those that put channels at places
        self.taken = {step[1] for step in map(inner, header[STEPS]) if is_weighted(step)}
        self.numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(1))  # of steps without weights

    def add(self, step: Any) -> None:
        self.reads = (len(self.names) - 1,)
        match step:
            case [15, int(back), [int(), *_] as other] if back > 1 and not is_joint(other):
                self.reads = (self._place(back),)
                self._add(other)
            case [15, *_]:
                raise ValueError(f"an unknown step, {brief(step)}")
            case _:
                self._add(step)

    @property
    def shape(self) -> Shape:
        """Of the value that arrives."""
        return self.shapes[self.reads[0]]

    def _place(self, back: Any) -> int:
        if type(back) is not int or not 1 <= back <= len(self.names):
            raise ValueError(f"a step reads what is {brief(back)} steps before it")
        return len(self.names) - back

    def _add(self, step: Any) -> None:
        match step:
            case [0, str(name), int(outputs), weight, bias]:
                (inputs,) = self.shape
                self._weighted("linear", {"in_features": inputs, "out_features": outputs}, name, weight, bias)
            case [1, str(name), int(outputs), kernel, stride, padding, dilation, weight, bias]:
                self._convolution(name, outputs, kernel, stride, padding, dilation, 1, weight, bias)
            case [19, str(name), int(outputs), list(kernel), stride, padding, dilation, int(groups), weight, bias]:
                if groups < 1 or (groups == 1 and len(kernel) == 2):
                    raise ValueError(f"a convolution of {groups} groups")
                self._convolution(name, outputs, kernel, stride, padding, dilation, groups, weight, bias)
            case [38, str(name), int(count), int(rows), int(channels), weight]:
                self._embedding(name, count, rows, channels, weight)
            case [13, float(mean), float(std)]:
                normalise = KINDS_BY_NAME["normalise"].module
                self._append(self._free_name("normalise"), normalise(moderate(mean), positive(std)))
            case [20, list(mean), list(std)] if len(mean) == len(std) == self.shape[0] and len(self.shape) == 3:
                normalise = KINDS_BY_NAME["normalise"].module
                module = normalise([*map(moderate, mean)], [*map(positive, std)])
                self._append(self._free_name("normalise"), module)
            case [14, int(kept)]:
                self._select(kept)
            case [21]:
                self._holding_floats("affine", channels=self.shape[0])
            case [33, eps]:
                self._holding_floats("channel-norm", channels=self.shape[0], eps=positive(eps))
            case [34, int(heads)]:
                if heads * self.shape[-1] ** 2 > LARGEST_ACTIVATION:
                    raise ValueError(f"attention of {heads} heads over {self.shape[-1]} places")
                self._holding_floats("self-attention", channels=self.shape[0], heads=heads)
            case [36]:
                self._holding_floats("shift", shape=self.shape)
            case [37, int(width)]:
                self._place_channels(width)
            case [16 | 17 as number, int(left), int(right)]:
                self._joint(number, left, right)
            case [18, *backs] if len(backs) > 1:
                self._joint(18, *backs)
            case [int(number), *arguments] if 2 <= number <= 12 or 22 <= number <= 32 or number in (35, 39):
                kind = KINDS_BY_NAME[KIND_NAMES[number]]
                named = {name: argument(name, value) for name, value in zip(kind.arguments, arguments, strict=True)}
                self._append(self._free_name(kind.name), self._build(kind.name, named))
            case _:
                raise ValueError(f"an unknown step, {brief(step)}")

    def _joint(self, number: int, *backs: Any) -> None:
        self.reads = tuple(map(self._place, backs))
        kind = KINDS_BY_NAME[KIND_NAMES[number]]
        self._append(self._free_name(kind.name), kind.module())

    def _holding_floats(self, kind: str, **arguments: Any) -> None:
        module = self._build(kind, arguments)
        name = self._free_name(kind)
        self.layers.append(_Pending(name, module, None, None, None))
        self._append(name, module)

    def _convolution(
        self, name: str, outputs: int, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int, *numbers: Any
    ) -> None:
        geometry = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        channels, *places = self.shape
        if not isinstance(kernel, list) or len(kernel) != len(places):
            raise ValueError(f"a kernel of {brief(kernel)} for values of shape {self.shape}")
        arguments = {"in_channels": channels, "out_channels": outputs} | geometry
        self._weighted(f"conv-{len(places)}d", arguments, name, *numbers)

    def _embedding(self, name: str, count: int, rows: int, channels: int, weight: Any) -> None:
        """Which words have rows is read, as a list of values is, when all sizes were found sound."""
        if not 0 < rows <= count <= LARGEST_ACTIVATION:
            raise ValueError(f"{rows} rows for {count} words")
        self._spend(count)
        self.selections.append((name, count, rows))
        self._weighted("embedding", {"count": count, "rows": rows, "channels": channels}, name, weight, False)

    def _weighted(self, kind: str, arguments: dict[str, Any], name: str, weight: Any, bias: Any) -> None:
        with_bias = {} if kind == "embedding" else {"bias": bias is not False}
        module: Any = self._build(kind, arguments | with_bias)
        step = prior = None
        if weight is not None:
            step, prior = positive(weight[0], SMALLEST_STEP), prior_from_list(weight[1])
            self._spend(module.weight.numel() + prior.count)
        bias_step = None if bias is False or bias is None else positive(bias, SMALLEST_STEP)
        self.layers.append(_Pending(name, module, step, prior, bias_step))
        self._append(name, module)

    def _select(self, kept: int) -> None:
        """Its list of values is made only when all sizes were found sound."""
        arriving, *places = self.shape
        if not 0 < kept <= arriving:
            raise ValueError(f"{kept} of {arriving} values are read")
        self._spend(arriving)
        name = self._free_name("select")
        self.selections.append((name, arriving, kept))
        self._note(name, nn.Identity(), (kept, *places))

    def _place_channels(self, width: int) -> None:
        kept, *places = self.shape
        if not kept <= width <= LARGEST_ACTIVATION:
            raise ValueError(f"{kept} channels at {width} places")
        self._spend(width)
        name = self._free_name("place")
        self.selections.append((name, width, kept))
        self.placed.add(name)
        self._note(name, nn.Identity(), (width, *places))

    def _spend(self, numbers: int) -> None:
        self.allowance -= numbers
        if self.allowance < 0:
            raise ValueError("it claims more numbers than so small a file can hold")

    def _build(self, kind: str, arguments: dict[str, Any]) -> nn.Module:
        with torch.device("meta"):
            return rebuild([{"kind": kind, "name": "step", **arguments}]).steps[0].module

    def _append(self, name: str, module: nn.Module) -> None:
        if name in self.steps or not name or "." in name or hasattr(Graph, name) or name == "training":
            raise ValueError(f"{name[:60]!r} cannot be the name of a layer")
        self._note(name, module, output_shape(module, *[self.shapes[place] for place in self.reads]))

    def _note(self, name: str, module: nn.Module, shape: Shape) -> None:
        self.room -= prod(shape)
        if prod(shape) > LARGEST_ACTIVATION or self.room < 0:
            raise ValueError(f"activations of shape {shape}")
        self.steps[name] = Step(name, module, tuple(self.names[place] for place in self.reads))
        self.names.append(name)
        self.shapes.append(shape)

    def _free_name(self, kind: str) -> str:
        """The kind and the next number, less those that weighted layers are called by."""
        names = (kind.replace("-", "_") + str(number) for number in self.numbers[kind])
        return next(name for name in names if name not in self.taken)

    def fill(self, reader: _Reader) -> tuple[QuantisedNetwork, dict[str, StatedPrior]]:
        """Read the numbers, now that all sizes are known and found sound."""
        labels = tuple(self.header[LABELS])
        weighted = any(isinstance(layer.module, LAYERS) for layer in self.layers)
        if not weighted or self.shapes[-1] != (len(labels),):
            raise ValueError(f"{len(labels)} labels for outputs of shape {self.shapes[-1]}")
        decoder = Decoder(reader.take(reader.varint()))
        for name, arriving, kept in self.selections:
            index = _read_selection(decoder, arriving, kept)
            embedding = self.steps[name].module
            if isinstance(embedding, Embed):
                embedding.index = torch.empty(arriving, dtype=torch.long)
                embedding.has_rows_(index)
                continue
            module = Place(index, arriving) if name in self.placed else Select(index)
            self.steps[name] = replace(self.steps[name], module=module)
        plain = [self._read_plain(reader, layer) for layer in self.layers]
        decoder = Decoder(reader.rest())
        weights, priors = {}, {}
        for layer in self.layers:
            if layer.step is not None and layer.prior is not None:
                weights[layer.name] = self._read_codes(decoder, layer, layer.step, layer.prior)
                priors[layer.name] = layer.prior
        network = QuantisedNetwork.build(
            Graph(self.steps.values()).eval().requires_grad_(False),
            weights=weights,
            biases={layer.name: codes for layer, codes in zip(self.layers, plain, strict=True) if codes is not None},
            input_shape=self.input_shape,
            labels=labels,
            temperature=self.header[TEMPERATURE],
            card=spell_out(self.header[CARD]),
        )
        return network, priors

    def _read_plain(self, reader: _Reader, layer: _Pending) -> Codes | None:
        """Float weights go into the module at once; biases do, or come back as codes."""
        module = layer.module
        if isinstance(module, HOLDING_FLOATS):
            for name, numbers in list(module.named_parameters()):
                setattr(module, name, _floats(reader, tuple(numbers.shape)))
            return None
        if layer.step is None:
            module.weight = _floats(reader, tuple(module.weight.shape))
        if module.bias is None:
            return None
        if layer.bias_step is None:
            module.bias = _floats(reader, tuple(module.bias.shape))
            return None
        stored = np.frombuffer(reader.take(len(module.bias)), dtype=np.int8).astype(np.int32)
        if (stored < -LARGEST_BIAS_CODE).any():
            raise ValueError("a bias is out of range")
        return Codes(stored, layer.bias_step)

    def _read_codes(self, decoder: Decoder, layer: _Pending, step: float, prior: StatedPrior) -> Codes:
        highest = prior.lowest + prior.count - 1
        if not -LARGEST_CODE <= prior.lowest <= highest <= LARGEST_CODE:
            raise ValueError(f"codes from {prior.lowest} to {highest}")
        shape = tuple(layer.module.weight.shape)
        return Codes(decoder.read(prod(shape), prior).reshape(shape), step)


def _read_selection(decoder: Decoder, arriving: int, kept: int) -> torch.Tensor:
    mask = decoder.read(arriving, Counted((arriving - kept, kept)))
    if mask.sum() != kept:
        raise ValueError("the list of values that are read is damaged")
    return torch.from_numpy(np.flatnonzero(mask))


def _floats(reader: _Reader, shape: tuple[int, ...]) -> nn.Parameter:
    values = np.frombuffer(reader.take(4 * prod(shape)), dtype="<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError("a weight or bias is not a finite number")
    return nn.Parameter(torch.from_numpy(values.reshape(shape)), requires_grad=False)


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
