"""A captured program, with everything that it needs, in single or double precision; and which calls are one layer's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from bhc.graph.graph import Graph
from bhc.graph.signature import Examples
from bhc.layers import bare_copy, has_kind, is_norm, kind_of
from bhc.layers.aten import AtenCall, Dtype

ASSERTIONS = ("assert", "sym_constrain")  # in the names of operators that compute nothing


def wider(part: Any) -> Any:
    """A tensor or a dtype in double precision, if it was in single; anything else as it is."""
    if isinstance(part, Tensor):
        return part.double() if part.dtype == torch.float32 else part
    if isinstance(part, list):
        return [wider(each) for each in part]
    if part is torch.float32:
        return torch.float64
    return Dtype("float64") if part == Dtype("float32") else part


def in_double_precision(graph: Graph) -> Graph:
    """The same graph, whose numbers are doubles, computing so also where a step names its dtype."""
    replaced: dict[str, nn.Module] = {}
    for step in graph.steps:
        if isinstance(step.module, AtenCall):
            arguments = [wider(argument) for argument in step.module.arguments]
            named = {name: wider(argument) for name, argument in step.module.named.items()}
            if arguments != step.module.arguments or named != step.module.named:
                replaced[step.name] = twin = bare_copy(step.module)
                twin.arguments, twin.named = arguments, named
    return graph.with_steps(replaced)


@dataclass(frozen=True)
class WholeModule:
    """A module of a registered kind, whose calls are one step."""

    name: str
    module: nn.Module
    reads: tuple[fx.Node, ...]
    last: fx.Node


@dataclass
class Exported:
    """A captured program."""

    net: nn.Module  # a copy, in eval mode
    program: fx.Graph
    result: fx.Node
    examples: Examples  # two of them, as the network takes them
    first_answer: Tensor  # what the network gave when it was called for the first time
    constants: dict[str, Tensor]  # parameters, buffers and other tensors, by their names in the program
    parameters: dict[str, str]  # of these, the learned ones, with their names in the network
    inputs: tuple[str, ...]  # what the network takes, by the names in the program
    symbols: dict[Any, tuple[int, int]]  # sizes that may change, with the place of an input and its axis
    pick: int | None = None  # of several results
    versions: dict[str, int] = field(default_factory=dict)  # of its tensors: each rises when it is written into
    modules: dict[fx.Node, WholeModule] = field(default_factory=dict)
    paths: dict[fx.Node, str] = field(default_factory=dict)  # calls that are all that a user's module does

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Parameters that are the same numbers as another, with the name of that one."""
        owners: dict[int, str] = {}
        found = {}
        for name, parameter in self.net.named_parameters(remove_duplicate=False):
            first = owners.setdefault(id(parameter), name)
            if first != name:
                found[name] = first
        return found

    def __post_init__(self) -> None:
        self.versions = self._versions()

    def _versions(self) -> dict[str, int]:
        return {name: tensor._version for name, tensor in self.net.state_dict(keep_vars=True).items()}

    def written(self) -> list[str]:
        """Tensors of the network that its calls have changed since it was captured."""
        return [name for name, version in self._versions().items() if version != self.versions[name]]

    def count(self) -> tuple[int, int]:
        """Weights and parameters of the network: biases, and gains and shifts of norms, are no weights."""
        used = {self.parameters.get(source.name) for node in self.program.nodes for source in node.all_input_nodes}
        no_weights = {name for name, _ in self.net.named_parameters() if name not in used and name.endswith("bias")}
        for node in self.program.nodes:
            schema = getattr(node.target, "_schema", None)
            if schema is None:
                continue
            norm = is_norm(str(node.target))
            given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
            for name, argument in given.items():
                if isinstance(argument, fx.Node) and argument.name in self.parameters and (norm or name == "bias"):
                    no_weights.add(self.parameters[argument.name])
                if name == "params":  # weights and biases of recurrent layers, in one list
                    no_weights |= {self.parameters[each.name] for each in argument if self._is_bias(each)}
        sizes = {name: parameter.numel() for name, parameter in self.net.named_parameters()}
        return sum(size for name, size in sizes.items() if name not in no_weights), sum(sizes.values())

    def _is_bias(self, node: fx.Node) -> bool:
        return node.name in self.parameters and self.constants[node.name].dim() == 1

    def answer(self, x: Examples) -> Tensor:
        with torch.no_grad():
            return only(x.passed_to(self.net), self.pick)

    @torch.no_grad()
    def run(self, x: Examples, *, precise: bool = False) -> Tensor:
        """What the program gives; ``precise`` in double precision, also where it names another."""
        values: dict[fx.Node, Any] = {}
        widened: Callable[[Any], Any] = wider if precise else lambda part: part
        known = self.constants | dict(zip(self.inputs, x.tensors, strict=True))
        for node in self.program.nodes:
            if node.op == "placeholder":
                values[node] = widened(known[node.name]).clone()
            elif node.op == "call_function" and not any(word in str(node.target) for word in ASSERTIONS):
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                args, kwargs = pytree.tree_map(widened, (args, kwargs))
                values[node] = node.target(*args, **kwargs)
            for source in node.all_input_nodes:
                if source is not self.result and self._last_reader[source] is node:
                    del values[source]
        return values[self.result]

    @cached_property
    def _last_reader(self) -> dict[fx.Node, fx.Node]:
        return {source: node for node in self.program.nodes for source in node.all_input_nodes}


