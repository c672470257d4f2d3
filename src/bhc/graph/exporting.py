"""A network as torch's own exporter sees it: a program of its operators, with everything that it needs."""

import copy
import logging
import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import OutputKind
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from bhc.errors import BhcError, warn
from bhc.graph.program import Exported, find_modules, only
from bhc.graph.signature import DynamicAxes, Examples

BLOCKS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
SAME_WHEN_USED = tuple(f"aten::{name}dropout" for name in ("", "feature_", "alpha_", "feature_alpha_"))
FIXED = re.compile(r"Constraints violated \(L(\['\w+'\])*\['(?P<name>\w+)'\](\[\d+\])?\.size\(\)\[(?P<axis>\d+)\]")
CELLS = tuple(f"aten.{name}_cell.default" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
RANDOM = torch.Tag.nondeterministic_seeded
NOT_RANDOM = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "lstm", "gru", "rnn_tanh",
              "rnn_relu", "scaled_dot_product_attention", "rrelu", "native_dropout")  # fmt: skip


def export(
    net: nn.Module, example_input: Any, *, output: str | int | None = None, dynamic_axes: DynamicAxes = ()
) -> Exported:
    """Capture ``net`` as it is used; BhcError says what cannot be captured, and where."""
    own = _own_copy(net)
    examples, answer = _first_answer(own, Examples.like(example_input, dynamic_axes))
    pick = _which(answer, output)
    examples.check_named(own)
    program = _export(own, examples)
    graph = _inlined(program.graph_module) if _has_blocks(program.graph) else program.graph
    _check_deterministic(program, graph)
    signature = program.graph_signature
    state = dict(program.state_dict) | dict(program.constants)
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    named |= signature.inputs_to_lifted_tensor_constants
    constants = {placeholder: state[name] for placeholder, name in named.items()}
    given = _in_order(program, examples)
    values = {node.name: node.meta["val"] for node in graph.nodes if node.op == "placeholder"}
    symbols: dict[Any, tuple[int, int]] = {}
    for place, name in enumerate(given):
        for axis, size in enumerate(values[name].shape):
            if isinstance(size, torch.SymInt):
                symbols.setdefault(size.node.expr, (place, axis))
    outputs = next(node for node in graph.nodes if node.op == "output").args[0]
    kinds = [spec.kind for spec in signature.output_specs]  # where inputs are written into, these come out too
    results = [node for node, kind in zip(outputs, kinds, strict=True) if kind is OutputKind.USER_OUTPUT]
    result = results[pick or 0]
    first = only(answer, pick)
    exported = Exported(
        own, graph, result, examples, first, constants, dict(signature.inputs_to_parameters), given, symbols, pick
    )
    find_modules(exported)
    return exported


def _in_order(program: Any, examples: Examples) -> tuple[str, ...]:
    """The program's names for the inputs, in the order of the examples."""
    names = tuple(program.graph_signature.user_inputs)
    if not examples.by_name:
        return names
    order = program.call_spec.in_spec.child(1).context  # of keyword arguments: torch's order, not the caller's
    return tuple(names[order.index(name)] for name in examples.names)


