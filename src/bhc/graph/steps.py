"""From the calls of a captured program to steps of a graph: fixed numbers, values that steps give, sizes that may
change."""

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import Tensor, fx, nn

from bhc.errors import BhcError
from bhc.graph.graph import INPUT, Graph, Step
from bhc.graph.program import Exported, Uses
from bhc.layers import NetworkInput, Shape, Tied, Weighted, call_of, is_weighted, kinds_called
from bhc.layers.aten import AtenCall, Device, Dtype, Own, Read, SizeOf, flat, schema_of


@dataclass(frozen=True)
class Constant:
    """A tensor that does not depend on what the network is given."""

    numbers: Tensor
    name: str | None = None  # of the parameter that it is; None for what was made of several, or never learned
    learned: bool = False
    alone: bool = True  # whether its numbers are of one layer alone
    sources: frozenset[str] = frozenset()  # the parameters that it was made of


@dataclass(frozen=True)
class Value:
    """What a step gives, or the input."""

    name: str


@dataclass(frozen=True)
class Several:
    """What an operator gives that has more results than one."""

    node: fx.Node
    why: str = ""  # what could be cut elsewhere stays whole here


Known = Constant | Value | Several | tuple["Known | None", ...]


@dataclass
class Call:
    """A call as the kinds of layers see it (``layers.protocols.Captured``)."""

    target: str
    arguments: dict[str, Any]  # by the operator's names: values, constants, plain data
    arriving: tuple[Shape, ...]
    leaving: Shape
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def plain(self, name: str) -> Any:
        return self.arguments.get(name, self.defaults.get(name))

    def constant(self, name: str) -> Tensor | None:
        argument = self.arguments.get(name)
        if isinstance(argument, list):
            argument = next((part for part in argument if isinstance(part, Constant)), None)
        return argument.numbers if isinstance(argument, Constant) else None

    def is_value(self, name: str) -> bool:
        return isinstance(self.arguments.get(name), Value)


def numbers_of(argument: Any) -> Any:
    if isinstance(argument, Constant):
        return argument.numbers
    if isinstance(argument, list | tuple):
        return [numbers_of(part) for part in argument]
    return argument


