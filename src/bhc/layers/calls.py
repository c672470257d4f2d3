"""Calls of torch's own operators, by what they do with channels: pointwise, moving, along some axes, or unknown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.layers.arguments import brief, unknown
from bhc.layers.asked import FileReader, FileWriter, UnitSearch
from bhc.layers.aten import DTYPES, AtenCall, Own, Read, SizeOf, from_plain, operator, to_plain, traced_shape
from bhc.layers.kind import Example, LayerKind, Whole
from bhc.layers.modules import own_copy
from bhc.layers.operators import NUMBERS, OPERATORS
from bhc.layers.shapes import LARGEST_LAYER, Kept, Shape, bounded, expect

LONGEST_REASON = 200  # letters
NORMS = (
    "layer_norm",
    "group_norm",
    "instance_norm",
    "rms_norm",
    "batch_norm",
    "native_layer_norm",
    "native_group_norm",
)


class Pointwise(AtenCall):
    """Each number of the result from those at the same place of what it reads, as shapes are broadcast."""


class Movement(AtenCall):
    """Numbers that are moved, picked, repeated or put beside others; none of them changes."""


class AlongAxes(AtenCall):
    """Something along some axes of one value, the same at each place of all others."""


class Opaque(AtenCall):
    """Anything else: it runs as it is, and what it reads and gives stays whole."""


class AtenKind(LayerKind):
    """What all calls have in common."""

    joins = True
    number = 40  # in files, one for all: what a call does with channels follows from its operator

    def takes(self, count: int) -> bool:
        return count > 0

    def output_shape(self, module: AtenCall, *arriving: Shape) -> Shape:
        try:
            shape = traced_shape(module, *arriving)
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"{module.target} does not take {arriving}: {str(error).splitlines()[0][:120]}") from error
        expect(int(np.prod(shape, dtype=object)) <= LARGEST_LAYER, f"{module.target} gives {shape}")
        return shape

    def weights_of(self, module: AtenCall) -> tuple[str, ...]:
        """Learned tensors that are used directly; not biases, nor the gains and shifts of norms."""
        if module.op in NORMS:
            return ()
        return tuple(name for name, argument in module.owned() if argument != "bias" and _is_learned(module, name))

    def describe(self, module: AtenCall) -> dict[str, Any]:
        own: dict[str, tuple[Tensor, bool]] = {name: (numbers, True) for name, numbers in module.named_parameters()}
        own |= {name: (numbers, False) for name, numbers in module.named_buffers()}
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
        file.add(FAMILY_NAMES[type(module)], module)

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


def call_of(
    target: str,
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    own: Mapping[str, Tensor],
    pick: int | None,
    dtypes: Mapping[int, str],
) -> AtenCall:
    """The call of an operator, as what its family is."""
    return family_of(target)(target, arguments, named, own, pick, dtypes)


def family_of(target: str) -> type[AtenCall]:
    """What an operator does with channels."""
    op = target.split(".")[1]
    if op in MOVEMENTS:
        return Movement
    if op in ALONG_AXES:
        return AlongAxes
    tags = getattr(operator(target), "tags", ())
    return Pointwise if torch.Tag.pointwise in tags or op in ALSO_POINTWISE else Opaque


# Without torch's mark, or marked as something else.
ALSO_POINTWISE = ("_to_copy", "to", "dropout", "where", "clamp", "prelu", "masked_fill", "addcmul", "lerp", "type_as")
SUMS = ("add", "sub", "rsub", "_to_copy", "to", "type_as", "neg")  # a part that is left out adds nothing


class PointwiseKind(AtenKind):
    """What meets at one place lives and dies together; the step's own numbers go with them."""

    name, module = "pointwise", Pointwise

    def follow(self, module: Pointwise, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        spread = [units.expand(leaving) for units in arriving if _fits(units.shape, leaving)]
        met = []
        for units in spread:
            if _is_for_all(units, [other for other in spread if other is not units], search):
                search.keep(units)  # one number for many units, as of a gate over places, is needed by all of them
            else:
                met.append(units)
        if not met:
            return search.whole(leaving)
        first, *others = met
        for other in others:
            search.join(first, other)
        if others and module.op not in SUMS:
            search.tie(first)  # a factor that is left out would be zero
        return first

    def narrowed(self, module: Pointwise, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        if module.op == "prelu":  # its numbers lie along the second axis, and have no other
            return with_own_narrowed(module, Kept(0, leaving.mask, 1)) if leaving.axis == 1 else own_copy(module)
        return with_own_narrowed(module, leaving)

    def examples(self) -> Sequence[Example]:
        gain = nn.Parameter(torch.tensor([[1.0], [2.0], [3.0]]), requires_grad=False)
        scaled = Pointwise("aten.mul.Tensor", [Read(0), Own("own0")], own={"own0": gain})
        both = Pointwise("aten.maximum.default", [Read(0), Read(1)])
        return [(scaled, ((2, 3, 4),)), (both, ((2, 3, 4), (2, 3, 4)))]


class MovementKind(AtenKind):
    """Units are moved as the numbers are; sizes in its arguments are those of what stays."""

    name, module = "movement", Movement

    def follow(self, module: Movement, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        for axis in MOVEMENTS[module.op].mixed(module, len(leaving)):
            for units in arriving:
                if axis < units.dim() and search.varies(units, axis):
                    search.keep(units)
        if module.op in ("pad", "constant_pad_nd"):
            return _padded(module, search, leaving, arriving[0])
        return _moved(module, search, leaving, arriving)

    def narrowed(self, module: Movement, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        return MOVEMENTS[module.op].narrowed(module, arriving, leaving)

    def examples(self) -> Sequence[Example]:
        turned = Movement("aten.permute.default", [Read(0), [0, 2, 1]])
        heads = Movement("aten.reshape.default", [Read(0), [SizeOf(((0, 0),)), 2, 3, 4]])
        return [(turned, ((2, 3, 4),)), (heads, ((2, 6, 4),))]


class AlongAxesKind(AtenKind):
    """Reductions, softmaxes, norms, pools, upsampling: what varies along the axes in question is kept whole."""

    name, module = "along-axes", AlongAxes

    def follow(self, module: AlongAxes, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        units, *others = arriving
        if others:
            for each in arriving:
                search.keep(each)
            return search.whole(leaving)
        axes = sorted(axis % units.dim() for axis in ALONG_AXES[module.op](module, units.dim()))
        if any(search.varies(units, axis) for axis in axes):
            search.keep(units)
            return search.whole(leaving)
        for axis in axes:
            units = units.narrow(axis, 0, 1)
        if len(leaving) < units.dim():
            units = units.squeeze(tuple(axes))
        return units.expand(leaving)

    def narrowed(self, module: AlongAxes, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        return own_copy(module)

    def examples(self) -> Sequence[Example]:
        softmax = AlongAxes("aten.softmax.int", [Read(0), -1])
        total = AlongAxes("aten.sum.dim_IntList", [Read(0), [1]])
        return [(softmax, ((2, 3, 4),)), (total, ((2, 3, 4),))]


class OpaqueKind(AtenKind, Whole):
    """Nothing is known of it but that it runs."""

    name, module = "opaque", Opaque

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


def _is_for_all(units: Tensor, others: Sequence[Tensor], search: UnitSearch) -> bool:
    """Whether a value has one number where another has many units."""
    wide = [axis for axis, size in enumerate(units.shape) if size > 1 and units.stride(axis) == 0]
    return any(search.varies(other, axis) for axis in wide for other in others)


def _fits(shape: Sequence[int], leaving: Shape) -> bool:
    pairs = zip(reversed(shape), reversed(leaving), strict=False)
    return len(shape) <= len(leaving) and all(size in (1, wanted) for size, wanted in pairs)


def _moved(module: Movement, search: UnitSearch, leaving: Shape, arriving: Sequence[Tensor]) -> Tensor:
    """The units, moved by the operator itself."""
    shadowed = module.with_arguments()
    for name, argument in module.owned():
        if argument not in ("index", "indices"):  # these say where, and are moved nowhere
            shape = tuple(getattr(module, name).shape)
            shadowed._parameters.pop(name, None)
            shadowed._buffers[name] = search.constants(shape)
    if module.op in FLOATS_ONLY:
        return shadowed(*[units.double() for units in arriving]).long()
    return shadowed(*arriving)


def _padded(module: Movement, search: UnitSearch, leaving: Shape, units: Tensor) -> Tensor:
    """Zeros that nobody writes along the axis of the units; the same units along all others."""
    varying = [axis for axis in range(units.dim()) if search.varies(units, axis)]
    before = _pads(module, units.dim())
    for axis in range(units.dim()):
        low, high = before[axis]
        if not (low or high):
            continue
        if axis in varying:
            line = search.along(units, axis)
            line = torch.cat([search.new(max(low, 0)), line[max(-low, 0) : len(line) - max(-high, 0)]])
            line = torch.cat([line, search.new(max(high, 0))])
            sizes = [1] * units.dim()
            sizes[axis] = len(line)
            units = line.reshape(sizes)
        else:
            units = units.narrow(axis, 0, 1)
    return units.expand(leaving)


def _pads(module: AtenCall, dimensions: int) -> list[tuple[int, int]]:
    """What is added before and after each axis."""
    flat = list(module.argument("pad"))
    pairs = [(flat[place], flat[place + 1]) for place in range(0, len(flat), 2)]
    return [(0, 0)] * (dimensions - len(pairs)) + pairs[::-1]


class Move:
    """One operator that moves numbers: which axes it mixes, and what its arguments become after a cut."""

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        """Axes along which it cannot be cut."""
        return ()

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        return with_own_narrowed(module, leaving) if _moves_its_own(module) else own_copy(module)


def _moves_its_own(module: AtenCall) -> bool:
    """Whether it is numbers of its own that are moved, to where there are as many as a batch has examples."""
    return isinstance(module.argument("self"), Own)


class Reshape(Move):
    """Sizes of the result among the arguments."""

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        name = "shape" if module.op == "reshape" else "size"
        sizes = list(module.argument(name))
        from_last = leaving.dimensions - leaving.axis
        if type(sizes[-from_last]) is int and sizes[-from_last] == len(leaving.mask):
            sizes[-from_last] = int(leaving.mask.sum())
        return with_own_narrowed(module.with_arguments(**{name: sizes}), leaving)


class Slice(Move):
    """``x[start:end]`` along an axis."""

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        fixed = not any(isinstance(module.argument(name), SizeOf) for name in ("start", "end"))
        return () if fixed and module.argument("step") == 1 else (module.argument("dim") % dimensions,)

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        kept = arriving[0]
        if _moves_its_own(module) or module.argument("dim") % kept.dimensions != kept.axis:
            return super().narrowed(module, arriving, leaving)
        start, end, _ = slice(module.argument("start"), module.argument("end")).indices(len(kept.mask))
        start, end = (int(kept.mask[:place].sum()) for place in (start, end))
        return own_copy(module.with_arguments(start=start, end=end))


class Select(Move):
    """``x[index]`` along an axis."""

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        return (module.argument("dim") % (dimensions + 1),)


class Along(Move):
    """Mixes the places of the axes that an argument names."""

    def __init__(self, argument: str) -> None:
        self.name = argument

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        axes = module.argument(self.name)
        if axes is None or axes == []:  # of the numbers as they lie in memory
            return range(dimensions)
        return [axis % dimensions for axis in (axes if isinstance(axes, list) else [axes])]


class Pad(Move):
    """Zeros before and after; other modes mix."""

    def mixed(self, module: AtenCall, dimensions: int) -> Sequence[int]:
        plain = module.argument("mode", "constant") == "constant" and module.argument("value") in (None, 0)
        return () if plain else [axis for axis, pair in enumerate(_pads(module, dimensions)) if any(pair)]

    def narrowed(self, module: AtenCall, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        low, high = _pads(module, leaving.dimensions)[leaving.axis]
        if not (low or high):
            return own_copy(module)
        flat = list(module.argument("pad"))
        place = 2 * (leaving.dimensions - 1 - leaving.axis)
        kept, given = arriving[0].mask, leaving.mask
        before = int(given[:low].sum()) if low > 0 else -int(kept[:-low].sum()) if low else 0
        after = int(given[len(given) - high :].sum()) if high > 0 else -int(kept[high:].sum()) if high else 0
        flat[place : place + 2] = [before, after]
        return own_copy(module.with_arguments(pad=flat))


MOVEMENTS: dict[str, Move] = {
    "reshape": Reshape(),
    "expand": Reshape(),
    "permute": Move(),
    "slice": Slice(),
    "select": Select(),
    "cat": Move(),
    "pad": Pad(),
    "constant_pad_nd": Pad(),
    "flip": Move(),
    "roll": Along("dims"),
    "repeat": Move(),
    "pixel_shuffle": Move(),
    "pixel_unshuffle": Move(),
    "im2col": Move(),
    "index_select": Along("dim"),
}
FLOATS_ONLY = ("im2col", "pixel_shuffle", "pixel_unshuffle")

Axes = Callable[[AtenCall, int], Sequence[int]]


def _named_axes(module: AtenCall, dimensions: int) -> Sequence[int]:
    axes = module.argument("dim")
    if axes is None or axes == []:
        return range(dimensions)
    return axes if isinstance(axes, list) else [axes]


def _last(count: int) -> Axes:
    return lambda module, dimensions: range(dimensions - count, dimensions)


def _normalised(module: AtenCall, dimensions: int) -> Sequence[int]:
    return range(dimensions - len(module.argument("normalized_shape")), dimensions)


def _all_but_examples(module: AtenCall, dimensions: int) -> Sequence[int]:
    return range(1, dimensions)


ALONG_AXES: dict[str, Axes] = {
    **dict.fromkeys(
        ("mean", "sum", "amax", "amin", "max", "min", "var", "std", "prod", "logsumexp", "linalg_vector_norm", "norm",
         "softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "argmax", "argmin", "any", "all"),
        _named_axes,
    ),
    **dict.fromkeys(("layer_norm", "rms_norm"), _normalised),
    **dict.fromkeys(("group_norm", "instance_norm"), _all_but_examples),
    **{
        f"{name}{count}d": _last(count)
        for name in ("adaptive_avg_pool", "adaptive_max_pool", "avg_pool", "max_pool", "upsample_nearest",
                     "_upsample_nearest_exact")
        for count in (1, 2, 3)
    },
    "upsample_linear1d": _last(1),
    "upsample_bilinear2d": _last(2),
    "_upsample_bilinear2d_aa": _last(2),
    "upsample_bicubic2d": _last(2),
    "upsample_trilinear3d": _last(3),
}  # fmt: skip

FAMILY_NAMES = {Pointwise: "pointwise", Movement: "movement", AlongAxes: "along-axes", Opaque: "opaque"}
KINDS: tuple[type[LayerKind], ...] = (PointwiseKind, MovementKind, AlongAxesKind, OpaqueKind)
