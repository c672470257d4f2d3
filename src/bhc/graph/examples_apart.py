"""Where examples share an axis with heads, as ``bmm`` wants them, they get one of their own.

Attention is often written with values of (B H, T, d): a product of matrices has one axis beside theirs. Nothing can be
cut along an axis that counts examples too, so such values become (B, H, T, d), from the step that puts the two together
to the one that takes them apart again. Where a step on the way has no rule here, it reads them together, as before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import sympy
import torch
from torch import nn

from bhc.graph.graph import Graph, Step, output_shape
from bhc.layers import Movement, Shape, call_of, kind_of
from bhc.layers.aten import AtenCall, Own, Read, SizeOf, flat
from bhc.layers.call_families import Pointwise
from bhc.layers.calls import with_own
from bhc.layers.elementwise import Add, Multiply
from bhc.layers.kind import Elementwise, fixed
from bhc.layers.pools import AlongAxes
from bhc.layers.reshape import Flattening

PRODUCTS = ("bmm", "matmul")
Size = Any  # of an axis: a whole number, or an expression where it depends on the batch's
Pieces = tuple[tuple[Size, ...], ...]  # by axis: the sizes of what lies along it, the outer ones first


@dataclass(frozen=True)
class _Apart:
    """A step for values whose examples have an axis of their own."""

    module: nn.Module | None  # None: it gives what it reads
    wanted: tuple[Pieces, ...]  # of each value that it reads
    given: Pieces


def examples_apart(
    graph: Graph, shapes: Mapping[str, Shape], symbolic: Mapping[str, Sequence[Any]]
) -> tuple[Graph, dict[str, Shape]]:
    """The same function, and the shapes of what its steps give; ``symbolic`` are sizes as the program has them."""
    sizes = {name: tuple(map(_expression, own)) for name, own in symbolic.items()}
    found = _near_products(graph, _found(graph, sizes))
    if not found:
        return graph, dict(shapes)
    rewriting = _Rewriting(shapes, sizes)
    for step in graph.steps:
        rewriting.add(step, found.get(step.name))
    rewriting.end(graph.last_step)
    return _with_own_factors(Graph(rewriting.steps)), rewriting.shapes


def _with_own_factors(graph: Graph) -> Graph:
    """Numbers that are repeated for every example and multiplied with something are the product's own."""
    steps: dict[str, Any] = {step.name: step for step in graph.steps}

    def own_numbers(name: str) -> torch.Tensor | None:
        """Those that a value is, (1, ...), with the axis of the examples first."""
        module = steps[name].module if name in steps else None
        if not isinstance(module, Movement):
            return None
        if module.op == "repeat" and isinstance(module.argument("self"), Own):
            numbers = getattr(module, module.argument("self").name)
            return (
                numbers if len(numbers) == 1 and module.argument("repeats")[1:] == [1] * (numbers.dim() - 1) else None
            )
        if module.op != "permute" or module.argument("dims")[0] != 0:
            return None
        turned = own_numbers(steps[name].reads[0])
        return None if turned is None else turned.permute(module.argument("dims"))

    def multiplied(step: Step) -> Step:
        module: Any = step.module
        if getattr(module, "op", "") != "matmul" or module.arguments != [Read(0), Read(1)]:
            return step
        numbers = own_numbers(step.reads[1])
        if numbers is None:
            return step
        product = call_of("aten.matmul.default", [Read(0), Own("own0")], None, {"own0": fixed(numbers)})
        return Step(step.name, product, step.reads[:1])

    return Graph(multiplied(step) for step in graph.steps)


def _expression(size: Any) -> Size:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _whole(sizes: Sequence[Size]) -> Pieces:
    return tuple((size,) for size in sizes)


def _is_apart(pieces: Pieces) -> bool:
    return any(len(own) > 1 for own in pieces)


def _line(pieces: Pieces) -> list[Size]:
    return [size for own in pieces for size in own]


def _starts(pieces: Pieces) -> list[int]:
    """The place of each axis among those of the pieces."""
    return list(accumulate((len(own) for own in pieces), initial=0))


