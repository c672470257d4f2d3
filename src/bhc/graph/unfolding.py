"""Torch's kernels that do several things at once, taken apart into steps.

A whole recurrent network is a linear step and a recurrence a layer and direction; products with matrices of the
network's own are linear steps between others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from bhc.graph.steps import Constant, Known, Several, StepMaker, Value, concrete, depends_on_numbers
from bhc.layers import Recurrence
from bhc.layers.aten import AtenCall, Own
from bhc.layers.contractions import Letters
from bhc.layers.linear import with_numbers
from bhc.layers.sequences import CELLS, LONGEST_SEQUENCE, Cell

OUTPUTS, LAST_STATES = 0, 1  # among the results of a kernel
ZEROS, REPEATS = ("zeros", "zeros_like", "new_zeros"), ("expand", "repeat")
BY_CALL = {cell.call: cell for cell in CELLS.values()}

Results = tuple[Known | None, ...]


@dataclass(frozen=True)
class _Part:
    """One layer in one direction: what arrives is multiplied by ``driving``, the hidden state by ``weight``."""

    layer: int
    reverse: bool
    driving: Constant
    weight: Constant
    driving_bias: Constant | None
    bias: Constant | None

    def name(self, end: str, node: fx.Node) -> str:
        """As torch names its parameters, after the module that has them."""
        known = self.driving.name
        owner = node.name if known is None else known.rpartition(".")[0]
        return ".".join(filter(None, (owner, f"{end}_l{self.layer}" + ("_reverse" if self.reverse else ""))))

    def drive(self, cell: Cell) -> nn.Module:
        outputs, inputs = self.driving.numbers.shape
        bias = _sum([self.driving_bias, self.bias] if cell.sums else [self.driving_bias])
        return with_numbers(
            nn.Linear(inputs, outputs, bias=bias is not None, device="meta"), self.driving.numbers, bias
        )

    def recurrence(self, cell: Cell) -> nn.Module:
        bias = None if cell.sums else _sum([self.bias])
        module = Recurrence(cell.name, self.weight.numbers.shape[1], self.reverse, bias=bias is not None)
        return with_numbers(module, self.weight.numbers, bias)


def _sum(biases: Sequence[Constant | None]) -> Tensor | None:
    present = [bias.numbers for bias in biases if bias is not None]
    return sum(present[1:], present[0]) if present else None


def unfolded(maker: StepMaker, node: fx.Node, arguments: dict[str, Any]) -> Results | Several:
    """The results of a call that has several; of a kernel that can be taken apart, as steps give them."""
    cell = BY_CALL.get(str(node.target))
    if cell is None:
        return Several(node)
    obstacle = _obstacle(maker, node, arguments)
    return _layers(maker, node, arguments, cell) if obstacle is None else Several(node, obstacle)


def _obstacle(maker: StepMaker, node: fx.Node, arguments: dict[str, Any]) -> str | None:
    """Why a kernel stays whole."""
    source, states = arguments["input"], arguments["hx"]
    if not isinstance(source, Value) or not all(isinstance(weight, Constant) for weight in arguments["params"]):
        return "its weights are computed from the input"
    if arguments["train"]:
        return "it drops units when it is used"
    if not all(_is_zero(maker, state) for state in (states if isinstance(states, list) else [states])):
        return "its initial state is not zero"
    if any(user.args[1] not in (OUTPUTS, LAST_STATES) for user in node.users if user.users):
        return "its last cell state is read"
    if maker.shapes[source.name][1 if arguments["batch_first"] else 0] > LONGEST_SEQUENCE:
        return f"its sequences have more than {LONGEST_SEQUENCE:,} steps"
    expected = _directions(arguments) * arguments["num_layers"] * (4 if arguments["has_biases"] else 2)
    if len(arguments["params"]) != expected:
        return "its outputs are projected"
    return next(filter(None, (_shared(maker, node, part) for layer in _parts(arguments) for part in layer)), None)


def _shared(maker: StepMaker, node: fx.Node, part: _Part) -> str:
    return maker.why_whole(part.name("ih", node), part.driving) or maker.why_whole(part.name("hh", node), part.weight)


def _is_zero(maker: StepMaker, known: Known) -> bool:
    if isinstance(known, Constant):
        return not known.numbers.any()
    module = next((step.module for step in maker.made if isinstance(known, Value) and step.name == known.name), None)
    if not isinstance(module, AtenCall):
        return False
    own = [*module.parameters(), *module.buffers()]
    return module.op in ZEROS or (module.op in REPEATS and bool(own) and not any(numbers.any() for numbers in own))


def _directions(arguments: dict[str, Any]) -> int:
    return 2 if arguments["bidirectional"] else 1


def _parts(arguments: dict[str, Any]) -> Iterator[list[_Part]]:
    """Those of each layer, one for each direction."""
    numbers, size = iter(arguments["params"]), 4 if arguments["has_biases"] else 2
    for layer in range(arguments["num_layers"]):
        yield [
            _Part(layer, bool(direction), *([next(numbers) for _ in range(size)] + [None] * (4 - size)))
            for direction in range(_directions(arguments))
        ]


def _layers(maker: StepMaker, node: fx.Node, arguments: dict[str, Any], cell: Cell) -> Results:
    """All outputs and the last hidden states, with the axes where the kernel has them."""
    values: Value = arguments["input"]
    if not arguments["batch_first"]:
        values = _turned(maker, node, values)
    wanted = {user.args[1] for user in node.users if user.users}
    last: list[Value] = []
    for layer in _parts(arguments):
        given = [_direction(maker, node, part, cell, values) for part in layer]
        values = given[0] if len(given) == 1 else _joined(maker, node, given, axis=2)
        if LAST_STATES in wanted:
            last += [_last(maker, node, each, part) for each, part in zip(given, layer, strict=True)]
    if OUTPUTS in wanted and not arguments["batch_first"]:
        values = _turned(maker, node, values)
    return values, _joined(maker, node, last, axis=0) if last else None


def _direction(maker: StepMaker, node: fx.Node, part: _Part, cell: Cell, values: Value) -> Value:
    examples, steps, _ = maker.symbolic[values.name]
    gates, hidden = part.weight.numbers.shape
    ends = part.name("ih", node), part.name("hh", node)
    first, second = (
        maker.layer(node, module, end)
        for module, end in zip((part.drive(cell), part.recurrence(cell)), ends, strict=True)
    )
    drive = maker.emit(ends[0], first, [values], node, None, (examples, steps, gates))
    return maker.emit(ends[1], second, [drive], node, None, (examples, steps, hidden))


def _last(maker: StepMaker, node: fx.Node, given: Value, part: _Part) -> Value:
    """The state after the last step that was made, (1, N, H)."""
    examples, _, hidden = maker.symbolic[given.name]
    place = 0 if part.reverse else -1
    state = maker.move(node, "aten.select.int", given, [1, place], None, (examples, hidden))
    return maker.move(node, "aten.reshape.default", state, [[1, examples, hidden]], None, (1, examples, hidden))


def _turned(maker: StepMaker, node: fx.Node, values: Value) -> Value:
    """Examples and steps in each other's place."""
    first, second, *rest = maker.symbolic[values.name]
    return maker.move(node, "aten.permute.default", values, [[1, 0, 2]], None, (second, first, *rest))


