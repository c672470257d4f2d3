"""A call of one of torch's own operators as a step: which one, with which arguments, and with which numbers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bhc.layers.arguments import Shape, brief, expect
from bhc.layers.kind import bare_copy

NAMESPACE = "aten"
LARGEST_SIZE_FACTOR = 1 << 32
DEPTH = 8  # of lists in lists, at most


@dataclass(frozen=True)
class Read:
    """An argument that is a value: the place among those that the step reads."""

    place: int


@dataclass(frozen=True)
class Own:
    """An argument that is a tensor of the step's own, by its name there."""

    name: str


@dataclass(frozen=True)
class SizeOf:
    """A whole number that depends on how large a batch is: the product of some sizes, times one number over another."""

    axes: tuple[tuple[int, int], ...]  # place of a value, axis
    times: int = 1
    over: int = 1

    def of(self, values: Sequence[Tensor]) -> int:
        return prod(values[place].shape[axis] for place, axis in self.axes) * self.times // self.over


@dataclass(frozen=True)
class Dtype:
    """An argument that is a dtype."""

    name: str

    def of(self) -> torch.dtype:
        return getattr(torch, self.name)


class Device:
    """An argument that is the device of what the step reads, or of its own tensors."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device)

    def __hash__(self) -> int:
        return hash(Device)

    def __repr__(self) -> str:
        return "Device()"


PRODUCTS = (  # of values and weights of one dtype
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention",
)  # fmt: skip
NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")  # in the names of operators


def is_norm(target: str) -> bool:
    """Whether an operator's learned numbers are gains and shifts."""
    return any(name in target for name in NORMS)


DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


@lru_cache(maxsize=512)
def operator(name: str) -> Callable[..., Any]:
    """One of torch's own operators by its full name, such as ``aten.view.default``; ValueError if there is none."""
    parts = name.split(".") if isinstance(name, str) else []
    if len(parts) != 3 or parts[0] != NAMESPACE:
        raise ValueError(f"{brief(name)} is no operator of torch's own")
    packet = getattr(torch.ops.aten, parts[1], None)
    overload = getattr(packet, parts[2], None)
    if not isinstance(overload, torch._ops.OpOverload):
        raise ValueError(f"{brief(name)} is no operator of torch's own")
    return overload