def only(answer: Any, pick: int | None) -> Tensor:
    return answer if pick is None else pytree.tree_leaves(answer)[pick]


def find_modules(exported: Exported) -> None:
    """Calls that belong to a module of a registered kind, and calls that are all that a user's module does."""
    by_module: dict[str, list[fx.Node]] = {}
    stacks: dict[fx.Node, Mapping[str, tuple[str, Any]]] = {}
    modules = dict(exported.net.named_modules(remove_duplicate=False))
    for node in (node for node in exported.program.nodes if node.op == "call_function"):
        stacks[node] = node.meta.get("nn_module_stack") or {}
        for key in stacks[node]:
            by_module.setdefault(key, []).append(node)
    for key, nodes in by_module.items():
        path = stacks[nodes[0]][key][0]
        module = modules.get(path)
        if module is None:
            continue
        hooked = module._forward_hooks or module._forward_pre_hooks  # what these change is captured call by call
        if has_kind(module) and not kind_of(module).calls and not hooked:
            _note_whole(exported, path, module, nodes)
        elif not any(module.children()):
            computing = [node for node in nodes if isinstance(node.meta.get("val"), Tensor) and node.users]
            if len(computing) == 1 and path:
                exported.paths[computing[0]] = path


def _note_whole(exported: Exported, path: str, module: nn.Module, nodes: list[fx.Node]) -> None:
    inside = set(nodes)
    given = [node for each in nodes for node in each.all_input_nodes if node not in inside]
    reads = tuple(dict.fromkeys(node for node in given if _is_computed(exported, node)))
    used = [node for node in nodes if any(user not in inside for user in node.users)]
    if len(used) != 1 or not reads:
        return
    whole = WholeModule(path or type(module).__name__.lower(), module, reads, used[0])
    exported.modules.update(dict.fromkeys(nodes, whole))


def _is_computed(exported: Exported, node: fx.Node) -> bool:
    is_tensor = isinstance(node.meta.get("val"), Tensor)
    return is_tensor and not (node.op == "placeholder" and node.name in exported.constants)


# Products with a matrix: where it stands among the arguments, and whether ``(O, I)`` is its transpose.
PRODUCTS = {
    "aten.linear.default": (1, False),
    "aten.mm.default": (1, True),
    "aten.matmul.default": (1, True),
    "aten.addmm.default": (2, True),
}
TABLE = "aten.embedding.default"  # its layer has a column for each row of the matrix
TURNS = ("aten.t.default", "aten.numpy_T.default", "aten.transpose.int", "aten.permute.default", "aten.mT.default")


