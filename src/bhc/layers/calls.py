"""Calls of torch's own operators, by what they do with channels: pointwise, moving, along some axes, or unknown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.layers.arguments import LARGEST_LAYER, Kept, Shape, bounded, brief, expect, unknown
from bhc.layers.aten import DTYPES, AtenCall, Opaque, Read, call_of, from_plain, is_norm, to_plain, traced
from bhc.layers.kind import Example, LayerKind, Whole, own_copy
from bhc.layers.operator_numbers import NUMBERS, OPERATORS
from bhc.layers.protocols import FileReader, FileWriter

LONGEST_REASON = 200  # letters


class AtenKind(LayerKind):
    """What all calls have in common."""

    joins = True
    number = 40  # in files, one for all: what a call does with channels follows from its operator

    def takes(self, count: int) -> bool:
        return count > 0

    def output_shape(self, module: AtenCall, *arriving: Shape) -> Shape:
        try:
            shape = tuple(traced(module, arriving).shape)
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"{module.target} does not take {arriving}: {str(error).splitlines()[0][:120]}") from error
        expect(int(np.prod(shape, dtype=object)) <= LARGEST_LAYER, f"{module.target} gives {shape}")
        return shape

    def weights_of(self, module: AtenCall) -> tuple[str, ...]:
        """Learned tensors that are used directly; not biases, nor the gains and shifts of norms."""
        if is_norm(module.target):
            return ()
        return tuple(name for name, argument in module.owned() if argument != "bias" and _is_learned(module, name))

    def describe(self, module: AtenCall) -> dict[str, Any]:
        own: dict[str, tuple[Tensor, bool]] = {name: (numbers, True) for name, numbers in module.named_parameters()}
        own |= {name: (numbers, False) for name, numbers in module.named_buffers()}
        own = dict(sorted(own.items(), key=lambda each: int(each[0].removeprefix("own"))))  # files have no names
        return {
            "target": module.target,
            "arguments": to_plain(module.arguments),
            "named": {name: to_plain(value) for name, value in module.named.items()},
            "own": {
                name: [list(numbers.shape), str(numbers.dtype).removeprefix("torch."), learned]
                for name, (numbers, learned) in own.items()
            },
            "pick": module.pick,
            "dtypes": [[place, name] for place, name in module.dtypes.items()],
        } | ({"why": module.why} if module.why else {})

    def build(self, described: Mapping[str, Any]) -> nn.Module:
        own: dict[str, Tensor] = {}
        for name, (shape, dtype, learned) in described["own"].items():
            if shape:
                bounded(*shape)
            numbers = torch.zeros(tuple(shape), dtype=getattr(torch, dtype))
            own[name] = nn.Parameter(numbers, requires_grad=False) if learned else numbers
        arguments = [from_plain(argument) for argument in described["arguments"]]
        named = {name: from_plain(value) for name, value in described["named"].items()}
        dtypes = dict(described["dtypes"])
        call = call_of(described["target"], arguments, named, own, described["pick"], dtypes)
        call.why = str(described.get("why", ""))[:LONGEST_REASON]
        return call

    def untold(self) -> tuple[str, ...]:
        return ("operator", "arguments", "rest")

    def write(self, module: AtenCall, name: str, arriving: Shape, file: FileWriter) -> list[Any]:
        if module.target not in NUMBERS:
            raise BhcError(
                f"step {name!r} calls {module.target}, which a .bhc file has no number for",
                hint="save it as .pt2 (to_torch), or as ONNX",
            )
        described = self.describe(module)
        dtypes_named = [dtype for _, dtype, _ in described["own"].values()] + [
            dtype for _, dtype in described["dtypes"]
        ]
        for dtype in dtypes_named:
            if dtype not in DTYPES:
                raise BhcError(
                    f"step {name!r} has values of dtype {dtype}, which a .bhc file cannot hold",
                    hint="save it as .pt2 (to_torch), or as ONNX",
                )
        own = [[shape, DTYPES.index(dtype), learned] for shape, dtype, learned in described["own"].values()]
        dtypes = [[place, DTYPES.index(dtype)] for place, dtype in described["dtypes"]]
        named = {key: _shorter(value) for key, value in described["named"].items()}
        rest = {"named": named, "own": own, "pick": module.pick, "dtypes": dtypes}
        if own:
            file.floats(name, module)
        stored = {key: value for key, value in enumerate(rest.values()) if value not in ({}, [], None)}
        return [self.tag, NUMBERS[module.target], _shorter(described["arguments"]), stored]

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        match entry:
            case [_, int(number), list(arguments), dict(rest)] if (
                number in range(len(OPERATORS)) and set(rest) <= PARTS
            ):
                own = {
                    f"own{place}": (_sizes(shape), DTYPES[_place(dtype, DTYPES)], learned is True)
                    for place, (shape, dtype, learned) in enumerate(rest.get(1, ()))
                }
                pick, stored = rest.get(2), rest.get(0, {})
                expect(isinstance(stored, dict) and all(isinstance(key, str) for key in stored), "an unknown argument")
                named = {key: _longer(value) for key, value in stored.items()}
                expect(pick is None or (type(pick) is int and 0 <= pick < 16), "an unknown result")
                described = {
                    "target": OPERATORS[number],
                    "arguments": _longer(arguments),
                    "named": named,
                    "own": own,
                    "pick": pick,
                    "dtypes": [(_place(at, range(1 << 10)), DTYPES[_place(d, DTYPES)]) for at, d in rest.get(3, ())],
                }
            case _:
                raise unknown(entry)
        with torch.device("meta"):
            module: Any = self.build(described)
        file.add(module.family, module)

    def examples(self) -> Sequence[Example]:
        return []


PARTS = frozenset(range(4))  # of a step in a file: named arguments, its own tensors, which result, dtypes

# In a file, what is no plain argument has a number in place of a word.
WORDS = ("read", "own", "size", "dtype", "device")


def _shorter(plain: Any) -> Any:
    if isinstance(plain, dict):
        ((key, value),) = plain.items() if len(plain) == 1 and next(iter(plain)) in WORDS else ((None, None),)
        if key is not None:
            return {WORDS.index(key): _short_value(key, value)}
        return {name: _shorter(value) for name, value in plain.items()}
    return [_shorter(part) for part in plain] if isinstance(plain, list) else plain


def _longer(stored: Any) -> Any:
    if isinstance(stored, dict):
        if len(stored) == 1 and type(next(iter(stored))) is int:
            ((key, value),) = stored.items()
            expect(0 <= key < len(WORDS), f"{brief(stored)} as an argument")
            return {WORDS[key]: _long_value(WORDS[key], value)}
        return {name: _longer(value) for name, value in stored.items()}
    return [_longer(part) for part in stored] if isinstance(stored, list) else stored


def _short_value(key: str, value: Any) -> Any:
    if key == "own":
        return int(value.removeprefix("own"))
    return DTYPES.index(value) if key == "dtype" else value


def _long_value(key: str, value: Any) -> Any:
    if key == "own":
        return f"own{_place(value, range(1 << 10))}"
    return DTYPES[_place(value, DTYPES)] if key == "dtype" else value


def _place(number: Any, among: Sequence[Any]) -> int:
    expect(type(number) is int and 0 <= number < len(among), f"{brief(number)} as an argument")
    return number


def _sizes(shape: Any) -> list[int]:
    expect(
        isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape), f"{brief(shape)} as a shape"
    )
    return shape


def _is_learned(module: AtenCall, name: str) -> bool:
    return name in module._parameters


class OpaqueKind(AtenKind, Whole):
    """Nothing is known of it but that it runs."""

    name, module = Opaque.family, Opaque

    def num_flops(self, module: Opaque, arriving: Sequence[Shape], leaving: Shape) -> int:
        """Products of two values, counted as those of layers are."""
        return count_flops(module, arriving, leaving)

    def examples(self) -> Sequence[Example]:
        return [(Opaque("aten.matmul.default", [Read(0), Read(1)]), ((2, 3, 4), (2, 4, 3)))]


def count_flops(module: AtenCall, arriving: Sequence[Shape], leaving: Shape) -> int:
    """Two operations a multiplication of a product, of weights or of values."""
    own = {argument: getattr(module, name) for name, argument in module.owned()}
    numel = int(np.prod(leaving, dtype=object))
    match module.op:
        case "linear":
            return 2 * numel * arriving[0][-1]
        case "conv1d" | "conv2d" | "conv3d" if "weight" in own:
            return 2 * numel * own["weight"][0].numel()
        case "matmul" | "bmm" | "mm" | "baddbmm" | "addmm" if arriving:
            return 2 * numel * arriving[0][-1]
        case "scaled_dot_product_attention" if len(arriving) >= 3:
            query, key = arriving[:2]
            scores = int(np.prod(query[:-1], dtype=object)) * key[-2]
            return 2 * scores * (query[-1] + arriving[2][-1])
        case "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" if "weight" in own:
            return 2 * int(np.prod(arriving[0], dtype=object)) * own["weight"][0].numel()
    return 0


def with_own_narrowed(module: AtenCall, leaving: Kept) -> AtenCall:
    """The call with those of its own numbers that stand at what stays."""
    twin: Any = own_copy(module)
    from_last = leaving.dimensions - leaving.axis
    index = torch.from_numpy(leaving.index)
    for numbers in (twin._parameters, twin._buffers):
        for name, tensor in numbers.items():
            if tensor is not None and tensor.dim() >= from_last and tensor.shape[-from_last] == len(leaving.mask) > 1:
                smaller = tensor.detach().index_select(tensor.dim() - from_last, index)
                learned = isinstance(tensor, nn.Parameter)
                numbers[name] = nn.Parameter(smaller, requires_grad=False) if learned else smaller
    return twin


KINDS = (OpaqueKind,)