def _joined(maker: StepMaker, node: fx.Node, values: list[Value], *, axis: int) -> Value:
    if len(values) == 1:
        return values[0]
    sizes = list(maker.symbolic[values[0].name])
    sizes[axis] = sum(concrete(maker.symbolic[value.name][axis]) for value in values)
    return maker.call(node, "aten.cat.default", {"tensors": values, "dim": axis}, None, shape=sizes)


def _bilinear(maker: StepMaker, node: fx.Node, arguments: dict[str, Any], value: Tensor) -> Value | None:
    """``y_o = sum_ij a_i w_oij b_j + c_o``: a linear layer makes (o, j) of ``a``, of which ``b`` takes the sum."""
    left, right, weight, bias = (arguments.get(name) for name in ("input1", "input2", "weight", "bias"))
    if not (isinstance(left, Value) and isinstance(right, Value) and isinstance(weight, Constant)):
        return None
    outputs, inputs, others = weight.numbers.shape
    flat = replace(weight, numbers=weight.numbers.mT.reshape(outputs * others, inputs))
    *places, _ = value.shape
    sizes = [*places, outputs, others], [*places, 1, others]
    named = {"input": left, "weight": flat, "bias": None}
    made = maker.call(node, "aten.linear.default", named, None, shape=[*places, outputs * others])
    made = maker.move(node, "aten.reshape.default", made, [sizes[0]], None, sizes[0])
    other = maker.move(node, "aten.reshape.default", right, [sizes[1]], None, sizes[1])
    made = maker.call(node, "aten.mul.Tensor", {"self": made, "other": other}, None, shape=sizes[0])
    made = maker.call(node, "aten.sum.dim_IntList", {"self": made, "dim": [-1]}, value)
    return made if bias is None else maker.call(node, "aten.add.Tensor", {"self": made, "other": bias}, value)


