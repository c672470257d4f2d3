"""From any module whose forward pass is a chain of known layers to a flat, plain ``nn.Sequential``."""

import copy
from collections import OrderedDict
from collections.abc import Iterator

import torch
from torch import Tensor, fx, nn

from bhc.errors import BhcError
from bhc.graph.kinds import FUNCTIONS, KINDS, TRANSPARENT, supported


class _Tracer(fx.Tracer):
    """Steps into the user's own modules and stops at those of the table."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in KINDS or super().is_leaf_module(m, module_qualified_name)


def trace(net: nn.Module, example_input: Tensor) -> nn.Sequential:
    """The chain that computes what ``net`` computes in eval mode; ``net`` itself is left alone."""
    net = copy.deepcopy(net).eval()
    if type(net) in KINDS:
        net = nn.Sequential(net)
    try:
        graph = _Tracer().trace(net)
    except Exception as error:
        raise BhcError(
            f"could not trace {type(net).__name__}: {error}",
            hint="the forward pass must not branch on tensor values",
        ) from error
    chain = nn.Sequential(OrderedDict(_steps(net, graph)))
    _check_runs_alike(net, chain, example_input)
    return chain


def _steps(net: nn.Module, graph: fx.Graph) -> Iterator[tuple[str, nn.Module]]:
    previous: fx.Node | None = None
    names: set[str] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            if previous is not None:
                raise BhcError(f"{type(net).__name__} takes more than one input", hint="wrap it in a module with one")
        elif node.op == "get_attr" or node.all_input_nodes != [previous]:
            raise BhcError(
                f"{node.name!r} in {type(net).__name__} does not continue the chain",
                hint="branches and shared values are not supported yet: each step must read the one before it",
            )
        elif node.op != "output":
            module = _module_of(net, node)
            if not isinstance(module, TRANSPARENT):
                yield _new_name(node, module, names), module
        previous = node


def _new_name(node: fx.Node, module: nn.Module, names: set[str]) -> str:
    """A name of its own for every step; one ReLU called twice makes two steps, one weighted layer does not."""
    name = str(node.target).replace(".", "_") if node.op == "call_module" else node.name
    if name in names and any(module.parameters()):
        raise _unknown(f"layer {node.target!r} is used twice, or its name is taken by another layer")
    while name in names:
        name += "_again"
    names.add(name)
    return name


def _module_of(net: nn.Module, node: fx.Node) -> nn.Module:
    if node.op == "call_module":
        module = net.get_submodule(str(node.target))
        if isinstance(module, TRANSPARENT):
            return module
        if type(module) not in KINDS:
            raise _unknown(f"layer {node.target!r} is a {type(module).__name__}")
        _check_variant(str(node.target), module)
        return copy.deepcopy(module)
    if node.target in (torch.flatten, "flatten") and _flattens_all_but_batch(node):
        return nn.Flatten()
    if node.target in FUNCTIONS and len(node.args) == 1:
        options = {name: value for name, value in node.kwargs.items() if name != "inplace"}
        return FUNCTIONS[node.target](**options)
    raise _unknown(f"step {node.name!r} calls {getattr(node.target, '__name__', node.target)}")


def _flattens_all_but_batch(node: fx.Node) -> bool:
    start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
    end = node.args[2] if len(node.args) > 2 else node.kwargs.get("end_dim", -1)
    return (start, end) == (1, -1)


def _check_variant(name: str, module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d) and (module.groups != 1 or module.padding_mode != "zeros"):
        raise _unknown(f"layer {name!r} is a Conv2d with groups={module.groups}, padding_mode={module.padding_mode!r}")
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
        raise _unknown(f"layer {name!r} is a Flatten that does not keep just the batch dimension")
    if isinstance(module, nn.MaxPool2d) and (module.ceil_mode or module.return_indices):
        raise _unknown(f"layer {name!r} is a MaxPool2d with ceil_mode or return_indices")
    if isinstance(module, nn.AvgPool2d) and (
        module.ceil_mode or module.divisor_override or not module.count_include_pad
    ):
        raise _unknown(f"layer {name!r} is an AvgPool2d with ceil_mode, a divisor or uncounted padding")


def _unknown(what: str) -> BhcError:
    return BhcError(f"{what}, which cannot be compressed yet", hint=f"supported layers: {supported()}")


@torch.no_grad()
def _check_runs_alike(net: nn.Module, chain: nn.Sequential, example_input: Tensor) -> None:
    try:
        expected, given = net(example_input), chain(example_input)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        shape = tuple(getattr(example_input, "shape", ()))
        raise BhcError(
            f"the network does not run on the example input of shape {shape}: {error}",
            hint="example_input is a batch as the network takes it, for example (1, 1, 28, 28)",
        ) from error
    if not isinstance(expected, Tensor):
        raise BhcError(
            f"the network returns a {type(expected).__name__}, not a tensor",
            hint="wrap it in a module that returns the logits alone",
        )
    if not torch.allclose(expected, given, rtol=1e-4, atol=1e-5):
        raise BhcError("the traced chain does not compute what the network computes")