@dataclass(frozen=True)
class _Matrix:
    """A parameter as the matrix of a product, or its transpose."""

    name: str
    transposed: bool
    is_table: bool

    def undoes(self, other: "_Matrix") -> bool:
        """Whether it is a product with the other's weights the other way round."""
        return not self.is_table and (self.name, self.transposed) == (other.name, not other.transposed)


class Uses:
    """How calls use the parameters of a program; what is made of parameters alone counts where it is used.

    Calls that do the same with the same parameters, to other values, are of one layer, and so are products with its
    transposed weights that come later.
    """

    def __init__(self, exported: Exported) -> None:
        self.exported = exported
        self.first: dict[fx.Node, fx.Node] = {}  # of all calls that do the same, to values of any size
        self.transposes: dict[fx.Node, fx.Node] = {}  # by the first of products with transposed weights: the layer's
        self._made: dict[fx.Node, frozenset[str]] = {}  # of parameters alone, and of which
        self._ways: dict[str, list[fx.Node]] = {}  # by parameter: the first call of each way of using it
        alike: dict[Any, fx.Node] = {}
        for node in exported.program.nodes:
            if node.op == "placeholder" and node.name in exported.constants:
                name = exported.parameters.get(node.name)
                self._made[node] = frozenset() if name is None else frozenset({self._name(name)})
                self.first[node] = alike.setdefault(next(iter(self._made[node]), node), node)
            elif node.op == "call_function":
                self._add_call(node, alike)
        for ways in self._ways.values():
            self._note_transposes(ways)

    def are_of_one_layer(self, name: str) -> bool:
        """Whether all calls that use a parameter are."""
        return all(node in self.transposes for node in self._ways.get(self._name(name), ())[1:])

    def is_transposed(self, name: str) -> bool:
        """Whether products with its transpose are among them."""
        return any(node in self.transposes for node in self._ways.get(self._name(name), ()))

    def _name(self, name: str) -> str:
        return self.exported.aliases.get(name, name)

    def _add_call(self, node: fx.Node, alike: dict[Any, fx.Node]) -> None:
        sources = frozenset().union(*(self._made.get(source, frozenset()) for source in node.all_input_nodes))
        self.first[node] = alike.setdefault(self._form(node), node)
        if all(source in self._made for source in node.all_input_nodes):
            self._made[node] = sources
        elif self.first[node] is node:
            for name in sources:
                self._ways.setdefault(name, []).append(node)

    def _form(self, node: fx.Node) -> Any:
        """A call's operator and arguments, of values their number of axes alone."""
        return str(node.target), self._plain(node.args), tuple((n, self._plain(a)) for n, a in node.kwargs.items())

    def _plain(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            if argument in self._made:
                return self.first[argument]
            value = argument.meta.get("val")
            return value.dim() if isinstance(value, Tensor) else argument  # sizes: those that are the same
        return tuple(map(self._plain, argument)) if isinstance(argument, list | tuple) else repr(argument)

    def _note_transposes(self, ways: Sequence[fx.Node]) -> None:
        """The first way is the layer; the others have to be products with its weights the other way round."""
        layer, *others = (self._matrix(node) for node in ways)
        if layer is not None and all(other is not None and other.undoes(layer) for other in others):
            self.transposes |= dict.fromkeys(ways[1:], ways[0])

    def _matrix(self, node: fx.Node) -> _Matrix | None:
        target = str(node.target)
        place, transposed = (0, True) if target == TABLE else PRODUCTS.get(target, (-1, False))
        if place < 0 or len(node.args) <= place or (node.kwargs and target != TABLE):
            return None
        matrix, *others = (node.args[place], *node.args[:place], *node.args[place + 1 :])
        values = [each for each in others if isinstance(each, fx.Node) and each not in self._made]
        while isinstance(matrix, fx.Node) and str(matrix.target) in TURNS:
            matrix, transposed = matrix.args[0], not transposed
        name = self.exported.parameters.get(matrix.name) if isinstance(matrix, fx.Node) else None
        if name is None or len(values) != 1 or matrix.meta["val"].dim() != 2:  # type: ignore[union-attr]
            return None
        return _Matrix(self._name(name), transposed, target == TABLE)
