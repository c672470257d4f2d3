"""From any module to a graph of steps, by way of ``torch.export``."""

import copy
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from bhc.errors import BhcError
from bhc.graph.checks import check_batches, check_runs_alike, in_double_precision
from bhc.graph.examples import DynamicAxes
from bhc.graph.exporting import Exported, export
from bhc.graph.folding import tidy
from bhc.graph.graph import INPUT, Graph, Step
from bhc.graph.sizes import Sizes, concrete
from bhc.layers import Affine, Embed, Given, Shape, Weighted, call_of, kinds_called
from bhc.layers.aten import AtenCall, Device, Dtype, Own, Read

HOLDERS = (Graph, nn.Sequential, fx.GraphModule)  # steps become attributes of these
NORMS = ("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default")
SAME = (  # they do nothing when a network is used
    "clone", "contiguous", "alias", "detach", "lift_fresh_copy", "lift", "dropout", "feature_dropout", "alpha_dropout",
    "feature_alpha_dropout", "native_dropout", "view_as_real_copy",
)  # fmt: skip
RESHAPES = ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_copy",
            "_reshape_alias", "unsqueeze_copy", "squeeze_copy")  # fmt: skip
TURNS = ("transpose", "permute", "t", "movedim", "swapaxes", "swapdims", "numpy_T", "mT", "moveaxis", "transpose_copy",
         "permute_copy", "matrix_H", "T")  # fmt: skip
PIECES = ("split", "split_with_sizes", "chunk", "unbind", "tensor_split", "unsafe_split", "unsafe_chunk",
          "unsafe_split_with_sizes")  # fmt: skip
REMARKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
           "sym_constrain_range_for_size", "_functional_assert_async")  # fmt: skip


UNCHANGED = (*RESHAPES, "to", "_to_copy", "type_as", "expand", "expand_as", "float")  # where shape and dtype stay


@dataclass(frozen=True)
class Constant:
    """A tensor that does not depend on what the network is given."""

    numbers: Tensor
    name: str | None = None  # of the parameter that it is; None for what was made of several, or never learned
    learned: bool = False
    sources: frozenset[str] = frozenset()  # the parameters that it was made of


@dataclass(frozen=True)
class Value:
    """What a step gives, or the input."""

    name: str


@dataclass(frozen=True)
class Several:
    """What an operator gives that has more results than one."""

    node: fx.Node


Known = Constant | Value | Several | tuple[Constant, ...]


@dataclass
class Call:
    """A call as the kinds of layers see it (``layers.asked.Captured``)."""

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


def capture(
    net: nn.Module, example_input: Any, *, output: str | int | None = None, dynamic_axes: DynamicAxes = ()
) -> Graph:
    """The graph that computes what ``net`` computes in eval mode; ``net`` itself is left alone.

    Several inputs are a tuple of tensors, or a dict of them by name. Of several results ``output`` is the one that
    counts: its place, or its name. Along ``dynamic_axes`` inputs may have another size than the example.
    """
    exported = export(net, example_input, output=output, dynamic_axes=dynamic_axes)
    reader = _Reader(exported)
    graph = _ready(_graph(reader))
    check_runs_alike(exported, graph, lambda: in_double_precision(_graph(_Reader(exported))))
    whole = () if reader.examples_come_first else check_batches(graph, exported)
    if whole:  # their examples do not come one after the other, so that no context's can be told apart
        graph = _ready(_graph(_Reader(exported, whole=whole)))
    graph.original = exported.count()
    return graph


def _ready(graph: Graph) -> Graph:
    return graph.float().eval().requires_grad_(False)


def _graph(reader: "_Reader") -> Graph:
    steps, examples = reader.steps(), reader.exported.examples
    if examples.is_plain:
        steps = _as_numbers(steps, examples.tensors[0].dtype)
    return tidy(Graph(steps), reader.shapes)


def _as_numbers(steps: list[Step], dtype: torch.dtype) -> list[Step]:
    """Words come as numbers of any dtype; who computes with them gets whole ones, as the network does."""
    readers = [step.name for step in steps if INPUT in step.reads and isinstance(step.module, AtenCall)]
    if dtype.is_floating_point or not readers:
        return steps
    name = str(dtype).removeprefix("torch.")
    cast = call_of("aten._to_copy.default", [Read(0)], {"dtype": Dtype(name)}, {}, None, {})
    first = "numbers"
    while any(step.name == first for step in steps):
        first += "_"
    rewired = [
        Step(step.name, step.module, tuple(first if read == INPUT else read for read in step.reads))
        if step.name in readers
        else step
        for step in steps
    ]
    return [Step(first, cast, (INPUT,)), *rewired]