def _own_copy(net: nn.Module) -> nn.Module:
    """A copy that nobody else changes: eval mode, float32, on the CPU, without wrappers."""
    while isinstance(net, nn.DataParallel) or hasattr(net, "_orig_mod"):
        net = net.module if isinstance(net, nn.DataParallel) else net._orig_mod  # type: ignore[assignment]
    if isinstance(net, torch.jit.ScriptModule):
        raise BhcError(
            f"{type(net).__name__} is a jit module, whose code torch.export does not see",
            hint="wrap the module that it was made from",
        )
    for name, parameter in net.named_parameters():
        if is_lazy(parameter):
            raise BhcError(f"{name!r} has no size yet: its layer is lazy", hint="first run the network once on a batch")
    devices = {str(parameter.device) for parameter in net.parameters()}
    if len(devices) > 1:
        raise BhcError(f"parameters on several devices: {', '.join(sorted(devices))}", hint="move the network to one")
    # Numbers that are made of others, as pruning leaves them, torch does not copy by itself.
    made = [value for module in net.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    try:
        own = copy.deepcopy(net, {id(value): value.detach().clone() for value in made if not value.is_leaf})
    except Exception as error:
        raise BhcError(f"{type(net).__name__} cannot be copied: {error}") from error
    _say_what_is_changed(net, own)
    return own.cpu().float().eval().requires_grad_(False)


def _say_what_is_changed(net: nn.Module, own: nn.Module) -> None:
    """The copy computes in single precision, and language models without a cache."""
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in net.parameters()} - {"float32"}
    if dtypes:
        warn(f"{type(net).__name__} is {', '.join(sorted(dtypes))}; it is taken in float32")
    configurations = [getattr(module, "config", None) for module in own.modules()]
    cached = [config for config in configurations if getattr(config, "use_cache", False)]
    for config in cached:
        config.use_cache = False  # type: ignore[union-attr]
    if cached:
        warn(f"the cache of {type(net).__name__} is switched off (use_cache)")


@torch.no_grad()
def _first_answer(net: nn.Module, given: Examples) -> tuple[Examples, Any]:
    """Inputs that the network runs on, and what it says to them: sampled ones, or just those that were given."""
    sampled = given.with_sampled_floats()
    with suppress(Exception):
        return sampled, sampled.passed_to(net)
    try:
        return given, given.passed_to(net)
    except Exception as error:
        raise BhcError(
            f"the network does not run on the example input of shape {given.shapes}: {error}{_where(error)}",
            hint="example_input is a batch as the network takes it, for example (1, 1, 28, 28); several inputs are a"
            " tuple, or a dict by their names",
        ) from error


def _which(answer: Any, output: str | int | None) -> int | None:
    """The place of the result among all tensors that are returned."""
    if isinstance(answer, Tensor) and output is None:
        return None
    leaves = pytree.tree_leaves(answer)
    if output is None:
        if len(leaves) == 1 and isinstance(leaves[0], Tensor):
            return 0
        raise BhcError(
            f"the network returns a {type(answer).__name__} of {len(leaves)} values ({_choices(answer)})",
            hint="say which one counts: wrap(..., output=...)",
        )
    try:
        chosen = answer[output] if not isinstance(output, str) or isinstance(answer, dict) else getattr(answer, output)
    except (KeyError, IndexError, TypeError, AttributeError):
        chosen = None
    if not isinstance(chosen, Tensor) or isinstance(answer, Tensor):
        raise BhcError(f"the network returns nothing under output={output!r}", hint=f"it returns {_choices(answer)}")
    return next(place for place, leaf in enumerate(leaves) if leaf is chosen)


def _choices(answer: Any) -> str:
    """What ``output`` may be."""
    if isinstance(answer, Tensor):
        return "one tensor: leave output out"
    names = list(answer) if isinstance(answer, dict) else list(range(len(answer))) if hasattr(answer, "__len__") else []
    return ", ".join(map(repr, names)) or type(answer).__name__


def _export(net: nn.Module, examples: Examples) -> Any:
    try:
        with torch.no_grad(), quietly(logging.CRITICAL):
            program = examples.exported(net)
            _drop_dropout_(program.graph)
            apart = _taken_apart(program.graph)
            if apart or any(_is_written_through(node) for node in program.graph.nodes):
                program = program.run_decompositions(apart)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        fixed = FIXED.match(reason[0])
        if fixed and any(examples.dynamic) and fixed["axis"] != "0":
            raise BhcError(
                f"{type(net).__name__} takes one size only along axis {fixed['axis']} of {fixed['name']!r}",
                hint="leave that axis out of dynamic_axes; where inputs share a size, name the axis of each of them",
            ) from error
        if reason[0].startswith("Constraints violated"):
            raise BhcError(
                f"{type(net).__name__} takes a batch of one size only: its code has the size as a fixed number",
                hint="write x.flatten(1), or x.shape[0] in the place of len(x), and no loop over the examples; the"
                " first axis must be the batch (recurrent layers and attention: batch_first=True)",
            ) from error
        raise BhcError(
            f"torch.export cannot capture {type(net).__name__}: {reason[0][:300]}{_where(error)}",
            hint="the forward pass must not branch on values, nor take a number out of a tensor",
        ) from error
    return program