def _einsum(maker: StepMaker, node: fx.Node, arguments: dict[str, Any], value: Tensor) -> Value | None:
    """A sum over one axis of a value, of products with a matrix, is a linear layer along that axis."""
    letters, sides = Letters.of_equation(arguments["equation"]), arguments["tensors"]
    if letters is None or [type(side) for side in sides].count(Constant) != 1:
        return None
    (word, given), (own, matrix) = sorted(zip((letters.left, letters.right), sides, strict=True), key=_is_constant)
    summed = letters.summed
    if len(own) != 2 or not matrix.learned or len(summed) != 1 or not summed < {*word} or not summed < {*own}:
        return None
    (inner,), (outer,) = summed, {*own} - summed
    if outer in word:
        return None
    weight = matrix if own[0] == outer else replace(matrix, numbers=matrix.numbers.mT)
    sizes = dict(zip(word, maker.symbolic[given.name], strict=True)) | {outer: len(weight.numbers)}
    before, after = word.replace(inner, "") + inner, word.replace(inner, "") + outer
    made = _permuted(maker, node, given, word, before, sizes)
    named = {"input": made, "weight": weight, "bias": None}
    made = maker.call(node, "aten.linear.default", named, None, shape=[sizes[letter] for letter in after])
    return _permuted(maker, node, made, after, letters.out, sizes)


def _is_constant(side: tuple[str, Known]) -> bool:
    return isinstance(side[1], Constant)


def _permuted(maker: StepMaker, node: fx.Node, values: Value, word: str, wanted: str, sizes: dict[str, Any]) -> Value:
    """A value whose axes have letters, with these in another order."""
    order = [word.index(letter) for letter in wanted]
    if order == sorted(order):
        return values
    return maker.move(node, "aten.permute.default", values, [order], None, [sizes[letter] for letter in wanted])


def _baddbmm(maker: StepMaker, node: fx.Node, arguments: dict[str, Any], value: Tensor) -> Value | None:
    """``beta self + alpha batch1 @ batch2``, where nothing need be left out."""
    beta, alpha = (arguments.get(name, 1) for name in ("beta", "alpha"))
    if beta != 1:
        return None
    product = maker.call(
        node, "aten.bmm.default", {"self": arguments["batch1"], "mat2": arguments["batch2"]}, None, shape=value.shape
    )
    added = {"self": arguments["self"], "other": product, "alpha": alpha}
    return maker.call(node, "aten.add.Tensor", added, value)


def _gather(maker: StepMaker, node: fx.Node, arguments: dict[str, Any], value: Tensor) -> Value | None:
    """With an index that is the same for all examples: ``x[..., i, j]``, where that is not copied for each."""
    source, index = arguments["self"], arguments["index"]
    made = next((step.module for step in maker.made if isinstance(index, Value) and step.name == index.name), None)
    if not isinstance(made, AtenCall) or made.op != "expand" or not isinstance(made.argument("self"), Own):
        return None
    numbers, dim = getattr(made, made.argument("self").name), arguments["dim"] % value.dim()
    numbers = numbers.reshape(*[1] * (value.dim() - numbers.dim()), *numbers.shape)
    axes = [axis for axis, size in enumerate(numbers.shape) if size > 1 or axis == dim]
    shapes = maker.shapes[index.name], maker.shapes[source.name]
    alike = all(own == size or axis == dim for axis, (own, size) in enumerate(zip(*shapes, strict=True)))
    if not alike or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    picked = numbers.reshape([numbers.shape[axis] for axis in axes])
    indices: list[Constant | None] = [None] * axes[0]
    for place, axis in enumerate(axes):
        line = torch.arange(numbers.shape[axis]).reshape([-1 if at == place else 1 for at in range(len(axes))])
        indices.append(Constant(picked if axis == dim else line))
    return maker.call(node, "aten.index.Tensor", {"self": source, "indices": indices}, value)