class AtenCall(nn.Module):
    """``operator(*arguments)``; of several results the one that is picked.

    ``arguments`` are in the operator's order, ``named`` those that must be named. Tensors of its own are parameters
    where they were learned and buffers where not. What it does with channels is a matter of its family, which are the
    subclasses.
    """

    family: ClassVar[str]  # its name, as that of a kind of layers

    @classmethod
    def covers(cls, target: str) -> bool:
        """Whether an operator is one of this family's."""
        return False

    def __init__(
        self,
        target: str,
        arguments: Sequence[Any],
        named: Mapping[str, Any] | None = None,
        own: Mapping[str, Tensor] | None = None,
        pick: int | None = None,
        dtypes: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__()
        operator(target)
        self.target, self.arguments, self.named = target, list(arguments), dict(named or {})
        self.pick = pick
        self.dtypes = dict(dtypes or {})  # of the values that it reads and that are not floats
        self.traces: dict[Any, Tensor] = {}  # results without data, by sizes and dtypes of what it reads
        self.why = ""  # why weights that could be cut elsewhere stay whole here
        for name, numbers in (own or {}).items():
            if isinstance(numbers, nn.Parameter):
                self.register_parameter(name, numbers)
            else:
                self.register_buffer(name, numbers)

    def forward(self, *values: Tensor) -> Tensor:
        made = [self._made(argument, values) for argument in self.arguments]
        named = {name: self._made(argument, values) for name, argument in self.named.items()}
        result = operator(self.target)(*made, **named)
        return result if self.pick is None else result[self.pick]

    def _made(self, argument: Any, values: Sequence[Tensor]) -> Any:
        match argument:
            case Read():
                return values[argument.place]
            case Own():
                return getattr(self, argument.name)
            case SizeOf():
                return argument.of(values)
            case Dtype():
                return argument.of()
            case Device():
                return self._device(values)
            case list():
                return [self._made(part, values) for part in argument]
        return argument

    def _device(self, values: Sequence[Tensor]) -> torch.device:
        tensors = [*values, *self.parameters(), *self.buffers()]
        return tensors[0].device if tensors else torch.device("cpu")

    @property
    def op(self) -> str:
        """Its name without the overload: ``view`` of ``aten.view.default``."""
        return self.target.split(".")[1]

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by the name that the operator has for it."""
        if name in self.named:
            return self.named[name]
        for place, argument in enumerate(schema_of(self.target).arguments):
            if argument.name == name:
                if place < len(self.arguments) and not argument.kwarg_only:
                    return self.arguments[place]
                return argument.default_value if argument.has_default_value() else default
        return default

    def with_arguments(self, **changed: Any) -> "AtenCall":
        """The same call with other arguments, by their names; tensors are shared."""
        schema, arguments = schema_of(self.target), list(self.arguments)
        for place, argument in enumerate(schema.arguments[: len(arguments)]):
            if argument.name in changed:
                arguments[place] = changed.pop(argument.name)
        twin = bare_copy(self)
        twin.arguments, twin.named, twin.traces = arguments, self.named | changed, {}
        return twin

    def owned(self) -> Iterator[tuple[str, str]]:
        """Its own tensors with the operator's names for them."""
        names = [argument.name for argument in schema_of(self.target).arguments]
        for name, argument in (*zip(names, self.arguments, strict=False), *self.named.items()):
            yield from ((part.name, name) for part in flat([argument]) if isinstance(part, Own))

    def named_own(self) -> Iterator[tuple[str, Tensor]]:
        """Its own tensors by the names that they have here."""
        yield from ((name, own) for name, own in self._parameters.items() if own is not None)
        yield from ((name, own) for name, own in self._buffers.items() if own is not None)

    def extra_repr(self) -> str:
        return f"{self.target}, {self.arguments}"


class Opaque(AtenCall):
    """Of no other family: it runs as it is, and what it reads and gives stays whole."""

    family = "opaque"


def call_of(target: str, *arguments: Any, **more: Any) -> AtenCall:
    """The call of an operator, as what its family is: what ``AtenCall`` takes."""
    family = next((each for each in AtenCall.__subclasses__() if each.covers(target)), Opaque)
    return family(target, *arguments, **more)


def schema_of(target: str) -> Any:
    """The arguments of one of torch's operators, by name and in order."""
    return operator(target)._schema  # type: ignore[attr-defined]


def flat(arguments: Any) -> Iterator[Any]:
    """What lists hold, at any depth."""
    for argument in arguments:
        if isinstance(argument, list | tuple):
            yield from flat(argument)
        else:
            yield argument


def to_plain(argument: Any, *, depth: int = 0) -> Any:
    """An argument as plain data: what is no number, text, truth or nothing is a dict with one entry."""
    match argument:
        case Read():
            return {"read": argument.place}
        case Own():
            return {"own": argument.name}
        case SizeOf():
            return {"size": [[list(pair) for pair in argument.axes], argument.times, argument.over]}
        case Dtype():
            return {"dtype": argument.name}
        case Device():
            return {"device": True}
        case list() | tuple() if depth < DEPTH:
            return [to_plain(part, depth=depth + 1) for part in argument]
        case bool() | int() | float() | str() | None:
            return argument
    raise ValueError(f"{brief(argument)} cannot be an argument of a step")


def from_plain(plain: Any, *, depth: int = 0) -> Any:
    """The argument that ``to_plain`` made plain; ValueError for anything else."""
    match plain:
        case {"read": int(place), **rest} if not rest and 0 <= place < 1 << 10:
            return Read(place)
        case {"own": str(name), **rest} if not rest and name.isidentifier() and len(name) < 20:
            return Own(name)
        case {"size": [list(axes), int(times), int(over)], **rest} if not rest:
            expect(0 < times < LARGEST_SIZE_FACTOR and 0 < over < LARGEST_SIZE_FACTOR, f"a size of {brief(plain)}")
            pairs = tuple((int(place), int(axis)) for place, axis in axes)
            expect(len(pairs) < DEPTH and all(0 <= p < 1 << 10 and 0 <= a < DEPTH for p, a in pairs), "a size")
            return SizeOf(pairs, times, over)
        case {"dtype": str(name), **rest} if not rest and name in DTYPES:
            return Dtype(name)
        case {"device": True, **rest} if not rest:
            return Device()
        case list() | tuple() if depth < DEPTH:
            return [from_plain(part, depth=depth + 1) for part in plain]
        case bool() | int() | float() | str() | None:
            return plain
    raise ValueError(f"{brief(plain)} as an argument")


MOST_TRACES = 1 << 12
_TRACES: dict[Any, Tensor] = {}  # of all calls: the blocks of a deep network make the same ones again and again


def traced(module: AtenCall, arriving: Sequence[Shape], dtypes: Sequence[torch.dtype] | None = None) -> Tensor:
    """What a call gives, found without data and kept; ``dtypes`` are those that it is made for."""
    known = tuple(dtypes or (getattr(torch, module.dtypes.get(place, "float32")) for place in range(len(arriving))))
    tensors = tuple(module.named_own())
    own = tuple((name, tuple(numbers.shape), numbers.dtype) for name, numbers in tensors)
    key = (tuple(arriving), known, own)
    if key not in module.traces:
        alike = (module.target, repr(module.arguments), repr(module.named), module.pick, *key)
        if alike not in _TRACES:
            if len(_TRACES) >= MOST_TRACES:
                _TRACES.clear()
            values = [
                torch.empty(size, device="meta", dtype=dtype) for size, dtype in zip(arriving, known, strict=True)
            ]
            _TRACES[alike] = (shadow(module) if own else module)(*values)
        module.traces[key] = _TRACES[alike]
    return module.traces[key]


def shadow(module: nn.Module) -> nn.Module:
    """The same module with no numbers in it."""
    twin = bare_copy(module)
    for name, numbers in module.named_parameters():
        twin._parameters[name] = nn.Parameter(torch.empty_like(numbers, device="meta"), requires_grad=False)
    for name, buffer in module.named_buffers():
        twin._buffers[name] = torch.empty_like(buffer, device="meta")
    return twin