class _Reader:
    """Goes through a program and makes steps of its calls."""

    def __init__(self, exported: Exported, *, whole: Sequence[str] = ()) -> None:
        self.exported, self.whole = exported, set(whole)
        self.known: dict[fx.Node, Known] = {}
        self.shapes: dict[str, Shape] = {}  # of what every step gives
        self.dtypes: dict[str, torch.dtype] = {}
        self.sizes = Sizes(exported.symbols)
        self.symbolic: dict[str, Sequence[Any]] = {}  # sizes of every value as the program has them
        self.names: set[str] = set()
        self.made: list[Step] = []
        self.shared: dict[str, nn.Parameter] = {}  # by the network's names
        self.examples_come_first = True  # whether no step moves the first axis or merges it with another
        self.uses = Counter(
            source.name
            for node in exported.program.nodes
            for source in node.all_input_nodes
            if source.op == "placeholder"
        )

        by_name = {node.name: node for node in exported.program.nodes if node.op == "placeholder"}
        self.inputs = tuple(self._given(place, by_name[name]) for place, name in enumerate(exported.given))

    def steps(self) -> list[Step]:
        """Up to the one that gives the result: what comes later serves other results."""
        for node in self.exported.program.nodes:
            if node.op == "placeholder":
                self._input(node)
            elif node.op == "call_function":
                self.known.update(self._read(node))
        result = self.known[self.exported.result]
        if not isinstance(result, Value):
            raise BhcError("what the network returns does not depend on what it is given")
        names = [step.name for step in self.made]
        return self.made[: names.index(result.name) + 1] if result.name in names else []

    def _input(self, node: fx.Node) -> None:
        numbers = self.exported.constants.get(node.name)
        if numbers is not None:
            name = self.exported.parameters.get(node.name)
            precise = numbers.detach().double() if numbers.dtype == torch.float32 else numbers.detach()
            sources = frozenset() if name is None else frozenset({name})
            self.known[node] = Constant(precise, name, name is not None, sources)  # rounded when all is complete
            return
        self.known[node] = self.inputs[self.exported.given.index(node.name)]

    def _given(self, place: int, node: fx.Node) -> Value:
        """What the network takes: one tensor as it is, of several each as a step."""
        examples = self.exported.examples
        if examples.is_plain:
            self._note(INPUT, node.meta["val"])
            return Value(INPUT)
        tensor, dynamic = examples.tensors[place], examples.dynamic[place]
        module = Given(place, tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."), dynamic)
        name = self._name(examples.names[place] if examples.by_name else node.name)
        self.made.append(Step(name, module, (INPUT,)))
        self._note(name, node.meta["val"])
        return Value(name)

    def _note(self, name: str, value: Any) -> None:
        self.symbolic[name] = tuple(value.shape)
        self.shapes[name] = tuple(concrete(size) for size in value.shape)
        self.dtypes[name] = value.dtype

    # One call after the other.

    def _read(self, node: fx.Node) -> dict[fx.Node, Known]:
        whole = self.exported.modules.get(node)
        if whole is not None:  # a module of a registered kind, captured as one
            if node is not whole.last:
                return {}
            own = copy.deepcopy(whole.module).double()
            return {node: self._emit(whole.name, own, [self._value(read) for read in whole.reads], node)}
        if node.target is operator.getitem:
            return self._picked(node)
        value = node.meta.get("val")
        target = str(node.target)
        op = target.split(".")[1] if target.count(".") == 2 else target
        if op in REMARKS or not isinstance(value, Tensor | tuple | list):
            return {}
        arguments = self._arguments(node)
        constants = self._folded(node, arguments)
        if constants is not None:
            return {node: constants}
        if not isinstance(value, Tensor):
            return {node: Several(node)}
        rebound = node.args[0] if _writes(node) else None
        made = self._made(node, op, arguments, value)
        return {node: made} | ({rebound: made} if isinstance(rebound, fx.Node) else {})

    def _arguments(self, node: fx.Node) -> dict[str, Any]:
        """By the operator's names: what is known of each node in them."""
        schema = node.target._schema  # type: ignore[union-attr]
        names = [argument.name for argument in schema.arguments]
        given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        return {name: self._known(argument) for name, argument in given.items()}

    def _known(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            if argument in self.known:
                return self.known[argument]
            return argument.meta.get("val")  # a size: torch.SymInt, or a plain number
        if isinstance(argument, list | tuple):
            return [self._known(part) for part in argument]
        return argument

    def _folded(self, node: fx.Node, arguments: dict[str, Any]) -> Constant | tuple[Constant, ...] | None:
        """The result, where it does not depend on what the network is given."""
        parts = list(_flat(arguments.values()))
        if any(isinstance(part, Value | Several | torch.SymInt) for part in parts):
            return None
        learned = any(isinstance(part, Constant) and part.learned for part in parts)
        made = [_numbers(argument) for argument in arguments.values()]
        named = {name: _wider(value) for name, value in zip(arguments, made, strict=True)}
        with torch.no_grad():
            result = node.target(**named)  # type: ignore[operator]
        sources: frozenset[str] = frozenset().union(*(part.sources for part in parts if isinstance(part, Constant)))
        if isinstance(result, Tensor):
            return Constant(result.detach().clone(), None, learned, sources)
        return tuple(Constant(part.detach().clone(), None, learned, sources) for part in result)

    def _picked(self, node: fx.Node) -> dict[fx.Node, Known]:
        source: Any = node.args[0]
        place: Any = node.args[1]
        known = self.known.get(source)
        if isinstance(known, tuple):
            return {node: known[place]}
        if not isinstance(known, Several) or not isinstance(node.meta.get("val"), Tensor):
            return {}
        target = str(source.target)
        op, arguments, value = target.split(".")[1], self._arguments(source), node.meta["val"]
        if op in PIECES:
            return {node: self._piece(node, source, arguments, int(place))}
        if target in NORMS:
            return {node: self._made(source, op, arguments, value)} if place == 0 else {}
        if op == "native_dropout":
            return {node: arguments["input"]}
        return {node: self._call(node, target, arguments, value, pick=int(place))}

    def _piece(self, node: fx.Node, source: fx.Node, arguments: dict[str, Any], place: int) -> Known:
        """One of the pieces that a value is taken apart into: a slice of it."""
        value = arguments["self"]
        axis = (arguments.get("dim") or 0) % len(self.shapes[value.name])
        if str(source.target).split(".")[1] == "unbind":
            return self._move(node, "aten.select.int", value, [axis, place], node.meta["val"])
        pieces = [concrete(piece.shape[axis]) for piece in source.meta["val"]]
        start = sum(pieces[:place])
        return self._move(node, "aten.slice.Tensor", value, [axis, start, start + pieces[place]], node.meta["val"])

    def _made(self, node: fx.Node, op: str, arguments: dict[str, Any], value: Tensor) -> Known:
        first = next(iter(arguments.values()), None)
        target = str(node.target)
        if op.endswith("_") and not op.endswith("__"):
            op = op[:-1]
            target = f"aten.{op}.{target.split('.')[2]}"
        same = isinstance(first, Value) and self.shapes[first.name] == tuple(map(concrete, value.shape))
        if isinstance(first, Value):
            unchanged = same and self.dtypes[first.name] == value.dtype
            if op in SAME or (unchanged and op in UNCHANGED):
                return first
            if op in RESHAPES:
                return self._move(node, "aten.reshape.default", first, [list(value.shape)], value)
            if op in TURNS:
                return self._turned(node, first, value)
            if op in ("expand", "expand_as"):
                return self._move(node, "aten.expand.default", first, [list(value.shape)], value)
            if op == "slice" and same:
                return first
            if op == "channel_shuffle":
                return self._shuffled(node, first, arguments["groups"], value)
        if target in NORMS:
            affine = self._batch_norm(arguments)
            if affine is not None:
                return self._emit(self._called(node), affine, [first], node, value)  # type: ignore[list-item]
        if op == "cat" and len(arguments["tensors"]) == 1:
            return arguments["tensors"][0]
        if op == "stack":
            return self._stacked(node, arguments, value)
        if op in ("expand", "expand_as") and isinstance(first, Constant):
            arguments = {"self": first, "size": list(value.shape)}
            target = "aten.expand.default"
        if op == "embedding":
            embedded = self._embedded(node, arguments, value)
            if embedded is not None:
                return embedded
        return self._call(node, target, arguments, value)

    def _turned(self, node: fx.Node, source: Value, value: Tensor) -> Known:
        """By any name: the order of axes, found by turning a value whose axes have strides of their own."""
        probe = torch.empty(self.shapes[source.name], device="meta")
        marked = torch.empty_strided(probe.shape, [10**place for place in range(probe.dim())], device="meta")
        arguments = [marked if part == source else part for part in self._arguments(node).values()]
        turned = node.target(*arguments)  # type: ignore[operator]
        order = [len(str(stride)) - 1 for stride in turned.stride()]
        if order == list(range(len(order))):
            return source
        return self._move(node, "aten.permute.default", source, [order], value)

    def _shuffled(self, node: fx.Node, source: Value, groups: int, value: Tensor) -> Known:
        batch, channels, *places = value.shape
        apart = [batch, groups, channels // groups, *places]
        swapped = [batch, channels // groups, groups, *places]
        order = [0, 2, 1, *range(3, len(apart))]
        first = self._move(node, "aten.reshape.default", source, [apart], None, apart)
        second = self._move(node, "aten.permute.default", first, [order], None, swapped)
        return self._move(node, "aten.reshape.default", second, [list(value.shape)], value)

    def _stacked(self, node: fx.Node, arguments: dict[str, Any], value: Tensor) -> Known:
        axis = (arguments.get("dim") or 0) % value.dim()
        size = [1 if place == axis else length for place, length in enumerate(value.shape)]
        parts = [
            Constant(part.numbers.unsqueeze(axis), None, part.learned)
            if isinstance(part, Constant)
            else self._move(node, "aten.reshape.default", part, [size], None, size)
            for part in arguments["tensors"]
        ]
        return self._call(node, "aten.cat.default", {"tensors": parts, "dim": axis}, value)

    def _batch_norm(self, arguments: dict[str, Any]) -> Affine | None:
        """Two numbers a channel, ``a x + c``, since the statistics are fixed when a network is used."""
        parts = [arguments.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
        weight, bias, mean, var = (part.numbers if isinstance(part, Constant) else None for part in parts)
        if arguments.get("training") or mean is None or var is None or not isinstance(arguments["input"], Value):
            return None
        factor = torch.rsqrt(var + arguments["eps"])
        factor = factor if weight is None else factor * weight
        shift = -factor * mean if bias is None else bias - factor * mean
        affine = Affine(len(factor))
        affine.weight.data, affine.bias.data = factor.clone(), shift.clone()
        return affine

    def _embedded(self, node: fx.Node, arguments: dict[str, Any], value: Tensor) -> Known | None:
        """Rows that are picked: the layer has its channels first, and a step turns them to where they were."""
        weight, words = arguments["weight"], arguments["indices"]
        if not isinstance(weight, Constant) or not isinstance(words, Value) or len(self.shapes[words.name]) != 2:
            return None
        name = self._called(node)
        if self._why_whole(name, weight):
            return None
        batch, tokens, channels = value.shape
        embed = Embed.of(
            weight.numbers, arguments.get("padding_idx", -1) if arguments.get("padding_idx", -1) >= 0 else None
        )
        first = self._emit(name, embed, [words], node, None, (batch, channels, tokens))
        return self._move(node, "aten.permute.default", first, [[0, 2, 1]], value)

    def _alone(self, weight: Constant) -> bool:
        """Whether nobody else uses these numbers."""
        users = [name for name, parameter in self.exported.parameters.items() if parameter in weight.sources]
        return all(self.uses[name] <= 1 for name in users) and all(map(self.exported.is_alone, weight.sources))

    def _move(
        self, node: fx.Node, target: str, source: Known, arguments: list[Any], value: Any, shape: Any = None
    ) -> Value:
        if target == "aten.reshape.default":
            arguments = [_with_one_free(arguments[0])]
        named = dict(zip(_argument_names(target), [source, *arguments], strict=False))
        return self._call(node, target, named, value, shape=shape)

    def _call(
        self,
        node: fx.Node,
        target: str,
        arguments: dict[str, Any],
        value: Any,
        *,
        pick: int | None = None,
        shape: Sequence[Any] | None = None,
    ) -> Value:
        """The step of a call: a layer of a known kind, or the call itself."""
        size = tuple(value.shape) if shape is None else tuple(shape)
        reads = [part for part in _flat(arguments.values()) if isinstance(part, Value)]
        leaving = tuple(map(concrete, size))
        name, why = self._called(node, arguments.get("weight")), ""
        if pick is None:
            arriving = tuple(self.shapes[read.name] for read in reads)
            call = Call(target, arguments, arriving, leaving, _defaults(target))
            for kind in kinds_called(target):
                if isinstance(kind, Weighted) and (why := self._why_whole(name, arguments["weight"])):
                    continue
                module = kind.captured(call)
                if module is not None:
                    return self._emit(name, module, reads, node, value, size)
        module, sources = self._aten(target, arguments, pick)
        module.why = why
        return self._emit(name, module, sources, node, value, size)

    def _why_whole(self, name: str, weight: Any) -> str:
        """Why the weights of a layer cannot be believed one by one; nothing where they can."""
        if _as_step(name) in self.whole:
            return "the first axis of what it reads is not the batch"
        if isinstance(weight, Constant) and not self._alone(weight):
            return "its weights are used twice"
        return ""

    def _aten(self, target: str, arguments: dict[str, Any], pick: int | None) -> tuple[AtenCall, list[Value]]:
        reads: list[Value] = []
        own: dict[str, Tensor] = {}
        # Who reads nothing else reads the input: it knows how many examples there are.
        if not any(isinstance(part, Value) for part in _flat(arguments.values())):
            reads.append(self.inputs[0])
        made = {name: self._plain(argument, reads, own, arguments) for name, argument in arguments.items()}
        schema = {argument.name: argument for argument in _schema(target).arguments}
        named = {name: value for name, value in made.items() if schema[name].kwarg_only}
        listed = self._positional(schema, made)
        dtypes = {
            place: str(self.dtypes[read.name]).removeprefix("torch.")
            for place, read in enumerate(reads)
            if self.dtypes[read.name] != torch.float32
        }
        kept = {name: value for name, value in named.items() if name not in ("memory_format", "layout", "pin_memory")}
        return call_of(target, listed, kept, own, pick, dtypes), reads

    def _positional(self, schema: dict[str, Any], made: dict[str, Any]) -> list[Any]:
        listed: list[Any] = []
        last = max(
            (place for place, name in enumerate(schema) if name in made and not schema[name].kwarg_only), default=-1
        )
        for name in list(schema)[: last + 1]:
            listed.append(made[name] if name in made else schema[name].default_value)
        return listed

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
                for value in (part for part in _flat(arguments.values()) if isinstance(part, Value)):
                    if value not in reads:
                        reads.append(value)
                return self.sizes.of(argument, reads, self.symbolic, self.inputs)
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

    def _emit(
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

    def _value(self, node: fx.Node) -> Value:
        known = self.known[node]
        if not isinstance(known, Value):
            raise BhcError(f"{node.name!r} is read by a registered layer and does not depend on the network's input")
        return known

    def _called(self, node: fx.Node, weight: Any = None) -> str:
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


def _with_one_free(sizes: Sequence[Any]) -> list[Any]:
    """Sizes of a reshape: one that depends on the batch follows from the others."""
    depends = [isinstance(size, torch.SymInt) for size in sizes]
    return (
        [-1 if symbolic else size for size, symbolic in zip(sizes, depends, strict=True)]
        if sum(depends) == 1
        else list(sizes)
    )


def _as_step(name: str) -> str:
    """The name of a module as that of a step."""
    return name.replace(".", "_")


def _flat(parts: Any) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, list | tuple):
            yield from _flat(part)
        else:
            yield part


def _numbers(argument: Any) -> Any:
    if isinstance(argument, Constant):
        return argument.numbers
    if isinstance(argument, list | tuple):
        return [_numbers(part) for part in argument]
    return argument


def _wider(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


def _writes(node: fx.Node) -> bool:
    return bool(getattr(node.target, "_schema", None) and node.target._schema.is_mutable)  # type: ignore[union-attr]


def _schema(target: str) -> Any:
    from bhc.layers.aten import operator as of

    return of(target)._schema  # type: ignore[attr-defined]


def _argument_names(target: str) -> list[str]:
    return [argument.name for argument in _schema(target).arguments]


def _defaults(target: str) -> dict[str, Any]:
    return {a.name: a.default_value for a in _schema(target).arguments if a.has_default_value()}
