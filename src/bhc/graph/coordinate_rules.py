"""How coordinates go through layers, through steps that move numbers, through sums, factors, norms, means, products."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from bhc.graph.coordinates import Gain, Marked, Search, Tensors, contracted, einsum, mixed
from bhc.graph.graph import Step, output_shape
from bhc.layers import GlobalMean, Shape, weighted_kind
from bhc.layers.aten import AtenCall, Dtype, Own, Read

INDICES = ("index", "indices")  # numbers of a step's own that are moved nowhere


@dataclass(frozen=True)
class Visit:
    """A step with what it reads."""

    search: Search
    step: Step
    values: Sequence[Marked]
    shared: frozenset[int]  # parameters that other steps have too

    @property
    def module(self) -> Any:
        return self.step.module

    @property
    def shape(self) -> Shape:
        """Of what the step gives."""
        return output_shape(self.module, *[value.shape for value in self.values])

    def fixed(self) -> Marked:
        return self.search.fixed(self.shape)

    def operands(self, *arguments: str) -> list[Marked] | None:
        """Tensors among the arguments of a call, by the operator's names; None where one of them is no tensor."""
        return self.tensors([self.module.argument(argument) for argument in arguments])

    def tensors(self, arguments: Sequence[Any]) -> list[Marked] | None:
        found = [self._operand(argument) for argument in arguments]
        given = [value for value in found if value is not None]
        return given if len(given) == len(found) else None

    def _operand(self, argument: Any) -> Marked | None:
        match argument:
            case Read():
                return self.values[argument.place]
            case Own():
                return self.constant(argument.name)
        return None

    def constant(self, name: str) -> Marked:
        """A tensor of the step's own."""
        numbers = getattr(self.module, name)
        if id(numbers) in self.shared or not numbers.is_floating_point():
            return self.search.fixed(numbers.shape)
        coordinates = self.search.write(self.step.name, ((name, 0),), numbers.shape, is_constant=True)
        return Marked(coordinates, torch.zeros_like(coordinates), constant=True)

    def written(self, line: Tensor, axis: int) -> Marked:
        """New coordinates along an axis of what the step gives, which is full of new vectors."""
        shape = self.shape
        axis %= len(shape)
        places = [1 if place == axis else size for place, size in enumerate(shape)]
        marks = mixed(torch.arange(prod(places)) + mixed(line[0])).reshape(places)
        along = [-1 if place == axis else 1 for place in range(len(shape))]
        return Marked(line.reshape(along).expand(shape), marks.expand(shape))


Rule = Callable[[Visit], Marked | None]  # None: all that is read stays as it is


def written(visit: Visit) -> Marked | None:
    """What a layer reads stays; what it writes are new coordinates."""
    visit.search.stay(*visit.values)
    return _outputs(visit)


def linear(visit: Visit) -> Marked | None:
    visit.search.read(visit.step.name, visit.step.reads[0], visit.values[0])
    return _outputs(visit)


def _outputs(visit: Visit) -> Marked | None:
    module, axis = visit.module, weighted_kind(visit.module).out_axis
    if getattr(module, "groups", 1) > 1:
        return None
    tensors = (("weight", 0),) if module.bias is None else (("weight", 0), ("bias", 0))
    line = visit.search.write(visit.step.name, tensors, (len(module.weight),), axis=axis)
    return visit.written(line, axis)


def moved(visit: Visit) -> Marked:
    """Coordinates and marks are moved by the operator itself."""
    module: AtenCall = visit.module
    own = {name: visit.constant(name) for name, argument in module.owned() if argument not in INDICES}

    def move(part: str) -> Tensor:
        twin = module.with_arguments()
        for name, value in own.items():
            twin._parameters.pop(name, None)
            twin._buffers[name] = getattr(value, part)
        return twin(*[getattr(value, part) for value in visit.values])

    return Marked.of(visit.values, move("coordinates"), move("vectors"), unchanged=True)


def rearranged(visit: Visit) -> Marked:
    """The same for modules without numbers of their own."""
    coordinates = visit.module(*[value.coordinates for value in visit.values])
    vectors = visit.module(*[value.vectors for value in visit.values])
    return Marked.of(visit.values, coordinates, vectors, unchanged=True)