def concrete(size: Any) -> int:
    """A size for the batch that was captured."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    if size.node.hint is None:
        raise depends_on_numbers()
    return int(size.node.hint)


def depends_on_numbers() -> BhcError:
    return BhcError(
        "the size of a value depends on the numbers in another",
        hint="sizes may depend on the batch alone: no x[mask], nonzero or unique",
    )


def size_of(size: torch.SymInt, reads: list[Value], maker: "StepMaker") -> int | SizeOf:
    """A symbolic size as that of a value among ``reads``; where there is none, of inputs, which then are."""
    expression = sympy.sympify(size.node.expr)
    if expression.is_number:
        return int(expression)
    for place, read in enumerate(reads):
        for axis, other in enumerate(maker.symbolic[read.name]):
            if isinstance(other, torch.SymInt):
                ratio = sympy.nsimplify(expression / other.node.expr)
                if ratio.is_Rational:
                    return SizeOf(((place, axis),), int(ratio.p), int(ratio.q))
    factor, rest = expression.as_coeff_Mul()
    powers, symbols = rest.as_powers_dict(), maker.exported.symbols
    sizes = [symbols[symbol] for symbol, power in powers.items() for _ in range(int(power)) if symbol in symbols]
    known = all(symbol in symbols and power.is_Integer and power > 0 for symbol, power in powers.items())
    if not known or not factor.is_Rational:
        raise BhcError(
            f"a size of {expression} cannot be written down",
            hint="sizes must be products of the batch's size and of whole numbers",
        )
    for place, _ in sizes:
        if maker.inputs[place] not in reads:
            reads.append(maker.inputs[place])
    axes = tuple((reads.index(maker.inputs[place]), axis) for place, axis in sizes)
    return SizeOf(axes, int(factor.p), int(factor.q))


MOST_IN_PARTS = 1 << 24  # numbers of a parameter whose parts are told from each other
PICKS = ("slice", "select", "narrow", "permute", "transpose", "t", "numpy_T", "T", "mT", "view", "reshape", "squeeze",
         "unsqueeze", "chunk", "split", "split_with_sizes", "unbind", "alias", "detach")  # fmt: skip
HOLDERS = (Graph, nn.Sequential, fx.GraphModule)  # steps become attributes of these


class StepMaker:
    """Makes steps and knows what each gives; those in ``whole`` may not be cut."""

    def __init__(self, exported: Exported, whole: Sequence[str]) -> None:
        self.exported, self.whole = exported, set(whole)
        self.made: list[Step] = []
        self.names: set[str] = set()
        self.shapes: dict[str, Shape] = {}  # of what every step gives
        self.dtypes: dict[str, torch.dtype] = {}
        self.symbolic: dict[str, Sequence[Any]] = {}  # sizes of every value as the program has them
        self.shared: dict[str, nn.Parameter] = {}  # by the network's names
        self.examples_come_first = True  # whether no step moves the first axis or merges it with another
        self.uses = Uses(exported)
        self.alone = _find_alone(exported, self.uses)
        self.layers: dict[tuple[fx.Node, str], nn.Module] = {}  # by the first call that uses their weights
        by_name = {node.name: node for node in exported.program.nodes if node.op == "placeholder"}
        self.inputs = tuple(self._input(place, by_name[name]) for place, name in enumerate(exported.inputs))

    def _input(self, place: int, node: fx.Node) -> Value:
        """What the network takes: one tensor as it is, of several each as a step."""
        examples = self.exported.examples
        if examples.is_plain:
            self._note(INPUT, node.meta["val"])
            return Value(INPUT)
        tensor, dynamic = examples.tensors[place], examples.dynamic[place]
        called = examples.names[place] if examples.by_name else node.name
        module = NetworkInput(called, place, tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."), dynamic)
        name = self._name(called)
        self.made.append(Step(name, module, (INPUT,)))
        self._note(name, node.meta["val"])
        return Value(name)

    def _note(self, name: str, value: Any) -> None:
        self.symbolic[name] = tuple(value.shape)
        self.shapes[name] = tuple(concrete(size) for size in value.shape)
        self.dtypes[name] = value.dtype

    def layer(self, node: fx.Node, module: nn.Module, part: str = "") -> nn.Module:
        """The layer of a call; one that does the same with the same weights as a call before is the same layer."""
        return self.layers.setdefault((self.uses.first[node], part), module) if is_weighted(module) else module

    def _transposed(self, name: str, node: fx.Node, arguments: dict[str, Any], value: Any) -> Value | None:
        """A product with the transpose of another layer's weights, and what is added; None where it is none."""
        layer = self.layers.get((self.uses.transposes.get(self.uses.first[node], node), ""))
        if layer is None or self.uses.first[node] not in self.uses.transposes:
            return None
        given = self.emit(name, Tied(layer), [arguments["input"]], node, value)
        bias = arguments.get("bias")
        return given if bias is None else self.call(node, "aten.add.Tensor", {"self": given, "other": bias}, value)

    def move(
        self, node: fx.Node, target: str, source: Known, arguments: list[Any], value: Any, shape: Any = None
    ) -> Value:
        if target == "aten.reshape.default":
            arguments = [_with_one_free(arguments[0])]
        named = dict(zip((each.name for each in schema_of(target).arguments), [source, *arguments], strict=False))
        return self.call(node, target, named, value, shape=shape)

    def call(
        self,
        node: fx.Node,
        target: str,
        arguments: dict[str, Any],
        value: Any,
        *,
        pick: int | None = None,
        shape: Sequence[Any] | None = None,
        why: str = "",
    ) -> Value:
        """The step of a call: a layer of a known kind, or the call itself, with ``why`` it stays whole."""
        size = tuple(value.shape) if shape is None else tuple(shape)
        reads = [part for part in flat(arguments.values()) if isinstance(part, Value)]
        leaving = tuple(map(concrete, size))
        name = self.called(node, arguments.get("weight"))
        if pick is None:
            arriving = tuple(self.shapes[read.name] for read in reads)
            defaults = {a.name: a.default_value for a in schema_of(target).arguments if a.has_default_value()}
            call = Call(target, arguments, arriving, leaving, defaults)
            for kind in kinds_called(target):
                if isinstance(kind, Weighted) and (why := self.why_whole(name, arguments["weight"])):
                    continue
                if isinstance(kind, Weighted) and (given := self._transposed(name, node, arguments, value)) is not None:
                    return given
                module = kind.captured(call)
                if module is not None:
                    return self.emit(name, self.layer(node, module), reads, node, value, size)
        module, sources = self._aten(target, arguments, pick)
        module.why = why
        return self.emit(name, module, sources, node, value, size)

    def why_whole(self, name: str, weight: Any) -> str:
        """Why the weights of a layer cannot be believed one by one; nothing where they can."""
        if _as_step(name) in self.whole:
            return "the first axis of what it reads is not the batch"
        if isinstance(weight, Constant) and not weight.alone:
            return "its weights are used in several ways"
        return ""

    def _aten(self, target: str, arguments: dict[str, Any], pick: int | None) -> tuple[AtenCall, list[Value]]:
        reads: list[Value] = []
        own: dict[str, Tensor] = {}
        # Who reads nothing else reads the input: it knows how many examples there are.
        if not any(isinstance(part, Value) for part in flat(arguments.values())):
            reads.append(self.inputs[0])
        made = {name: self._plain(argument, reads, own, arguments) for name, argument in arguments.items()}
        schema = {argument.name: argument for argument in schema_of(target).arguments}
        named = {name: value for name, value in made.items() if schema[name].kwarg_only}
        positional = [name for name in schema if not schema[name].kwarg_only]
        count = max((place for place, name in enumerate(positional, 1) if name in made), default=0)
        listed = [made[name] if name in made else schema[name].default_value for name in positional[:count]]
        dtypes = {
            place: str(self.dtypes[read.name]).removeprefix("torch.")
            for place, read in enumerate(reads)
            if self.dtypes[read.name] != torch.float32
        }
        kept = {name: value for name, value in named.items() if name not in ("memory_format", "layout", "pin_memory")}
        return call_of(target, listed, kept, own, pick, dtypes), reads

    def _plain(self, argument: Any, reads: list[Value], own: dict[str, Tensor], arguments: dict[str, Any]) -> Any:
        match argument:
            case Value():
                if argument not in reads:
                    reads.append(argument)
                return Read(reads.index(argument))
            case Constant():
                name = f"own{len(own)}"
                own[name] = self._own(argument)
                return Own(name)
            case torch.SymInt():
                for value in (part for part in flat(arguments.values()) if isinstance(part, Value)):
                    if value not in reads:
                        reads.append(value)
                return size_of(argument, reads, self)
            case torch.SymFloat() | torch.SymBool():
                raise BhcError(
                    f"a number that depends on sizes of the input: {argument}",
                    hint="sizes may be multiplied, not divided: fix the size, or take a mean in place of a sum over it",
                )
            case torch.dtype():
                return Dtype(str(argument).removeprefix("torch."))
            case torch.device():
                return Device()
            case list() | tuple():
                return [self._plain(part, reads, own, arguments) for part in argument]
            case torch.memory_format() | torch.layout():
                return None
        return argument

    def _own(self, constant: Constant) -> Tensor:
        """Numbers of a step's own; the same ones for all that use one parameter."""
        if not constant.learned:
            return constant.numbers
        own = nn.Parameter(constant.numbers, requires_grad=False)
        if constant.name is None:
            return own
        return self.shared.setdefault(self.exported.aliases.get(constant.name, constant.name), own)

    def emit(
        self, name: str, module: nn.Module, reads: Sequence[Known], node: fx.Node, value: Any = None, shape: Any = None
    ) -> Value:
        own = self._name(name)
        self.made.append(Step(own, module, tuple(read.name for read in reads if isinstance(read, Value))))
        value = node.meta["val"] if value is None and shape is None else value
        size = tuple(value.shape) if shape is None else tuple(shape)
        self.symbolic[own] = size
        batch = self.symbolic[self.inputs[0].name][0]
        moved = isinstance(module, AtenCall) and module.op == "permute" and module.argument("dims")[0] != 0
        self.examples_come_first &= not moved and str(size[0] if size else None) == str(batch)
        self.shapes[own] = tuple(map(concrete, size))
        self.dtypes[own] = value.dtype if isinstance(value, Tensor) else torch.float32
        return Value(own)

    def called(self, node: fx.Node, weight: Any = None) -> str:
        """By the user's module where it is one call, by the parameter where it is a layer, by the operator else."""
        path = self.exported.paths.get(node)
        if path is None and isinstance(weight, Constant) and weight.name is not None:
            path = weight.name.removesuffix(".weight")
        return node.name if path is None else path

    def _name(self, wanted: str) -> str:
        name = _as_step(wanted)
        free = name
        count = 1
        while free in self.names or free == "training" or any(hasattr(kind, free) for kind in HOLDERS):
            free, count = f"{name}_{count}", count + 1
        self.names.add(free)
        return free