def _found(graph: Graph, sizes: Mapping[str, Sequence[Size]]) -> dict[str, _Apart]:
    """What every step can be that reads or gives examples together with something else."""
    pieces = {name: _whole(own) for name, own in sizes.items()}
    found: dict[str, _Apart] = {}
    for step in graph.steps:
        rule, given = _rule(step.module), [pieces.get(name, ()) for name in step.reads]
        begins = rule in (_reshaped, _repeated)
        if rule is None or not all(given) or not (begins or any(map(_is_apart, given))):
            continue
        apart = rule(step.module, given, sizes[step.name])
        if apart is None or not any(map(_is_apart, (*apart.wanted, apart.given))):
            continue
        ends = zip((*apart.wanted, apart.given), (*step.reads, step.name), strict=True)
        if all(_can_be_moved(own, _whole(sizes[name])) for own, name in ends):
            found[step.name], pieces[step.name] = apart, apart.given
    return found


def _can_be_moved(pieces: Pieces, whole: Pieces) -> bool:
    lines = _line(pieces), _line(whole)
    return _written(*lines) is not None and _written(*reversed(lines)) is not None


def _near_products(graph: Graph, found: Mapping[str, _Apart]) -> dict[str, _Apart]:
    """Those that are joined with a product of matrices by values that are taken apart."""
    steps = {step.name: step for step in graph.steps}
    ahead = [name for name in found if getattr(steps[name].module, "op", "") in PRODUCTS]
    near: dict[str, _Apart] = {}
    while ahead:
        name = ahead.pop()
        if name in found and name not in near:
            near[name] = found[name]
            ahead += [source for source in steps[name].reads if source in found and _is_apart(found[source].given)]
            ahead += [reader for reader in graph.readers[name] if _is_apart(found[name].given)]
    return near


Rule = Callable[[Any, Sequence[Pieces], Sequence[Size]], _Apart | None]


def _rule(module: nn.Module) -> Rule | None:
    kind = kind_of(module)
    if isinstance(kind, Flattening) or (isinstance(module, Movement) and module.op == "reshape"):
        return _reshaped
    if isinstance(module, Movement):
        rules: dict[str, Rule] = {"slice": _along, "select": _along, "permute": _permuted, "repeat": _repeated}
        return (rules | {"index": _indexed}).get(module.op)
    if isinstance(module, AlongAxes):
        return _along
    if isinstance(module, AtenCall) and module.op in PRODUCTS:
        return _multiplied
    if isinstance(module, Pointwise | Add | Multiply):
        return _met
    if isinstance(module, nn.Linear):
        return _linear
    return _met if isinstance(kind, Elementwise) and not list(module.parameters()) else None


def _reshaped(module: Any, given: Sequence[Pieces], leaving: Sequence[Size]) -> _Apart | None:
    source = _line(given[0])
    pieces = _split(source, leaving)
    if pieces is None:
        return None
    target = _line(pieces)
    sizes = _written(target, source)
    same = [size for size in source if size != 1] == [size for size in target if size != 1]
    if same and len(source) == len(target):
        return _Apart(None, tuple(given), pieces)
    return None if sizes is None else _Apart(_reshape(sizes), tuple(given), pieces)


def _split(source: Sequence[Size], target: Sequence[Size]) -> Pieces | None:
    """The sizes of a reshape, those with examples among others as what of the source lies along them."""
    left, found = [size for size in source if size != 1], []
    for size in target:
        own: list[Size] = []
        rest = size
        while rest != 1:
            part = _common(left[0], rest) if left else None
            if part is None:
                return None
            own.append(part)
            rest, left[0] = rest / part, left[0] / part
            left = left[1:] if left[0] == 1 else left
        together = len(own) > 1 and any(not part.is_number for part in own)
        found.append(tuple(own) if together else (size,))
    return tuple(found)


def _common(left: Size, right: Size) -> Size | None:
    """The one of two sizes that divides the other."""
    return next((one for one, other in ((left, right), (right, left)) if _is_product(other / one)), None)


def _is_product(size: Size) -> bool:
    factor, rest = size.as_coeff_Mul()
    return bool(factor.is_Integer) and all(power.is_Integer and power > 0 for power in rest.as_powers_dict().values())


def _written(target: Sequence[Size], source: Sequence[Size]) -> list[int | SizeOf] | None:
    """Sizes as the argument of a reshape; None where they cannot be told from what is reshaped."""
    if sum(not size.is_number for size in target) == 1:
        return [int(size) if size.is_number else -1 for size in target]
    sizes = [int(size) if size.is_number else _size_of(size, source) for size in target]
    return None if None in sizes else sizes  # type: ignore[return-value]