def repeated(visit: Visit) -> Marked | None:
    axis, times = visit.module.argument("dim"), visit.module.argument("repeats")
    if not isinstance(axis, int) or not isinstance(times, int):
        return None
    return visit.values[0].moved(lambda part: part.repeat_interleave(times, axis))


LENGTHS = ("linalg_vector_norm", "norm")


def added(visit: Visit) -> Marked | None:
    """A call: a number that is added to all has no axes to be turned to."""
    operands = visit.operands("self", "other")
    if operands is None or visit.module.argument("alpha", 1) != 1:
        return None
    own = [isinstance(visit.module.argument(name), Own) for name in ("self", "other")]
    return _with_constant(visit, *(operands[::-1] if own[0] else operands)) if any(own) else _sum(visit, *operands)


def joined(visit: Visit) -> Marked:
    return _sum(visit, *visit.values)


def shifted(visit: Visit) -> Marked:
    return _with_constant(visit, visit.values[0], visit.constant("bias"))


def _with_constant(visit: Visit, value: Marked, constant: Marked) -> Marked:
    """After a norm it keeps its mean."""
    if value.raw:
        return _sum(visit, value, constant)
    visit.search.keeping_means.add(visit.step.name)
    return _sum(visit, replace(value, settled=True), replace(constant, raw=False))


def _sum(visit: Visit, left: Marked, right: Marked) -> Marked:
    """What is added is turned alike."""
    shape = visit.shape
    left, right = (each.moved(lambda part: part.expand(shape)) for each in (left, right))
    visit.search.alike(left.coordinates, right.coordinates)
    vectors = left.vectors + mixed(right.vectors + visit.search.new_mark())
    return Marked.of([left, right], left.coordinates, vectors, unchanged=False)


def scaled(visit: Visit) -> Marked | None:
    """By a number, by a tensor of the step's own, or by another value."""
    left, right = (visit.module.argument(name) for name in ("self", "other"))
    if visit.module.argument("rounding_mode") is not None or (visit.module.op == "div" and left != Read(0)):
        return None
    if not isinstance(right, Read | Own):
        return _with_factor(visit, visit.values[0])
    for each in (left, right):
        if isinstance(each, Own):
            return _scaled_by_own(visit, each.name)
    return multiplied(visit)


def _scaled_by_own(visit: Visit, name: str) -> Marked:
    value, numbers = visit.values[0], getattr(visit.module, name)
    channels = value.shape[-1]
    is_gain = numbers.dim() > 0 and numbers.numel() == numbers.shape[-1] == channels > 1
    if is_gain and visit.module.op == "mul" and visit.shape == value.shape:
        return _gained(visit, ((name, 0),))
    return _with_factor(visit, value, visit.search.fixed(numbers.shape))


def multiplied(visit: Visit) -> Marked | None:
    """A value and itself, or two of which one has nothing to turn."""
    left, right = visit.values[0], visit.values[-1]
    if len(set(visit.step.reads)) == 1:
        return replace(left, squared=True) if getattr(visit.module, "op", "mul") == "mul" else None
    if left.moves and right.moves:
        return None
    return _with_factor(visit, *((right, left) if right.moves else (left, right)))


def squared(visit: Visit) -> Marked | None:
    if visit.module.op == "pow" and visit.module.argument("exponent") != 2:
        return None
    return replace(visit.values[0], squared=True)


def masked(visit: Visit) -> Marked | None:
    """Zeros at some places are a factor."""
    operands = visit.operands("self", "mask")
    if visit.module.argument("value") != 0 or operands is None or operands[1].moves:
        return None
    return _with_factor(visit, *operands)


def _with_factor(visit: Visit, value: Marked, factor: Marked | None = None) -> Marked:
    """Only numbers that have one factor in common stay one vector."""
    shape = visit.shape
    value = value.moved(lambda part: part.expand(shape))
    marks = value.vectors if factor is None else value.vectors + factor.vectors.expand(shape)
    return replace(value, vectors=mixed(marks + visit.search.new_mark()), unchanged=False)


def _gained(visit: Visit, tensors: Tensors) -> Marked:
    """A factor of its own for each number along the last axis, which a layer before or after may take in."""
    rows = visit.values[0].rows().coordinates
    visit.search.alike(rows, rows[:1])
    line = visit.search.write(visit.step.name, tensors, rows.shape[1:])
    visit.search.gains.append(Gain(visit.step.name, rows[0], line))
    return visit.written(line, -1)