def _find_alone(exported: Exported, shared: Uses) -> dict[fx.Node, bool]:
    """Of each constant whether its numbers, of a parameter, of a part of it, or of several, are of one layer alone."""
    made, uses = _count_uses(exported)
    parts = _parts(exported, {name for name, count in uses.items() if count > 1})
    alone = {}
    for node, sources in made.items():
        known = all(uses[name] <= 1 or (node in parts and parts[node]) for name in sources)
        named = {*exported.aliases, *exported.aliases.values()} & sources
        alone[node] = (known and not named) or all(map(shared.are_of_one_layer, sources))
    return alone


def _count_uses(exported: Exported) -> tuple[dict[fx.Node, frozenset[str]], Counter[str]]:
    """Of each constant the parameters that it is made of, and how many calls that read values need each of these."""
    made: dict[fx.Node, frozenset[str]] = {}
    uses: Counter[str] = Counter()
    for node in exported.program.nodes:
        if node.op == "placeholder" and node.name in exported.constants:
            name = exported.parameters.get(node.name)
            made[node] = frozenset() if name is None else frozenset({name})
        elif node.op == "call_function":
            sources = frozenset().union(*(made.get(source, frozenset()) for source in node.all_input_nodes))
            if all(source in made for source in node.all_input_nodes):
                made[node] = sources
            else:
                uses.update(sources)
    return made, uses


