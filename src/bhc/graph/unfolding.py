"""Torch's kernels for whole recurrent networks, taken apart: a linear step and a recurrence a layer and direction."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from bhc.graph.steps import Constant, Known, Several, StepMaker, Value, concrete
from bhc.layers import Recurrence
from bhc.layers.aten import AtenCall
from bhc.layers.linear import with_numbers
from bhc.layers.recurrent import CELLS, LONGEST_SEQUENCE, Cell

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