def negated(visit: Visit) -> Marked:
    return _with_factor(visit, visit.values[0])


def cast(visit: Visit) -> Marked | None:
    dtype = visit.module.argument("dtype")
    return visit.values[0] if dtype is None or (isinstance(dtype, Dtype) and dtype.of().is_floating_point) else None


def normed(visit: Visit) -> Marked | None:
    """With a gain or a shift it writes coordinates of its own; without, vectors point where they did."""
    module, value, search = visit.module, visit.values[0], visit.search
    own = tuple((part.name, 0) for part in map(module.argument, ("weight", "bias")) if isinstance(part, Own))
    axes = len(module.argument("normalized_shape"))
    if own:
        search.stay(value)
        return _gained(visit, own) if axes == 1 else None
    if module.op == "layer_norm" and value.settled:
        return None
    lines = value.moved(lambda part: part.flatten(-axes))
    search.measure(lines)
    given = _with_factor(visit, value)  # one for each line, in which vectors are whole
    if module.op == "layer_norm":
        search.norms[visit.step.name] = lines.rows().coordinates.unique(dim=0)
        return replace(given, raw=False)
    search.with_mean(value)
    return given


def reduced(visit: Visit) -> Marked | None:
    """Sums are of numbers that are turned alike; of squares they are lengths."""
    module, value = visit.module, visit.values[0]
    axes = module.argument("dim")
    axes = range(len(value.shape)) if axes in (None, []) else axes if isinstance(axes, list) else [axes]
    if module.op in LENGTHS:
        usual = module.argument("ord", module.argument("p", 2)) in (2, None)
        return _measured(visit, value, axes) if usual and not value.squared else None
    return _measured(visit, value, axes) if value.squared else _averaged(visit, value, axes)


def averaged(visit: Visit) -> Marked:
    value = visit.values[0]
    axes = range(2, len(value.shape))
    return _measured(visit, value, axes) if value.squared else _averaged(visit, value, axes)


def _averaged(visit: Visit, value: Marked, axes: Sequence[int]) -> Marked:
    lines = value.moved(lambda part: _together(part, axes))
    visit.search.alike(lines.coordinates, lines.coordinates[:1])
    places = torch.arange(len(lines.vectors)).reshape(-1, *[1] * (lines.vectors.dim() - 1)) + visit.search.new_mark()
    vectors, shape = mixed(lines.vectors + places).sum(0), visit.shape
    is_mean = isinstance(visit.module, GlobalMean) or visit.module.op == "mean"
    return Marked.of([value], lines.coordinates[0].reshape(shape), vectors.reshape(shape), unchanged=is_mean)


def _measured(visit: Visit, value: Marked, axes: Sequence[int]) -> Marked:
    lines = value.moved(lambda part: _together(part, axes).movedim(0, -1))
    visit.search.measure(lines)
    visit.search.with_mean(lines)
    return visit.fixed()


def _together(numbers: Tensor, axes: Sequence[int]) -> Tensor:
    """Some axes as one, before all others."""
    return numbers.movedim(tuple(axes), tuple(range(len(axes)))).flatten(0, len(axes) - 1)


def matmul(visit: Visit) -> Marked | None:
    operands = visit.operands("self", "other" if visit.module.op == "matmul" else "mat2")
    if operands is None or min(len(each.shape) for each in operands) < 2:
        return None
    left, right = operands
    return contracted(visit.search, left, right.moved(lambda part: part.mT))


def by_letters(visit: Visit) -> Marked | None:
    operands = visit.tensors(visit.module.argument("tensors"))
    if operands is None or len(operands) != 2:
        return None
    return einsum(visit.search, visit.module.argument("equation"), *operands)


def attention(visit: Visit) -> Marked | None:
    """``softmax(Q K^T) V``: keys answer queries, and values are added."""
    operands, mask = visit.operands("query", "key", "value"), visit.module.argument("attn_mask")
    if operands is None:
        return None
    if isinstance(mask, Read):
        visit.search.stay(visit.values[mask.place])
    query, key, value = operands
    if visit.module.argument("enable_gqa"):
        times = query.shape[-3] // key.shape[-3]
        key, value = (each.moved(lambda part: part.repeat_interleave(times, -3)) for each in (key, value))
    shares = contracted(visit.search, query, key)
    return contracted(visit.search, visit.search.fixed(shares.shape), value.moved(lambda part: part.mT))
