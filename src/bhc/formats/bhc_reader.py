"""From a file's content to a quantised network, trusting nothing.

Sizes are worked out from the header step by step and checked before anything of that size is made. What was read
is written again and compared with the file: there is one way to store a network, and all others are refused.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from bhc.formats.bhc_content import (
    AGAIN,
    CARD,
    CHECKSUM,
    FROM,
    INPUT_SHAPE,
    LABELS,
    LARGEST_ACTIVATION,
    LARGEST_ACTIVATIONS,
    MAGIC,
    STEPS,
    TEMPERATURE,
    Part,
    check_header,
    most_numbers,
    name_of,
    positive,
    spell_out,
    take_apart,
)
from bhc.formats.coding import (
    LARGEST_BELL,
    TOTAL,
    WIDTHS,
    Bell,
    Bytes,
    Counted,
    Decoder,
    Flat,
    Nibbles,
    StatedPrior,
    brief,
    loads,
)
from bhc.formats.quantised import LARGEST_BIAS_CODE, LARGEST_CODE, Codes, QuantisedNetwork
from bhc.graph import INPUT, Graph, Step, output_dtype, output_shape
from bhc.layers import (
    EXAMPLES,
    Embed,
    NetworkInput,
    ScatterChannels,
    Select,
    Shape,
    Tied,
    is_weighted,
    kind_named,
    kind_tagged,
    resized,
)
from bhc.layers.arguments import unknown
from bhc.layers.aten import AtenCall

SMALLEST_STEP = 1e-37  # no product of a code, a step and a normalisation leaves the range of a 32-bit float


def unpack(content: bytes) -> tuple[QuantisedNetwork, tuple[Part, ...]]:
    """The network in a file and what its bytes are for; ValueError says what is wrong with it."""
    body, checksum = content[:-CHECKSUM], content[-CHECKSUM:]
    if zlib.crc32(body) != int.from_bytes(checksum, "little"):
        raise ValueError("its checksum does not match")
    reader = _Reader(body, len(MAGIC) + 1)
    header = check_header(loads(reader.take(reader.varint())))
    assembly = _Assembly(header, allowance=most_numbers(len(content)))
    for step in header[STEPS]:
        assembly.add_step(step)
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


def prior_from_list(data: Any) -> StatedPrior:
    """The prior that ``to_list`` described; ValueError for anything else."""
    strict = isinstance(data, list) and all(type(part) in (int, bytes) for part in data)  # True is no 1
    match data if strict else None:
        case [0, int(lowest), int(count)] if 1 <= count < TOTAL:
            return Flat(lowest, count)
        case [1, int(lowest), int(count), int(shape), int(centre)] if (
            1 <= count <= LARGEST_BELL and 0 <= shape < 2 * WIDTHS and 0 <= centre < count
        ):
            return Bell(lowest, count, shape, centre)
        case [2, int(lowest), int(count), bytes(pairs)] if 1 <= count < TOTAL and len(pairs) == (count + 1) // 2:
            levels = [level for pair in pairs for level in divmod(pair, 16)][:count]
            return Nibbles(lowest, _some(levels))
        case [3, int(lowest), bytes(levels)] if 1 <= len(levels) < TOTAL:
            return Bytes(lowest, _some(list(levels)))
    raise ValueError(f"a table of frequencies that is none: {brief(data)}")


def _some(levels: list[int]) -> tuple[int, ...]:
    if not any(levels):
        raise ValueError("a table of frequencies without any")
    return tuple(levels)


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
        self.shapes: list[Shape] = [(EXAMPLES, *self.input_shape)]
        self.dtypes = [torch.float32]  # of each value; inputs are floats, or converted by the step that reads them
        self.reads: tuple[int, ...] = ()  # of the step that is being added, as places in ``names``
        self.steps: dict[str, Step] = {}
        self.layers: list[_Pending] = []
        self.selections: list[tuple[str, int, int]] = []  # the step, how many values there are, how many are meant
        self.unfinished: dict[str, Callable[[torch.Tensor], nn.Module]] = {}  # steps that are told which are meant
        self.taken = {name for name in map(name_of, header[STEPS]) if name is not None}
        self.numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(1))  # of steps without weights

    def add_step(self, step: Any) -> None:
        self.reads = (len(self.names) - 1,)
        match step:
            case [int(tag), int(back), [int() | str(), *_] as own] if tag == FROM:
                if back < 2 or (own[0] != AGAIN and kind_tagged(own[0]).joins):
                    raise ValueError(f"an unknown step, {brief(step)}")
                self.reads = (self._place(back),)
            case [int() | str(), *_] as own:
                pass
            case _:
                raise ValueError(f"an unknown step, {brief(step)}")
        if own[0] == AGAIN:
            self._append(self._free_name("again"), _called_again(own, [self.steps[name] for name in self.names[1:]]))
            return
        kind = kind_tagged(own[0])
        if kind.joins:
            own, backs = own[: 1 + len(kind.untold())], own[1 + len(kind.untold()) :]
            if not kind.takes(len(backs)):
                raise ValueError(f"an unknown step, {brief(step)}")
            self.reads = tuple(map(self._place, backs))
        kind.read(own, self)

    @property
    def shape(self) -> Shape:
        return self.shapes[self.reads[0]]

    def _place(self, back: Any) -> int:
        if type(back) is not int or not 1 <= back <= len(self.names):
            raise ValueError(f"a step reads what is {brief(back)} steps before it")
        return len(self.names) - back

    def add(self, kind: str, module: nn.Module) -> None:
        name = self._free_name(kind)
        if next(module.parameters(), None) is not None or any(buffer.is_meta for buffer in module.buffers()):
            self.layers.append(_Pending(name, module, None, None, None))
        self._append(name, module)

    def rows(self, name: str, count: int, kept: int) -> None:
        self._spend(count)
        self.selections.append((name, count, kept))

    def weighted(self, kind: str, name: str, arguments: Mapping[str, Any], weight: Any, bias: Any) -> nn.Module:
        with torch.device("meta"):
            module: Any = kind_named(kind).build({**arguments, "bias": bias is not False})
        step = prior = None
        if weight is not None:
            step, prior = positive(weight[0], SMALLEST_STEP), prior_from_list(weight[1])
            self._spend(module.weight.numel() + prior.count)
        bias_step = None if bias is False or bias is None else positive(bias, SMALLEST_STEP)
        self.layers.append(_Pending(name, module, step, prior, bias_step))
        self._append(name, module)
        return module

    def select(self, kept: int, axis: int) -> None:
        self._listed("select", self.shape[axis], kept, lambda index: Select(index, axis), (axis, kept))

    def place(self, width: int, axis: int) -> None:
        self._listed("place", width, self.shape[axis], lambda index: ScatterChannels(index, width, axis), (axis, width))

    def _listed(
        self, kind: str, count: int, kept: int, build: Callable[[torch.Tensor], nn.Module], size: tuple[int, int]
    ) -> None:
        """A step whose list of values is made only when all sizes were found sound."""
        name = self._free_name(kind)
        self.rows(name, count, kept)
        self.unfinished[name] = build
        self._note(name, nn.Identity(), resized(self.shape, *size), self.dtypes[self.reads[0]])

    def _spend(self, numbers: int) -> None:
        self.allowance -= numbers
        if self.allowance < 0:
            raise ValueError("it claims more numbers than so small a file can hold")

    def _append(self, name: str, module: nn.Module) -> None:
        if name in self.steps or not name or "." in name or hasattr(Graph, name) or name == "training":
            raise ValueError(f"{name[:60]!r} cannot be the name of a layer")
        if INPUT in (self.names[place] for place in self.reads):
            _check_input(name, module, self.input_shape, [step.module for step in self.steps.values()])
        shapes = [self.shapes[place] for place in self.reads]
        dtypes = [self.dtypes[place] for place in self.reads]
        self._note(name, module, output_shape(module, *shapes), _dtype_of(name, module, shapes, dtypes))

    def _note(self, name: str, module: nn.Module, shape: Shape, dtype: torch.dtype) -> None:
        size = prod(shape) // EXAMPLES
        self.room -= size
        if size > LARGEST_ACTIVATION or self.room < 0:
            raise ValueError(f"activations of shape {shape[1:]}")
        self.steps[name] = Step(name, module, tuple(self.names[place] for place in self.reads))
        self.names.append(name)
        self.shapes.append(shape)
        self.dtypes.append(dtype)

    def _free_name(self, kind: str) -> str:
        """The kind and the next number, less those that weighted layers are called by."""
        plain = kind.replace("-", "_").replace(".", "_")
        names = (plain + str(number) for number in self.numbers[kind])
        return next(name for name in names if name not in self.taken)

    def fill(self, reader: _Reader) -> tuple[QuantisedNetwork, dict[str, StatedPrior]]:
        """Read the numbers, now that all sizes are known and found sound."""
        labels = tuple(self.header[LABELS])
        weighted = any(is_weighted(layer.module) for layer in self.layers)
        if not weighted or self.shapes[-1][:2] != (EXAMPLES, len(labels)):
            raise ValueError(f"{len(labels)} labels for outputs of shape {self.shapes[-1][1:]}")
        decoder = Decoder(reader.take(reader.varint()))
        for name, arriving, kept in self.selections:
            index = _read_selection(decoder, arriving, kept)
            embedding = self.steps[name].module
            if isinstance(embedding, Embed):
                embedding.index = torch.empty(arriving, dtype=torch.long)
                embedding.has_rows_(index)
                continue
            self.steps[name] = replace(self.steps[name], module=self.unfinished[name](index))
        plain = [_read_plain(reader, layer) for layer in self.layers]
        decoder = Decoder(reader.rest())
        weights, priors = {}, {}
        for layer in self.layers:
            if layer.step is not None and layer.prior is not None:
                shape = tuple(layer.module.weight.shape)
                weights[layer.name] = _read_codes(decoder, shape, layer.step, layer.prior)
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


def _called_again(entry: Sequence[Any], before: Sequence[Step]) -> nn.Module:
    """A layer that is there already, or its transpose: it has no numbers of its own."""
    match entry:
        case [_, int(back), bool(transposed)] if 1 <= back <= len(before):
            module: Any = before[-back].module
        case _:
            raise unknown(entry)
    if not is_weighted(module) or (transposed and module.weight.dim() != 2):
        raise ValueError(f"{brief(entry)} calls what is no such layer")
    return Tied(module) if transposed else module


def _check_input(name: str, module: nn.Module, input_shape: Shape, before: Sequence[nn.Module]) -> None:
    """Of several inputs each is read by a step of its own, and these come first."""
    given = [other.called for other in before if isinstance(other, NetworkInput)]
    if isinstance(module, NetworkInput):
        if not module.place == len(given) == len(before) or module.called in given:
            raise ValueError(f"{module.called!r} is input {module.place}, and the steps before it are others")
    elif not input_shape or given:
        raise ValueError(f"{name[:60]!r} reads the input, of which there are several")


def _dtype_of(name: str, module: nn.Module, shapes: Sequence[Shape], dtypes: Sequence[torch.dtype]) -> torch.dtype:
    try:
        return output_dtype(module, shapes, dtypes)
    except ValueError as error:
        raise ValueError(f"{name[:60]!r} does not compute with {', '.join(map(str, dtypes))}") from error


def _read_plain(reader: _Reader, layer: _Pending) -> Codes | None:
    """Float weights go into the module at once; biases do, or come back as codes."""
    module = layer.module
    if not is_weighted(module):
        finite = not isinstance(module, AtenCall)
        for name, numbers in list(module.named_parameters()):
            module._parameters[name] = _floats(reader, tuple(numbers.shape), finite=finite)
        for name, buffer in list(module.named_buffers()):
            module._buffers[name] = _buffer(reader, buffer)
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


def _read_codes(decoder: Decoder, shape: Shape, step: float, prior: StatedPrior) -> Codes:
    highest = prior.lowest + prior.count - 1
    if not -LARGEST_CODE <= prior.lowest <= highest <= LARGEST_CODE:
        raise ValueError(f"codes from {prior.lowest} to {highest}")
    return Codes(decoder.read(prod(shape), prior).reshape(shape), step)


def _read_selection(decoder: Decoder, arriving: int, kept: int) -> torch.Tensor:
    mask = decoder.read(arriving, Counted((arriving - kept, kept)))
    if mask.sum() != kept:
        raise ValueError("the list of values that are read is damaged")
    return torch.from_numpy(np.flatnonzero(mask))


def _floats(reader: _Reader, shape: tuple[int, ...], *, finite: bool = True) -> nn.Parameter:
    """Numbers of a call need not be finite: masks of attention have minus infinity in them."""
    values = np.frombuffer(reader.take(4 * prod(shape)), dtype="<f4").astype(np.float32)
    if finite and not np.isfinite(values).all():
        raise ValueError("a weight or bias is not a finite number")
    return nn.Parameter(torch.from_numpy(values.reshape(shape)), requires_grad=False)


def _buffer(reader: _Reader, like: torch.Tensor) -> torch.Tensor:
    """Numbers that were never learned, of any dtype."""
    if like.is_floating_point():
        return _floats(reader, tuple(like.shape), finite=False).data.to(like.dtype)
    kind = torch.empty(0, dtype=like.dtype).numpy().dtype
    content = reader.take(kind.itemsize * prod(like.shape))
    if kind == np.bool_ and set(content) - {0, 1}:
        raise ValueError("a truth is neither")
    values = np.frombuffer(content, dtype=kind.newbyteorder("<")).astype(kind)
    return torch.from_numpy(values.reshape(tuple(like.shape)))
