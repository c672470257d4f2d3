"""From any module whose forward pass is made of known layers to a graph of them."""

import copy
import inspect
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from bhc.errors import BhcError
from bhc.graph.batch_norm import fold_batch_norms
from bhc.graph.graph import INPUT, Graph, Step
from bhc.graph.translate import IN_PLACE, JOINING, TRANSPARENT, TURNS, Node, NotKnown, is_leaf, module_of, supported
from bhc.layers import Embed, has_kind

HOLDERS = (Graph, nn.Sequential, fx.GraphModule)  # steps become attributes of these
PROBES = 2  # random inputs on which the graph must do as the network does


class _Proxy(fx.Proxy):
    """Notes ``x += y`` and ``x *= y`` as what they are: they write into x."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})

    def __imul__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.imul, (self, other), {})


class _Tracer(fx.Tracer):
    """Steps into the user's own modules and stops at those of the table."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


class _Recorder(fx.Interpreter):
    """Runs the traced code and notes the shape of every tensor, and all that is no tensor."""

    def __init__(self, net: nn.Module, code: fx.Graph) -> None:
        super().__init__(net, garbage_collect_values=False, graph=code)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}
        self.numbers: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.shapes[n] = tuple(result.shape)
        else:
            self.numbers[n] = result
        return result


def trace(net: nn.Module, example_input: Tensor) -> Graph:
    """The graph that computes what ``net`` computes in eval mode; ``net`` itself is left alone."""
    _check_initialised(net)
    _check_not_shared(net)
    net = copy.deepcopy(net).eval().requires_grad_(False)
    if has_kind(net):
        net = nn.Sequential(net)
    expected = _run(net, example_input)
    try:
        code = _Tracer().trace(net, concrete_args=_defaults(net))
    except Exception as error:
        raise BhcError(
            f"could not trace {type(net).__name__}: {error}",
            hint="the forward pass must not branch on tensor values, and ask only for their sizes: "
            "x.size(0), not len(x)",
        ) from error
    recorder = _Recorder(net, code)
    _record(recorder, torch.cat([example_input[:1]] * 2))
    live = _live(code)
    _check_one_input(net, code, recorder)
    _check_in_place(net, code, recorder)
    _check_all_used(net, live)
    graph = fold_batch_norms(Graph(_steps(net, live, recorder)))
    _check_runs_alike(net, graph, example_input, expected)
    return graph