def _size_of(size: Size, source: Sequence[Size]) -> SizeOf | None:
    ratios = ((axis, size / other) for axis, other in enumerate(source) if not other.is_number)
    return next((SizeOf(((0, axis),), int(by.p), int(by.q)) for axis, by in ratios if by.is_Rational), None)


def _reshape(sizes: Sequence[Any]) -> nn.Module:
    return call_of("aten.reshape.default", [Read(0), list(sizes)])


def _permuted(module: Movement, given: Sequence[Pieces], leaving: Sequence[Size]) -> _Apart:
    (pieces,), starts = given, _starts(given[0])
    dims = [axis % len(pieces) for axis in module.argument("dims")]
    order = [place for axis in dims for place in range(starts[axis], starts[axis + 1])]
    return _Apart(module.with_arguments(dims=order), (pieces,), tuple(pieces[axis] for axis in dims))


def _along(module: AtenCall, given: Sequence[Pieces], leaving: Sequence[Size]) -> _Apart | None:
    """What works along some axes of one value, which have nothing beside them."""
    dim = module.argument("dim")
    if len(given) != 1 or dim is None or dim == [] or any(isinstance(part, SizeOf) for part in flat(module.arguments)):
        return None
    (pieces,), starts = given, _starts(given[0])
    axes = [axis % len(pieces) for axis in (dim if isinstance(dim, list) else [dim])]
    if any(len(pieces[axis]) > 1 for axis in axes):
        return None
    rest = [axis for axis in range(len(pieces)) if axis not in axes]
    kept = range(len(pieces)) if len(leaving) == len(pieces) else rest
    own = tuple((size,) if axis in axes else pieces[axis] for axis, size in zip(kept, leaving, strict=True))
    moved = [starts[axis] for axis in axes]
    return _Apart(module.with_arguments(dim=moved if isinstance(dim, list) else moved[0]), (pieces,), own)


def _indexed(module: Movement, given: Sequence[Pieces], leaving: Sequence[Size]) -> _Apart | None:
    """Numbers that are picked along the last axes, by as many indices."""
    (pieces, *others), indices = given, module.argument("indices")
    first = next(axis for axis, index in enumerate(indices) if index is not None)
    plain = not others and len(indices) == len(pieces) == len(leaving) and None not in indices[first:]
    if not plain or _is_apart(pieces[first:]):
        return None
    placed = [*[None] * len(_line(pieces[:first])), *indices[first:]]
    return _Apart(module.with_arguments(indices=placed), (pieces,), (*pieces[:first], *_whole(leaving[first:])))


def _repeated(module: Movement, given: Sequence[Pieces], leaving: Sequence[Size]) -> _Apart | None:
    """Numbers of its own that are there once for each example."""
    own, times = module.argument("self"), module.argument("repeats")
    if not isinstance(own, Own) or not isinstance(times[0], SizeOf) or any(count != 1 for count in times[1:]):
        return None
    numbers = getattr(module, own.name)
    if numbers.dim() != len(leaving) or len(numbers) == 1:
        return None
    examples = leaving[0] / len(numbers)
    repeated = with_own(module.with_arguments(repeats=[times[0], 1, *times[1:]]), {own.name: numbers[None]})
    return _Apart(repeated, tuple(given), ((examples, sympy.Integer(len(numbers))), *_whole(leaving[1:])))


def _linear(module: nn.Linear, given: Sequence[Pieces], leaving: Sequence[Size]) -> _Apart | None:
    (pieces,) = given
    return _Apart(module, (pieces,), (*pieces[:-1], (leaving[-1],))) if len(pieces[-1]) == 1 else None


def _multiplied(module: AtenCall, given: Sequence[Pieces], leaving: Sequence[Size]) -> _Apart | None:
    """Products of the matrices of each example and head; examples come first."""
    if len(given) != len([part for part in module.arguments if isinstance(part, Read)]):
        return None
    first = next((pieces[0] for pieces in given if len(pieces[0]) > 1), None)
    alike = all(len(pieces) == 3 and not _is_apart(pieces[1:]) for pieces in given)
    if (
        first is None
        or first[0].is_number
        or not alike
        or any(pieces[0] not in (first, _together(first)) for pieces in given)
    ):
        return None
    product = call_of("aten.matmul.default", list(module.arguments))
    return _Apart(product, tuple((first, *pieces[1:]) for pieces in given), (first, *_whole(leaving[1:])))


