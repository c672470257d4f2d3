"""From a file's content to a quantised network, trusting nothing.

Sizes are worked out from the header step by step and checked before anything of that size is made. What was read
is written again and compared with the file: there is one way to store a network, and all others are refused.
"""

import zlib
from collections import OrderedDict
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from bhc.formats.packed.cbor import loads
from bhc.formats.packed.coder import Decoder
from bhc.formats.packed.layout import (
    CARD,
    CARD_NAMES,
    CHECKSUM,
    INPUT_SHAPE,
    KIND_NAMES,
    LABELS,
    MAGIC,
    STEPS,
    TEMPERATURE,
    Content,
    PackedLayer,
    Part,
    Selection,
)
from bhc.formats.packed.priors import Counted, StatedPrior, prior_from_list
from bhc.formats.quantised import LARGEST_BIAS_CODE, LARGEST_CODE, Codes, QuantisedNetwork
from bhc.graph import KINDS_BY_NAME, Select, Shape, output_shape, rebuild

# A constant layer takes no bytes, so a small file may hold some weights for nothing; but not any number of them.
FREE_WEIGHTS, WEIGHTS_A_BYTE = 1 << 20, 64
LARGEST_ACTIVATION = 1 << 22
LARGEST_LABEL = 1 << 31


def unpack(content: bytes) -> tuple[QuantisedNetwork, tuple[Part, ...]]:
    """The network in a file and what its bytes are for; ValueError says what is wrong with it."""
    body, checksum = content[:-CHECKSUM], content[-CHECKSUM:]
    if zlib.crc32(body) != int.from_bytes(checksum, "little"):
        raise ValueError("its checksum does not match")
    reader = _Reader(body, len(MAGIC) + 1)
    header = _check_header(loads(reader.take(reader.varint())))
    assembly = _Assembly(tuple(header[INPUT_SHAPE]), allowance=FREE_WEIGHTS + WEIGHTS_A_BYTE * len(content))
    for step in header[STEPS]:
        assembly.add(step)
    network, taken_apart = assembly.fill(reader, header)
    if taken_apart.to_bytes() != content:
        raise ValueError("it is not stored the one way such a network is stored")
    return network, tuple(taken_apart.parts())


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
    """A weighted layer whose shape is known and whose numbers are still to be read."""

    name: str
    module: nn.Linear | nn.Conv2d
    step: float | None
    prior: StatedPrior | None
    bias_step: float | None


