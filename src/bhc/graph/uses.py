"""The ways in which a program uses its parameters: which calls are calls of one layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from bhc.graph.program import Exported

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
