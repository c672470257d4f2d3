"""Goes through a captured program, node by node: constants are folded, all else becomes steps."""

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from bhc.errors import BhcError
from bhc.graph.graph import Step
from bhc.graph.program import Exported, wider
from bhc.graph.steps import Constant, Known, Several, StepMaker, Value, concrete, numbers_of
from bhc.graph.unfolding import REWRITES, MaskedPlaces, masked_places, unfolded
from bhc.layers import Affine, Embed
from bhc.layers.aten import flat

END = 1 << 62  # of a slice, where nothing is said of it, at the least
BATCH_NORMS = ("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default")
# The largest numbers without their places: of these it is known what they are for some of the channels.
LARGEST = {"aten.max.dim": "aten.amax.default", "aten.min.dim": "aten.amin.default"}
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
INDICES = {"embedding": "indices", "gather": "index"}  # who picks by numbers of places, and their name for these
# Products that may be linear layers, with their names for input, matrix and bias.
PRODUCTS = {"addmm": ("mat1", "mat2", "self"), "mm": ("self", "mat2", ""), "matmul": ("self", "other", "")}
UNCHANGED = (*RESHAPES, "to", "_to_copy", "type_as", "expand", "expand_as", "float")  # where shape and dtype stay


class Reader:
    """Reads one program once."""

    def __init__(self, exported: Exported, *, whole: Sequence[str] = ()) -> None:
        self.exported = exported
        self.maker = StepMaker(exported, whole)
        self.known: dict[fx.Node, Known | MaskedPlaces] = {}
        self.first_parts: dict[
            str, dict[str, Any]
        ] = {}  # by a step: the slice of a constant, from its start, that it is

    def steps(self) -> list[Step]:
        """Up to the one that gives the result: what comes later serves other results."""
        needed = _needed(self.exported)
        for node in self.exported.program.nodes:
            if node.op == "placeholder":
                self._input(node)
            elif node.op == "call_function" and node in needed:
                self.known.update(self._read(node))
        result = self.known[self.exported.result]
        if not isinstance(result, Value):
            raise BhcError("what the network returns does not depend on what it is given")
        names = [step.name for step in self.maker.made]
        return self.maker.made[: names.index(result.name) + 1] if result.name in names else []

    def _input(self, node: fx.Node) -> None:
        numbers = self.exported.constants.get(node.name)
        if numbers is not None:
            name = self.exported.parameters.get(node.name)
            precise = numbers.detach().double() if numbers.dtype == torch.float32 else numbers.detach()
            alone = self.maker.alone[node]
            sources = frozenset() if name is None else frozenset({name})
            self.known[node] = Constant(precise, name, name is not None, alone, sources)  # rounded when all is complete
            return
        self.known[node] = self.maker.inputs[self.exported.inputs.index(node.name)]

    def _read(self, node: fx.Node) -> Mapping[fx.Node, Known | MaskedPlaces]:
        whole = self.exported.modules.get(node)
        if whole is not None:  # a module of a registered kind, captured as one
            if node is not whole.last:
                return {}
            own = copy.deepcopy(whole.module).double()
            return {node: self.maker.emit(whole.name, own, [self._value(read) for read in whole.reads], node)}
        if node.target is operator.getitem:
            return self._picked(node)
        value = node.meta.get("val")
        target = str(node.target)
        op = target.split(".")[1] if target.count(".") == 2 else target
        if op in REMARKS or not isinstance(value, Tensor | tuple | list):
            return {}
        arguments = self._arguments(node)
        places = next((part for part in flat(arguments.values()) if isinstance(part, MaskedPlaces)), None)
        if op == "index" and (picked := masked_places(self.maker, arguments)) is not None:
            return {node: picked}
        if places is not None:
            return {node: places.after(self.maker, node, op, arguments)}
        constants = _folded(node, arguments, alone=self.maker.alone.get(node, False))
        if constants is not None:
            return {node: constants}
        if op in INDICES and (begun := _of_first_part(self.maker, self.first_parts, node, op, arguments)) is not None:
            return {node: begun}
        if not isinstance(value, Tensor):
            return {node: unfolded(self.maker, node, arguments)}
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

    def _picked(self, node: fx.Node) -> dict[fx.Node, Known]:
        source: Any = node.args[0]
        place: Any = node.args[1]
        known = self.known.get(source)
        if isinstance(known, tuple):
            picked = known[place] if place < len(known) else None  # None: nobody reads it
            return {} if picked is None else {node: picked}
        if not isinstance(known, Several) or not isinstance(node.meta.get("val"), Tensor):
            return {}
        target = str(source.target)
        op, arguments, value = target.split(".")[1], self._arguments(source), node.meta["val"]
        if op in PIECES:
            return {node: self._piece(node, source, arguments, int(place))}
        if target in BATCH_NORMS:
            return {node: self._made(source, op, arguments, value)} if place == 0 else {}
        if target in LARGEST and place == 0:
            chosen = {"self": arguments["self"], "dim": [arguments["dim"]], "keepdim": arguments.get("keepdim", False)}
            return {node: self.maker.call(node, LARGEST[target], chosen, value)}
        if op == "native_dropout":
            return {node: arguments["input"]}
        return {node: self.maker.call(node, target, arguments, value, pick=int(place), why=known.why)}

    def _piece(self, node: fx.Node, source: fx.Node, arguments: dict[str, Any], place: int) -> Known:
        """One of the pieces that a value is taken apart into: a slice of it."""
        value = arguments["self"]
        axis = (arguments.get("dim") or 0) % len(self.maker.shapes[value.name])
        if str(source.target).split(".")[1] == "unbind":
            return self.maker.move(node, "aten.select.int", value, [axis, place], node.meta["val"])
        sizes = [piece.shape[axis] for piece in source.meta["val"]]
        if any(isinstance(size, torch.SymInt) for size in sizes):
            return self.maker.call(node, str(source.target), arguments, node.meta["val"], pick=place)
        pieces = [concrete(size) for size in sizes]
        start = sum(pieces[:place])
        return self.maker.move(node, "aten.slice.Tensor", value, [axis, start, start + pieces[place]], node.meta["val"])

    def _made(self, node: fx.Node, op: str, arguments: dict[str, Any], value: Tensor) -> Known:
        first = next(iter(arguments.values()), None)
        target = str(node.target)
        if op.endswith("_") and not op.endswith("__"):
            op = op[:-1]
            target = f"aten.{op}.{target.split('.')[2]}"
        same = isinstance(first, Value) and self.maker.shapes[first.name] == tuple(map(concrete, value.shape))
        if isinstance(first, Value):
            unchanged = same and self.maker.dtypes[first.name] == value.dtype
            if op in SAME or (unchanged and op in UNCHANGED):
                return first
            if op in RESHAPES:
                return self.maker.move(node, "aten.reshape.default", first, [list(value.shape)], value)
            if op in TURNS:
                return self._turned(node, first, value)
            if op in ("expand", "expand_as"):
                return self.maker.move(node, "aten.expand.default", first, [list(value.shape)], value)
            if op == "slice" and same:
                return first
            if op == "channel_shuffle":
                return self._shuffled(node, first, arguments["groups"], value)
        if target in BATCH_NORMS:
            affine = _batch_norm(arguments)
            if affine is not None:
                return self.maker.emit(self.maker.called(node), affine, [first], node, value)  # type: ignore[list-item]
        if op in PRODUCTS:
            op, target, arguments = _as_linear(op, target, arguments)
        if op == "cat" and len(arguments["tensors"]) == 1:
            return arguments["tensors"][0]
        if op == "stack":
            return self._stacked(node, arguments, value)
        if op in ("expand", "expand_as") and isinstance(first, Constant):
            arguments = {"self": first, "size": list(value.shape)}
            target = "aten.expand.default"
        if op == "index" and isinstance(first, Value):
            picked = _selected(self.maker, node, first, arguments["indices"], value)
            if picked is not None:
                return picked
        if _is_written_whole(op, arguments) and self._is_like(arguments["src"], value):
            return arguments["src"]
        if op == "slice_scatter" and isinstance(first, Value) and _is_plain_slice(arguments, value):
            return _written_over(self.maker, node, arguments, value)
        if op in REWRITES and (given := REWRITES[op](self.maker, node, arguments, value)) is not None:
            return given
        if op == "slice" and isinstance(first, Constant) and arguments.get("start") in (None, 0):
            part = self.maker.call(node, target, arguments, value)
            self.first_parts[part.name] = arguments
            return part
        if op == "embedding":
            embedded = self._embedded(node, arguments, value)
            if embedded is not None:
                return embedded
        return self.maker.call(node, target, arguments, value)

    def _is_like(self, known: Known, value: Tensor) -> bool:
        """Whether it is what a step gives, of the same shape and dtype."""
        if not isinstance(known, Value) or self.maker.dtypes[known.name] != value.dtype:
            return False
        return self.maker.shapes[known.name] == tuple(map(concrete, value.shape))

    def _turned(self, node: fx.Node, source: Value, value: Tensor) -> Known:
        """By any name: the order of axes, found by turning a value whose axes have strides of their own."""
        probe = torch.empty(self.maker.shapes[source.name], device="meta")
        marked = torch.empty_strided(probe.shape, [10**place for place in range(probe.dim())], device="meta")
        arguments = [marked if part == source else part for part in self._arguments(node).values()]
        turned = node.target(*arguments)  # type: ignore[operator]
        order = [len(str(stride)) - 1 for stride in turned.stride()]
        if order == list(range(len(order))):
            return source
        return self.maker.move(node, "aten.permute.default", source, [order], value)

    def _shuffled(self, node: fx.Node, source: Value, groups: int, value: Tensor) -> Known:
        batch, channels, *places = value.shape
        apart = [batch, groups, channels // groups, *places]
        swapped = [batch, channels // groups, groups, *places]
        order = [0, 2, 1, *range(3, len(apart))]
        first = self.maker.move(node, "aten.reshape.default", source, [apart], None, apart)
        second = self.maker.move(node, "aten.permute.default", first, [order], None, swapped)
        return self.maker.move(node, "aten.reshape.default", second, [list(value.shape)], value)

    def _stacked(self, node: fx.Node, arguments: dict[str, Any], value: Tensor) -> Known:
        axis = (arguments.get("dim") or 0) % value.dim()
        size = [1 if place == axis else length for place, length in enumerate(value.shape)]
        parts = [
            Constant(part.numbers.unsqueeze(axis), None, part.learned)
            if isinstance(part, Constant)
            else self.maker.move(node, "aten.reshape.default", part, [size], None, size)
            for part in arguments["tensors"]
        ]
        return self.maker.call(node, "aten.cat.default", {"tensors": parts, "dim": axis}, value)

    def _embedded(self, node: fx.Node, arguments: dict[str, Any], value: Tensor) -> Known | None:
        """Rows that are picked: the layer has its channels first, and a step turns them to where they were."""
        weight, words = arguments["weight"], arguments["indices"]
        if not isinstance(weight, Constant) or not isinstance(words, Value) or len(self.maker.shapes[words.name]) != 2:
            return None
        name = self.maker.called(node)
        if self.maker.why_whole(name, weight):
            return None
        batch, tokens, channels = value.shape
        padding = arguments.get("padding_idx", -1)
        has_all = padding < 0 or any(map(self.maker.uses.is_transposed, weight.sources))
        embed = self.maker.layer(node, Embed.of(weight.numbers, None if has_all else padding))
        first = self.maker.emit(name, embed, [words], node, None, (batch, channels, tokens))
        return self.maker.move(node, "aten.permute.default", first, [[0, 2, 1]], value)

    def _value(self, node: fx.Node) -> Value:
        known = self.known[node]
        if not isinstance(known, Value):
            raise BhcError(f"{node.name!r} is read by a registered layer and does not depend on the network's input")
        return known


def _of_first_part(
    maker: StepMaker, first_parts: dict[str, dict[str, Any]], node: fx.Node, op: str, arguments: dict[str, Any]
) -> Known | None:
    """What is picked by the first of fixed places, as many as a text is long, is the first of what all of them
    pick: rows for places of words, and what is added to them, are numbers of the network's own."""
    index = arguments[INDICES[op]]
    part = first_parts.get(index.name) if isinstance(index, Value) else None
    if part is None:
        return None
    alone = maker.alone.get(node, False)
    whole = _folded(node, arguments | {INDICES[op]: part["self"]}, alone=alone)
    if not isinstance(whole, Constant):
        return None
    made = maker.call(node, "aten.slice.Tensor", part | {"self": whole}, node.meta["val"])
    first_parts[made.name] = part | {"self": whole}
    return made


def _needed(exported: Exported) -> set[fx.Node]:
    """What the result depends on, and who writes into something: others compute what is only looked at."""
    nodes = exported.program.nodes
    ahead = [exported.result, *(node for node in nodes if node.op == "call_function" and _writes(node))]
    found: set[fx.Node] = set()
    while ahead:
        node = ahead.pop()
        if node not in found:
            found.add(node)
            whole = exported.modules.get(node)
            ahead += node.all_input_nodes if whole is None else [*node.all_input_nodes, whole.last, *whole.reads]
    return found


def _selected(maker: StepMaker, node: fx.Node, source: Value, indices: Sequence[Any], value: Tensor) -> Known | None:
    """``x[:, index]`` with a list of places that is known is a selection along one axis."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    (axis, index), *others = given
    if others or not axis or not isinstance(index, Constant) or index.numbers.dim() != 1:
        return None
    if index.numbers.dtype == torch.bool:
        return None
    places = index.numbers.long() % maker.shapes[source.name][axis]
    return maker.move(node, "aten.index_select.default", source, [axis, Constant(places)], value)


def _is_written_whole(op: str, arguments: dict[str, Any]) -> bool:
    """Whether all of a value is written over, so that nothing is left of what it was."""
    if op == "copy":
        return True
    end = arguments.get("end")
    to_the_end = end is None or (isinstance(end, int) and end >= END)
    return op == "slice_scatter" and not arguments.get("start") and to_the_end and arguments.get("step", 1) == 1


def _is_plain_slice(arguments: dict[str, Any], value: Tensor) -> bool:
    """Whether every place from a start to an end is meant, the same for all sizes of a batch."""
    sizes = [arguments.get("start"), arguments.get("end"), value.shape[arguments.get("dim") or 0]]
    return arguments.get("step", 1) == 1 and not any(isinstance(size, torch.SymInt) for size in sizes)


def _written_over(maker: StepMaker, node: fx.Node, arguments: dict[str, Any], value: Tensor) -> Known:
    """``x[:, start:end] = y``, as a new value, is what comes before, ``y``, and what comes after, side by side."""
    source, axis = arguments["self"], (arguments.get("dim") or 0) % value.dim()
    size = maker.shapes[source.name][axis]
    start, end, _ = slice(arguments.get("start"), arguments.get("end")).indices(size)

    def rest(first: int, last: int) -> list[Known]:
        shape = [*value.shape[:axis], last - first, *value.shape[axis + 1 :]]
        kept = [axis, first, last]
        return [maker.move(node, "aten.slice.Tensor", source, kept, None, shape)] if first < last else []

    parts = [*rest(0, start), arguments["src"], *rest(max(start, end), size)]
    if len(parts) == 1:
        return parts[0]
    return maker.call(node, "aten.cat.default", {"tensors": parts, "dim": axis}, value)


def _folded(node: fx.Node, arguments: dict[str, Any], *, alone: bool) -> Constant | tuple[Constant, ...] | None:
    """The result, where it does not depend on what the network is given."""
    parts = list(flat(arguments.values()))
    if any(isinstance(part, Value | Several | torch.SymInt) for part in parts):
        return None
    learned = any(isinstance(part, Constant) and part.learned for part in parts)
    made = [numbers_of(argument) for argument in arguments.values()]
    named = {name: wider(value) for name, value in zip(arguments, made, strict=True)}
    with torch.no_grad():
        result = node.target(**named)  # type: ignore[operator]
    sources: frozenset[str] = frozenset().union(*(part.sources for part in parts if isinstance(part, Constant)))
    if isinstance(result, Tensor):
        return Constant(result.detach().clone(), None, learned, alone, sources)
    return tuple(Constant(part.detach().clone(), None, learned, alone, sources) for part in result)


def _batch_norm(arguments: dict[str, Any]) -> Affine | None:
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


def _as_linear(op: str, target: str, arguments: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """``x @ W (+ b)`` with a matrix of the network's own is a linear layer with ``W^T``."""
    value, matrix, bias = (arguments.get(name) for name in PRODUCTS[op])
    plain = arguments.get("alpha", 1) == arguments.get("beta", 1) == 1 and (bias is None or isinstance(bias, Constant))
    if not (plain and isinstance(value, Value) and isinstance(matrix, Constant)):
        return op, target, arguments
    if not (matrix.learned and matrix.numbers.dim() == 2):
        return op, target, arguments
    if bias is not None and bias.numbers.shape != matrix.numbers.shape[1:]:
        return op, target, arguments
    weight = replace(matrix, numbers=matrix.numbers.mT)
    return "linear", "aten.linear.default", {"input": value, "weight": weight, "bias": bias}


def _writes(node: fx.Node) -> bool:
    return bool(getattr(node.target, "_schema", None) and node.target._schema.is_mutable)  # type: ignore[union-attr]