@dataclass(frozen=True)
class MaskedPlaces:
    """``x[mask]``: the places of all examples that a mask picks, (picked, C); ``by_example`` (N, picked of each, C).

    How many there are depends on numbers, so it is no value. One of as many places of each example is.
    """

    source: Value  # (N, T, C)
    mask: Value  # (N, T)
    by_example: bool = False

    def after(self, maker: StepMaker, node: fx.Node, op: str, arguments: dict[str, Any]) -> "Known | MaskedPlaces":
        """What a call makes of them; BhcError where that has a size that depends on numbers."""
        value = node.meta["val"]
        if op in ("view", "reshape") and value.dim() == 3 and self._has_its_ends(maker, value):
            return replace(self, by_example=True)
        if self.by_example and op == "slice" and value.shape == node.args[0].meta["val"].shape:  # type: ignore[union-attr]
            return self
        if self.by_example and op == "select" and arguments["dim"] == 1:
            return self._place(maker, node, arguments["index"], value)
        raise depends_on_numbers()

    def _has_its_ends(self, maker: StepMaker, value: Tensor) -> bool:
        """Whether the first and last axis are those of the source: examples are then known to have as many places."""
        own = maker.symbolic[self.source.name]
        return str(value.shape[0]) == str(own[0]) and value.shape[2] == own[2]

    def _place(self, maker: StepMaker, node: fx.Node, place: int, value: Tensor) -> Value:
        """``sum_t [t is the place-th that the mask picks] x_t``, from the first or, under zero, from the last."""
        whole = maker.symbolic[self.source.name]
        each, one = whole[:2], (whole[0], 1)

        def call(op: str, shape: Sequence[Any], dtype: torch.dtype = torch.float32, **arguments: Any) -> Value:
            return maker.call(node, f"aten.{op}", arguments, torch.empty(0, dtype=dtype), shape=shape)

        picked = maker.call(
            node, "aten._to_copy.default", {"self": self.mask, "dtype": torch.float32}, None, shape=each
        )
        count = call("cumsum.default", each, self=picked, dim=1)
        if place < 0:
            total = call("sum.dim_IntList", one, self=picked, dim=[1], keepdim=True)
            count = call("sub.Tensor", each, self=count, other=total)
        there = call(
            "mul.Tensor", each, self=picked, other=call("eq.Scalar", each, torch.bool, self=count, other=place + 1)
        )
        column = maker.move(node, "aten.reshape.default", there, [[*each, 1]], None, [*each, 1])
        chosen = call("mul.Tensor", whole, self=self.source, other=column)
        return maker.call(node, "aten.sum.dim_IntList", {"self": chosen, "dim": [1]}, value)


def masked_places(maker: StepMaker, arguments: dict[str, Any]) -> MaskedPlaces | None:
    """``x[mask]`` with a mask of (N, T) for values of (N, T, C)."""
    source, indices = arguments["self"], arguments["indices"]
    if not isinstance(source, Value) or len(indices) != 1 or not isinstance(indices[0], Value):
        return None
    (mask,) = indices
    shapes = [maker.shapes[each.name] for each in (source, mask)]
    fits = maker.dtypes[mask.name] == torch.bool and len(shapes[0]) == 3 and shapes[0][:2] == shapes[1]
    return MaskedPlaces(source, mask) if fits else None


def _zeros_like(maker: StepMaker, node: fx.Node, arguments: dict[str, Any], value: Tensor) -> Value | None:
    """As large as a value, and not of its units."""
    if not isinstance(arguments["self"], Value):
        return None
    sized = {"self": arguments["self"], "size": list(value.shape), "dtype": value.dtype}
    return maker.call(node, "aten.new_zeros.default", sized, value)


Rewrite = Callable[[StepMaker, fx.Node, dict[str, Any], Tensor], Value | None]
# By operator: the steps that do the same; None where it stays one step.
REWRITES: dict[str, Rewrite] = {
    "bilinear": _bilinear,
    "einsum": _einsum,
    "baddbmm": _baddbmm,
    "zeros_like": _zeros_like,
    "gather": _gather,
}