def _together(own: Sequence[Size]) -> tuple[Size]:
    return (sympy.prod(own),)


def _met(module: nn.Module, given: Sequence[Pieces], leaving: Sequence[Size]) -> _Apart | None:
    """Number by number: all are taken apart as the first one is along each axis; one number for all stays one."""
    pieces: list[tuple[Size, ...]] = []
    for axis, size in zip(range(-len(leaving), 0), leaving, strict=True):
        apart = {own[axis] for own in given if len(own) >= -axis and len(own[axis]) > 1}
        if len(apart) > 1 or (apart and _together(*apart) != (size,)):
            return None
        pieces.append(next(iter(apart), (size,)))
    wanted = tuple(_spread(own, pieces) for own in given)
    if isinstance(module, Multiply) and not all(len(own) == len(leaving) for own in wanted):
        return None
    made: nn.Module = module
    if isinstance(module, AtenCall):
        own = {name: _own_spread(numbers, pieces) for name, numbers in module.named_own()}
        changed = any(own[name] is not numbers for name, numbers in module.named_own())
        made = with_own(module, own) if changed else module
    elif isinstance(module, Multiply):
        made = call_of("aten.mul.Tensor", [Read(0), Read(1)])
    return _Apart(made, wanted, tuple(pieces))


def _spread(own: Pieces, pieces: Sequence[tuple[Size, ...]]) -> Pieces:
    """A value that is broadcast, with the axes of what it meets."""
    met = pieces[len(pieces) - len(own) :]
    one = sympy.Integer(1)
    return tuple((one,) * len(other) if each == (one,) else other for each, other in zip(own, met, strict=True))


def _own_spread(numbers: torch.Tensor, pieces: Sequence[tuple[Size, ...]]) -> torch.Tensor:
    """Numbers of a step's own, which are the same for all examples, with these axes."""
    met = pieces[len(pieces) - numbers.dim() :] if numbers.dim() else ()
    if not _is_apart(tuple(met)):
        return numbers
    shape = [size for own, other in zip(numbers.shape, met, strict=True) for size in (own, *[1] * (len(other) - 1))]
    return numbers.reshape(shape)


class _Rewriting:
    """Goes through a graph once, with the steps that were found in the place of others."""

    def __init__(self, shapes: Mapping[str, Shape], sizes: Mapping[str, Sequence[Size]]) -> None:
        self.shapes, self.sizes = dict(shapes), sizes
        self.steps: list[Step] = []
        self.names: dict[str, str] = {}  # by value: the step that gives it now
        self.forms: dict[str, Pieces] = {}  # of values that are taken apart
        self.moved: dict[tuple[str, tuple[Size, ...]], str] = {}

    def add(self, step: Step, apart: _Apart | None) -> None:
        wanted = [_whole(self.sizes.get(name, ())) for name in step.reads] if apart is None else apart.wanted
        reads = tuple(self._value(name, pieces) for name, pieces in zip(step.reads, wanted, strict=True))
        module = step.module if apart is None else apart.module
        if apart is not None:
            self.forms[step.name] = apart.given
        if module is None:
            (self.names[step.name],) = reads
        else:
            self._emit(step.name, module, reads)

    def end(self, name: str) -> None:
        """The result is what it was, and the last step."""
        last = self._value(name, _whole(self.sizes[name]))
        if last != self.steps[-1].name:
            self._emit(f"{name}_result", _reshape([-1, *self.shapes[last][1:]]), (last,))

    def _value(self, name: str, wanted: Pieces) -> str:
        """What a step gives, with axes as they are wanted."""
        form, source = self.forms.get(name, _whole(self.sizes.get(name, ()))), self.names.get(name, name)
        key = source, tuple(_line(wanted))
        if _line(form) == _line(wanted):
            return source
        if key not in self.moved:
            sizes = _written(_line(wanted), _line(form))
            assert sizes is not None, "was looked at before"
            self.moved[key] = self._emit(
                f"{source}_{'apart' if _is_apart(wanted) else 'together'}", _reshape(sizes), (source,)
            )
        return self.moved[key]

    def _emit(self, name: str, module: nn.Module, reads: tuple[str, ...]) -> str:
        while any(step.name == name for step in self.steps):
            name += "_"
        self.steps.append(Step(name, module, reads))
        self.shapes[name] = output_shape(module, *[self.shapes.get(read, ()) for read in reads])
        return name