class _Assembly:
    """The chain as it grows, step by step, on paper: modules without storage."""

    def __init__(self, input_shape: Shape, *, allowance: int) -> None:
        self.input_shape = self.shape = input_shape
        self.allowance = allowance
        self.steps: OrderedDict[str, nn.Module] = OrderedDict()
        self.layers: list[_Pending] = []
        self.selections: list[tuple[Select, int, int]] = []  # with how many values arrive, and the layer that reads

    def add(self, step: Any) -> None:
        match step:
            case [0, str(name), int(outputs), weight, bias]:
                (inputs,) = self.shape
                self._weighted({"in_features": inputs, "out_features": outputs}, name, weight, bias)
            case [1, str(name), int(outputs), kernel, stride, padding, dilation, weight, bias]:
                channels, _, _ = self.shape
                geometry = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
                self._weighted({"in_channels": channels, "out_channels": outputs} | geometry, name, weight, bias)
            case [13, float(mean), float(std)]:
                normalise = KINDS_BY_NAME["normalise"].module
                self._append(self._free_name("normalise"), normalise(_finite(mean), _positive(std)))
            case [14, int(kept)]:
                (arriving,) = self.shape
                if not 0 < kept <= arriving:
                    raise ValueError(f"{kept} of {arriving} values are read")
                select = Select(torch.zeros(kept, dtype=torch.long))
                self.selections.append((select, arriving, len(self.layers)))
                self._append(self._free_name("select"), select)
            case [int(number), *arguments] if 2 <= number < len(KIND_NAMES):
                kind = KINDS_BY_NAME[KIND_NAMES[number]]
                named = dict(zip(kind.arguments, map(_argument, arguments), strict=True))
                self._append(self._free_name(kind.name), self._build(kind.name, named))
            case _:
                raise ValueError(f"an unknown step, {str(step)[:60]}")

    def _weighted(self, arguments: dict[str, Any], name: str, weight: Any, bias: Any) -> None:
        kind = "linear" if "in_features" in arguments else "conv-2d"
        module = self._build(kind, arguments | {"bias": bias is not False})
        assert isinstance(module, nn.Linear | nn.Conv2d)
        self.allowance -= module.weight.numel()
        if self.allowance < 0:
            raise ValueError("it claims more weights than so small a file can hold")
        step, prior = (None, None) if weight is None else weight
        self.layers.append(
            _Pending(
                name,
                module,
                None if step is None else _positive(step),
                None if prior is None else prior_from_list(prior),
                None if bias is False or bias is None else _positive(bias),
            )
        )
        self._append(name, module)

    def _build(self, kind: str, arguments: dict[str, Any]) -> nn.Module:
        with torch.device("meta"):
            return rebuild([{"kind": kind, "name": "step", **arguments}])[0]

    def _append(self, name: str, module: nn.Module) -> None:
        if name in self.steps or not name or "." in name:
            raise ValueError(f"{name[:60]!r} cannot be the name of a layer")
        self.steps[name] = module
        self.shape = output_shape(module, self.shape)
        if prod(self.shape) > LARGEST_ACTIVATION:
            raise ValueError(f"activations of shape {self.shape}")

    def _free_name(self, kind: str) -> str:
        names = (kind.replace("-", "_") + str(number) for number in count(1))
        return next(name for name in names if name not in self.steps)

    def fill(self, reader: _Reader, header: dict[int, Any]) -> tuple[QuantisedNetwork, Content]:
        """Read the numbers, now that all sizes are known and found sound."""
        if not self.layers or self.shape != (len(header[LABELS]),):
            raise ValueError(f"{len(header[LABELS])} labels for outputs of shape {self.shape}")
        content = Content(header)
        decoder = Decoder(reader.take(reader.varint()))
        for select, arriving, reader_layer in self.selections:
            mask = self._read_selection(decoder, select, arriving)
            content.selections.append(Selection(reader_layer, mask))
        plain = [self._read_plain(reader, layer) for layer in self.layers]
        decoder = Decoder(reader.rest())
        weights, biases = {}, {}
        for layer, (raw, bias_codes) in zip(self.layers, plain, strict=True):
            codes = None
            if layer.step is not None and layer.prior is not None:
                codes = weights[layer.name] = self._read_codes(decoder, layer, layer.step, layer.prior)
            if bias_codes is not None:
                biases[layer.name] = bias_codes
            content.layers.append(PackedLayer(layer.name, codes, layer.prior, raw))
        chain = nn.Sequential(self.steps).eval().requires_grad_(False)
        network = QuantisedNetwork.build(
            chain,
            weights=weights,
            biases=biases,
            input_shape=self.input_shape,
            labels=tuple(header[LABELS]),
            temperature=header[TEMPERATURE],
            card=spell_out(header[CARD]),
        )
        return network, content

    def _read_selection(self, decoder: Decoder, select: Select, arriving: int) -> np.ndarray:
        kept = len(select.index)
        mask = decoder.read(arriving, Counted((arriving - kept, kept)))
        if mask.sum() != kept:
            raise ValueError("the list of values that are read is damaged")
        select.index = torch.from_numpy(np.flatnonzero(mask))
        return mask

    def _read_plain(self, reader: _Reader, layer: _Pending) -> tuple[bytes, Codes | None]:
        """Float weights go into the module at once; biases do, or come back as codes."""
        start = reader.at
        module = layer.module
        if layer.step is None:
            module.weight = _floats(reader, tuple(module.weight.shape))
        codes = None
        if module.bias is not None and layer.bias_step is None:
            module.bias = _floats(reader, tuple(module.bias.shape))
        elif module.bias is not None and layer.bias_step is not None:
            stored = np.frombuffer(reader.take(len(module.bias)), dtype=np.int8).astype(np.int32)
            if (stored < -LARGEST_BIAS_CODE).any():
                raise ValueError("a bias is out of range")
            codes = Codes(stored, layer.bias_step)
        return reader.content[start : reader.at], codes

    def _read_codes(self, decoder: Decoder, layer: _Pending, step: float, prior: StatedPrior) -> Codes:
        highest = prior.lowest + len(prior.weights) - 1
        if not -LARGEST_CODE <= prior.lowest <= highest <= LARGEST_CODE:
            raise ValueError(f"codes from {prior.lowest} to {highest}")
        shape = tuple(layer.module.weight.shape)
        return Codes(decoder.read(prod(shape), prior).reshape(shape), step)


def _floats(reader: _Reader, shape: tuple[int, ...]) -> nn.Parameter:
    values = np.frombuffer(reader.take(4 * prod(shape)), dtype="<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError("a weight or bias is not a finite number")
    return nn.Parameter(torch.from_numpy(values.reshape(shape)), requires_grad=False)


def _check_header(header: Any) -> dict[int, Any]:
    """The header, if its parts have the types and sizes they must have."""
    if not isinstance(header, dict) or list(header) != [INPUT_SHAPE, STEPS, LABELS, TEMPERATURE, CARD]:
        raise ValueError("its header is not that of a network")
    shape, labels = header[INPUT_SHAPE], header[LABELS]
    if not _whole(shape, 1, LARGEST_ACTIVATION) or len(shape) not in (1, 3) or prod(shape) > LARGEST_ACTIVATION:
        raise ValueError(f"inputs of shape {str(shape)[:60]}")
    if not _whole(labels, 0, LARGEST_LABEL) or len(set(labels)) < len(labels):
        raise ValueError("its labels are not different whole numbers")
    if not isinstance(header[STEPS], list) or not isinstance(header[CARD], dict):
        raise ValueError("its header is not that of a network")
    _positive(header[TEMPERATURE])
    return header


def _whole(numbers: Any, lowest: int, highest: int) -> bool:
    return isinstance(numbers, list) and all(type(n) is int and lowest <= n <= highest for n in numbers)


def _argument(value: Any) -> Any:
    """An argument of a step without weights: whole numbers, a finite number, or one of GELU's two forms."""
    if isinstance(value, float):
        return _finite(value)
    if value in ("none", "tanh") or _whole(value if isinstance(value, list) else [value], 0, LARGEST_ACTIVATION):
        return value
    raise ValueError(f"{str(value)[:60]} as an argument")


def _finite(number: float) -> float:
    if not abs(number) < 1e37:
        raise ValueError(f"{number} in the place of a finite number")
    return number


def _positive(number: Any) -> float:
    """A number that a single-precision float can hold and divide by."""
    if type(number) is not float or not 1e-37 < number < 1e37:
        raise ValueError(f"{str(number)[:60]} in the place of a positive number")
    return number


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