def _defaults(net: nn.Module) -> dict[str, Any]:
    """Arguments of the forward pass that nobody gives: they are what they are by default."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(net.forward).parameters.items()
        if isinstance(parameter.default, bool | int | float | str | None)
    }


@torch.no_grad()
def _record(recorder: _Recorder, two_examples: Tensor) -> None:
    try:
        recorder.run(two_examples)
    except Exception as error:
        raise BhcError(
            f"the network does not run on two examples at once: {error}",
            hint="the forward pass must take a batch of any size",
        ) from error


def _live(code: fx.Graph) -> list[fx.Node]:
    """The nodes that the result depends on, in the order they run."""
    live = {node for node in code.nodes if node.op == "output"}
    for node in reversed(code.nodes):
        if node in live:
            live.update(node.all_input_nodes)
    return [node for node in code.nodes if node in live]


def _steps(net: nn.Module, nodes: Sequence[fx.Node], ran: _Recorder) -> Iterator[Step]:
    instead: dict[fx.Node, str] = {}  # the step whose result a node's is
    names: set[str] = set()
    turned: set[fx.Node] = set()
    for node in nodes:
        if node.op == "placeholder" and node in ran.shapes:
            instead[node] = INPUT
        elif node.op == "get_attr" and not all(user.target in JOINING for user in node.users):
            raise BhcError(
                f"{node.target!r} of {type(net).__name__} is used directly, not by a layer",
                hint="numbers must belong to a layer; put them into one, or into the layer before or after",
            )
        elif node.op not in ("placeholder", "output", "get_attr") and node in ran.shapes:
            described = Node(net, node, ran.shapes, ran.numbers, turned)
            try:
                module, sources = module_of(described)
            except NotKnown as problem:
                raise _unknown(f"{described.what} {problem}") from None
            reads = tuple(instead[source] for source in sources)
            gives_turned = (sources[0] in turned) != (node.target in TURNS) or isinstance(module, Embed)
            if len(ran.shapes[node]) == 3 and gives_turned:
                turned.add(node)
            if isinstance(module, TRANSPARENT):
                instead[node] = reads[0]
                continue
            instead[node] = _new_name(node, module, names)
            yield Step(instead[node], module, reads)


def _new_name(node: fx.Node, module: nn.Module, names: set[str]) -> str:
    """A name of its own for every step; one ReLU called twice makes two steps, one weighted layer does not."""
    name = str(node.target).replace(".", "_") if node.op == "call_module" else node.name
    if name in names and next(module.parameters(), None) is not None:
        raise _unknown(f"layer {node.target!r} is used twice, or its name is taken by another layer")
    while name in names or name == "training" or any(hasattr(kind, name) for kind in HOLDERS):
        name += "_again"
    names.add(name)
    return name


def _said(node: fx.Node) -> str:
    return f"layer {node.target!r}" if node.op == "call_module" else f"step {node.name!r}"


def _unknown(what: str) -> BhcError:
    return BhcError(f"{what}, which cannot be compressed yet", hint=f"supported layers: {supported()}")


def _check_initialised(net: nn.Module) -> None:
    for name, parameter in net.named_parameters():
        if is_lazy(parameter):
            raise BhcError(f"{name!r} has no size yet: its layer is lazy", hint="first run the network once on a batch")


def _check_one_input(net: nn.Module, code: fx.Graph, ran: _Recorder) -> None:
    taken = [node.name for node in code.nodes if node.op == "placeholder" and node in ran.shapes]
    if len(taken) != 1:
        raise BhcError(
            f"{type(net).__name__} takes more than one input: {', '.join(taken)}", hint="wrap it in a module with one"
        )


def _check_not_shared(net: nn.Module) -> None:
    """Each layer has numbers of its own, so that cutting one cuts no other."""
    owners: dict[int, str] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        other = owners.setdefault(id(parameter), name)
        if other != name:
            raise BhcError(
                f"{other!r} and {name!r} are the same numbers",
                hint="layers that share weights cannot be cut apart; give each its own",
            )


def _check_all_used(net: nn.Module, live: Sequence[fx.Node]) -> None:
    """A layer that is never called, or whose result nobody reads, would vanish unseen."""
    called = {str(node.target) for node in live if node.op == "call_module"}
    direct = {str(node.target).rpartition(".")[0] for node in live if node.op == "get_attr"}
    for name, _ in net.named_parameters():
        owner = name.rpartition(".")[0]
        if owner not in direct and not any(owner == used or owner.startswith(f"{used}.") for used in called):
            raise BhcError(
                f"layer {owner or name!r} is never used for what the network returns",
                hint="remove it, or put nn.Identity() in its place",
            )


def _writes(net: nn.Module, node: fx.Node) -> bool:
    """Whether it writes into its first argument; torch marks methods that do by a last underscore."""
    if node.op == "call_module":
        return bool(getattr(net.get_submodule(str(node.target)), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    called = node.op in ("call_function", "call_method")
    marked = name.endswith("_") and not name.endswith("__")
    return called and (node.target in IN_PLACE or marked or bool(node.kwargs.get("inplace")))


def _check_in_place(net: nn.Module, code: fx.Graph, ran: _Recorder) -> None:
    """Writing into a value is harmless only where nobody reads it afterwards."""
    order = {node: place for place, node in enumerate(code.nodes)}
    for node in code.nodes:
        if node not in ran.shapes or not _writes(net, node):
            continue
        read_later = any(order[user] > order[node] for user in node.all_input_nodes[0].users)
        if read_later or not node.users:
            raise BhcError(
                f"{_said(node)} writes into a value that is read again",
                hint="use the version that is not in place (inplace=False, x = x + y)",
            )


@torch.no_grad()
def _run(net: nn.Module, example_input: Tensor) -> Tensor:
    try:
        result = net(example_input.clone())
    except Exception as error:
        shape = tuple(getattr(example_input, "shape", ()))
        raise BhcError(
            f"the network does not run on the example input of shape {shape}: {error}",
            hint="example_input is a batch as the network takes it, for example (1, 1, 28, 28)",
        ) from error
    if not isinstance(result, Tensor):
        raise BhcError(
            f"the network returns a {type(result).__name__}, not a tensor",
            hint="wrap it in a module that returns the logits alone",
        )
    return result


@torch.no_grad()
def _check_runs_alike(net: nn.Module, graph: Graph, example_input: Tensor, expected: Tensor) -> None:
    """On the example, and on noise: an example of zeros would prove little."""
    draws = torch.Generator().manual_seed(0)
    inputs = [example_input, *(_noise(graph, example_input, draws) for _ in range(PROBES))]
    for x in inputs:
        wanted = expected if x is example_input else net(x.clone())
        given = graph(x)
        tolerance = 1e-4 * max(1.0, float(wanted.abs().max()))
        if wanted.shape != given.shape or not torch.allclose(wanted, given, rtol=1e-4, atol=tolerance):
            raise BhcError(
                f"the traced graph does not compute what {type(net).__name__} computes",
                hint="look for values that are changed in place, or layers that keep a state between calls",
            )


def _noise(graph: Graph, example_input: Tensor, draws: torch.Generator) -> Tensor:
    """Two random inputs: of the example's size, or words where it is words that are read."""
    shape = (2, *example_input.shape[1:])
    counts = [step.module.count for step in graph.steps if isinstance(step.module, Embed)]
    if counts:
        return torch.randint(min(counts), shape, generator=draws).to(example_input)
    floats = example_input.float()
    peak = float(floats.abs().max()) or 1.0
    return (peak * torch.randn(shape, generator=draws)).to(floats)