@contextmanager
def quietly(most: int) -> Iterator[None]:
    """Without warnings, and logs up to a level: torch warns of its own parts, and tells programs before an error."""
    level = logging.root.manager.disable
    logging.disable(most)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _where(error: BaseException) -> str:
    """The line of the user's code that an error comes from."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    standard = str(Path(traceback.__file__).parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(ours)
        and (not frame.filename.startswith(standard) or "site-packages" in frame.filename)
        and Path(frame.filename).exists()
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line})" if frames else ""


def _drop_dropout_(graph: fx.Graph) -> None:
    """When a network is used, dropout gives the very tensor that it reads: who writes into one writes into both."""
    for node in list(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.name in SAME_WHEN_USED and not node.args[2]:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _taken_apart(graph: fx.Graph) -> dict[Any, Any]:
    """What cells of recurrent layers do at a step of a user's own loop, by operators that they have in it."""
    cells = {node.target for node in graph.nodes if str(node.target) in CELLS}
    known = torch.export.default_decompositions() if cells else {}
    return {cell: known[cell] for cell in cells}


def _is_written_through(node: fx.Node) -> bool:
    """Whether it writes into a value that others see by another name: such programs are made functional by torch."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return False
    if any(isinstance(argument, fx.Node) and name == "out" for name, argument in node.kwargs.items()):
        return True
    written = node.args[0] if node.args else None
    if not isinstance(written, fx.Node):
        return False
    return _is_view(written) or any(_is_view(user) for user in written.users if user is not node)


def _is_view(node: fx.Node) -> bool:
    """Whether it gives what it reads, or a part of it, under another name."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable:
        return False
    return any(result.alias_info is not None for result in schema.returns)


def _has_blocks(graph: fx.Graph) -> bool:
    return any(str(node.target) in BLOCKS for node in graph.nodes)


def _inlined(module: fx.GraphModule) -> fx.Graph:
    """The program with the contents of ``no_grad`` and autocast blocks in their place."""
    while _has_blocks(module.graph):
        node = next(node for node in module.graph.nodes if str(node.target) in BLOCKS)
        place = next(index for index, part in enumerate(node.args) if _is_block(module, part))
        inside: fx.Graph = getattr(module, node.args[place].target).graph
        given = dict(zip((n for n in inside.nodes if n.op == "placeholder"), node.args[place + 1 :], strict=True))
        with module.graph.inserting_before(node):
            outputs: Any = module.graph.graph_copy(inside, given)
        for user in list(node.users):
            user.replace_all_uses_with(outputs[user.args[1]])
            module.graph.erase_node(user)
        block = node.args[place]
        module.graph.erase_node(node)
        if not block.users:
            module.graph.erase_node(block)
    return module.graph


def _is_block(module: fx.GraphModule, part: Any) -> bool:
    return isinstance(part, fx.Node) and part.op == "get_attr" and hasattr(getattr(module, str(part.target)), "graph")


def _check_deterministic(program: Any, graph: fx.Graph) -> None:
    if program.graph_signature.buffers_to_mutate:
        names = ", ".join(sorted(set(program.graph_signature.buffers_to_mutate.values())))
        raise BhcError(
            f"the network keeps a state: it writes into {names}", hint="take the state out of the forward pass"
        )
    for node in graph.nodes:
        tags = getattr(node.target, "tags", ())
        if RANDOM in tags and str(node.target).split(".")[1].rstrip("_") not in NOT_RANDOM:
            raise BhcError(
                f"the network draws random numbers when it is used ({node.target})", hint="switch that off in eval mode"
            )