def _parts(exported: Exported, names: set[str]) -> dict[fx.Node, bool]:
    """Of parameters that are used more than once, and of what is picked of them: whether it meets no other use."""
    places: dict[fx.Node, tuple[str, Any]] = {}  # of each the name of its parameter, and which numbers of that it is
    counts: dict[str, Tensor] = {}
    for node in exported.program.nodes:
        name = exported.parameters.get(node.name, "")
        if node.op == "placeholder" and name in names and exported.constants[node.name].numel() <= MOST_IN_PARTS:
            numbers = exported.constants[node.name]
            places[node] = name, torch.arange(numbers.numel()).reshape(numbers.shape)
            counts[name] = torch.zeros(numbers.numel(), dtype=torch.int32)
        elif node.op == "call_function":
            _note_use(node, places, counts)
    return {
        node: not isinstance(index, Tensor) or int(counts[name][index.flatten()].max()) <= 1
        for node, (name, index) in places.items()
    }


def _note_use(node: fx.Node, places: dict[fx.Node, tuple[str, Any]], counts: dict[str, Tensor]) -> None:
    """What is picked of a parameter is followed; all else is a use of its numbers."""
    sources = [source for source in node.all_input_nodes if source in places]
    if len(node.all_input_nodes) == len(sources) == 1 and _picks(node):
        name, index = places[sources[0]]
        arguments = fx.map_arg((node.args, node.kwargs), lambda _: index)
        places[node] = name, node.target(*arguments[0], **arguments[1])  # type: ignore[operator]
        return
    for source in sources:
        name, index = places[source]
        for part in flat([index]):
            counts[name][part.flatten().unique()] += 1


def _picks(node: fx.Node) -> bool:
    target = str(node.target)
    return node.target is operator.getitem or (target.count(".") == 2 and target.split(".")[1] in PICKS)


def _with_one_free(sizes: Sequence[Any]) -> list[Any]:
    """Sizes of a reshape: one that depends on the batch follows from the others."""
    if sum(isinstance(size, torch.SymInt) for size in sizes) != 1:
        return list(sizes)
    return [-1 if isinstance(size, torch.SymInt) else size for size in sizes]


def _as_step(name: str) -> str:
    return name.replace(".", "_")
