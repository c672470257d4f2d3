"""From any module to a graph of steps, by way of ``torch.export``.

The graph is made simpler (norms taken into layers, turns that undo each other, steps that nobody reads), and it is
checked that it computes what the network computes, for one batch as for another."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.graph.examples_apart import examples_apart
from bhc.graph.exporting import export
from bhc.graph.graph import INPUT, Graph, Step, calls_of_layers, needed_steps
from bhc.graph.program import Exported, in_double_precision, wider
from bhc.graph.reader import Reader
from bhc.graph.signature import DynamicAxes, Examples
from bhc.graph.straighten import straighten
from bhc.layers import (
    EXAMPLES,
    Affine,
    Embed,
    Shape,
    Subsample,
    Tied,
    bare_copy,
    call_of,
    is_product,
    weighted_kind,
)
from bhc.layers.aten import AtenCall, Dtype, Read
from bhc.layers.kind import fixed
from bhc.layers.linear import with_numbers


def capture(
    net: nn.Module, example_input: Any, *, output: str | int | None = None, dynamic_axes: DynamicAxes = ()
) -> Graph:
    """The graph that computes what ``net`` computes in eval mode; ``net`` itself is left alone.

    Several inputs are a tuple of tensors, or a dict of them by name. Of several results ``output`` is the one that
    counts: its place, or its name. Along ``dynamic_axes`` inputs may have another size than the example.
    """
    exported = export(net, example_input, output=output, dynamic_axes=dynamic_axes)
    reader = Reader(exported)
    graph = _ready(_graph(reader))
    check_runs_alike(exported, graph, lambda: in_double_precision(_graph(Reader(exported))))
    whole = () if reader.maker.examples_come_first else check_batches(graph, exported)
    if whole:  # their examples do not come one after the other, so that no context's can be told apart
        graph = _ready(_graph(Reader(exported, whole=whole)))
    graph.original = exported.count()
    return graph


def _ready(graph: Graph) -> Graph:
    return graph.float().eval().requires_grad_(False)


def _graph(reader: Reader) -> Graph:
    examples, maker = reader.exported.examples, reader.maker
    graph, shapes = examples_apart(Graph(reader.steps()), maker.shapes, maker.symbolic)
    if examples.is_plain:
        graph = Graph(_as_numbers(graph.steps, examples.tensors[0].dtype))
    return tidy(graph, shapes)


def _as_numbers(steps: Sequence[Step], dtype: torch.dtype) -> Sequence[Step]:
    """Words come as numbers of any dtype; who computes with them gets whole ones, as the network does."""
    readers = [step.name for step in steps if INPUT in step.reads and isinstance(step.module, AtenCall)]
    if dtype.is_floating_point or not readers:
        return steps
    name = str(dtype).removeprefix("torch.")
    cast = call_of("aten._to_copy.default", [Read(0)], {"dtype": Dtype(name)})
    first = "numbers"
    while any(step.name == first for step in steps):
        first += "_"
    rewired = (step.rewired({INPUT: first}) if step.name in readers else step for step in steps)
    return [Step(first, cast, (INPUT,)), *rewired]


def tidy(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    """The same function with fewer steps; ``shapes`` are those of what they give."""
    graph = _with_subsamples(graph, shapes)
    graph = _without_turns(_without_stacks(_without_casts_of_words(graph), shapes))
    return _with_layers_of_their_own(_without_unread(straighten(_without_unread(fold_affines(graph, shapes)), shapes)))


def fold_affines(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    """``a (W x + b) + c = (a W) x + (a b + c)``: two numbers a channel go into the layer that alone is read.

    Where the value before is no layer's, or others read it too, they stay as a step of their own.
    """
    steps: dict[str, Step] = {}
    calls = calls_of_layers(graph)  # what follows one call of a layer may not follow another
    instead: dict[str, str] = {INPUT: INPUT}  # whose result stands for that of a step that is gone
    for step in graph.steps:
        reads = tuple(instead[name] for name in step.reads)
        instead[step.name] = step.name
        before = steps.get(reads[0]) if reads else None
        alone = len(graph.readers[step.reads[0]]) == 1 if step.reads else False
        alone = alone and before is not None and len(calls.get(before.name, ())) == 1
        if isinstance(step.module, Affine) and before is not None and alone and _writes_channels(before, shapes):
            steps[before.name] = Step(before.name, _folded(before.module, step.module), before.reads)
            instead[step.name] = before.name
        else:
            steps[step.name] = Step(step.name, step.module, reads)
    return Graph(steps.values())


def _writes_channels(step: Step, shapes: Mapping[str, Shape]) -> bool:
    """Whether it is a product whose outputs lie where an affine step has its channels: not those of tokens."""
    return is_product(step.module) and weighted_kind(step.module).out_axis % len(shapes[step.name]) == 1


def _folded(module: Any, affine: Affine) -> nn.Module:
    factor, shift = affine.weight.detach(), affine.bias.detach()
    folded = bare_copy(module)
    weight: Tensor = module.weight.detach()
    bias = shift if module.bias is None else factor * module.bias.detach() + shift
    folded._parameters["weight"] = fixed(weight * factor.view(-1, *[1] * (weight.dim() - 1)))
    folded._parameters["bias"] = fixed(bias.clone())
    return folded


def _with_layers_of_their_own(graph: Graph) -> Graph:
    """The transpose of a layer that nobody reads is one by itself."""
    made: dict[str, nn.Module] = {}
    for name, owner in graph.owners.items():
        module: Any = graph.get_submodule(owner)
        if isinstance(module, Tied):
            weight = module.layer.weight.detach().mT
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
            made[name] = made.get(owner) or with_numbers(linear, weight, None)
    return graph.with_steps(made)


def _without_casts_of_words(graph: Graph) -> Graph:
    """An embedding takes numbers of any dtype for words."""
    steps = {step.name: step for step in graph.steps}
    holding_words = (None, *map(Dtype, ("int64", "int32", "float32", "float64")))  # every number of a word, unchanged

    def source(name: str) -> str:
        module: Any = steps[name].module if name in steps else None
        is_cast = isinstance(module, AtenCall) and module.op in ("_to_copy", "to")
        return source(steps[name].reads[0]) if is_cast and module.argument("dtype") in holding_words else name

    return Graph(
        Step(step.name, step.module, (source(step.reads[0]),)) if isinstance(step.module, Embed) else step
        for step in graph.steps
    )


def _without_unread(graph: Graph) -> Graph:
    """Only the steps that the result depends on."""
    return Graph(needed_steps(graph.steps, {graph.last_step, *graph.input_steps}))


def _order(module: nn.Module) -> list[int] | None:
    if isinstance(module, AtenCall) and module.op == "permute":
        return list(module.argument("dims"))
    return None


def _without_turns(graph: Graph) -> Graph:
    """Two turns of which the second undoes the first are none."""
    steps = {step.name: step for step in graph.steps}
    instead: dict[str, str] = {}
    for step in graph.steps:
        second = _order(step.module)
        first = _order(steps[step.reads[0]].module) if second is not None and step.reads[0] in steps else None
        if first is not None and second is not None and [first[axis] for axis in second] == list(range(len(first))):
            source = steps[step.reads[0]].reads[0]
            instead[step.name] = instead.get(source, source)
    if not instead:
        return graph
    last = graph.last_step
    return Graph(step.rewired(instead) for step in graph.steps if step.name not in instead or step.name == last)


def _without_stacks(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    """``stack(a, b)[1] = b``: what is picked of values that were only put side by side, as last states are."""
    steps = {step.name: step for step in graph.steps}
    instead: dict[str, str] = {}
    for step in graph.steps:
        if isinstance(step.module, AtenCall) and step.module.op == "select" and step.reads[0] in steps:
            before, place = steps[step.reads[0]], step.module.argument("index")
            stacked = _beside(before, step.module.argument("dim") % len(shapes[before.name]), shapes)
            inside = isinstance(place, int) and -len(stacked) <= place < len(stacked)
            part = steps.get(stacked[place]) if inside else None
            is_reshape = part is not None and isinstance(part.module, AtenCall) and part.module.op == "reshape"
            if part is not None and is_reshape and shapes[part.reads[0]] == shapes[step.name]:
                instead[step.name] = instead.get(part.reads[0], part.reads[0])
    last = graph.last_step
    return Graph(step.rewired(instead) for step in graph.steps if step.name not in instead or step.name == last)


def _beside(step: Step, axis: int, shapes: Mapping[str, Shape]) -> Sequence[str]:
    """The values that a step puts beside each other, one place of an axis each; itself, where it has one place."""
    module = step.module
    if isinstance(module, AtenCall) and module.op == "cat" and module.argument("dim") == axis:
        parts = [step.reads[part.place] for part in module.argument("tensors") if isinstance(part, Read)]
        single = len(parts) == len(module.argument("tensors")) and all(shapes[part][axis] == 1 for part in parts)
        return parts if single else ()
    return (step.name,) if shapes[step.name][axis] == 1 else ()


def _with_subsamples(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    """Every n-th place in each direction, one slice a direction, as one step."""
    steps = {step.name: step for step in graph.steps}
    replaced: dict[str, Step] = {}
    for step in graph.steps:
        stride, axis = _stride(step.module)
        chain = [step]
        while stride and axis > 2 and (before := steps.get(chain[-1].reads[0])) is not None:
            if len(graph.readers[before.name]) != 1 or _stride(before.module) != (stride, axis - 1):
                break
            chain.append(before)
            axis -= 1
        if stride and axis == 2 and len(chain) == len(shapes[step.name]) - 2:
            replaced[step.name] = Step(step.name, Subsample(stride), chain[-1].reads)
    # A longer chain has the shorter ones in it, which nobody reads then.
    return Graph(replaced.get(step.name, step) for step in graph.steps)


def _stride(module: nn.Module) -> tuple[int, int]:
    """Of a slice that takes every n-th place from the first on: n, and the axis; zeros for other steps."""
    if not isinstance(module, AtenCall) or module.op != "slice":
        return 0, 0
    step, start, end = (module.argument(name) for name in ("step", "start", "end"))
    to_the_end = end is None or (isinstance(end, int) and end >= 1 << 30)
    if step in (None, 1) or start not in (None, 0) or not to_the_end:
        return 0, 0
    return step, module.argument("dim")


TOLERANCE = 1e-3  # of the largest number, in single precision
SURE = 1e-5  # in single precision: what differs by less does not compute something else
CLOSE = 1e-6  # in double precision
LAST_BITS = 1e-15  # of doubles
FURTHER = 10  # times what those make of a result: every layer rounds, not the input alone


@torch.no_grad()
def check_runs_alike(exported: Exported, graph: Graph, make_precise: Callable[[], Graph]) -> None:
    """On an input like the example: an example of zeros would prove little.

    The graph is compared with the network. Where that leaves a doubt, since a deep network may make something large of
    what is rounded otherwise, the program is compared with the network, and the graph with the program in double
    precision: ``make_precise`` makes it with numbers that were never rounded.
    """
    x, wanted = exported.examples, exported.first_answer
    if any(not tensor.is_floating_point() for tensor in x.tensors):
        x, wanted = _with_other_words(exported, graph)
    _check_calls_again(exported, x, wanted)
    sizes = [(x, wanted), *[(other, exported.answer(other)) for other in ([x.shortened()] if any(x.dynamic) else [])]]
    if written := exported.written():
        raise BhcError(
            f"{type(exported.net).__name__} writes into {written[0]!r} when it is called",
            hint="take the state out of the forward pass (of embeddings: max_norm)",
        )
    doubtful = [each for each, expected in sizes if not _near(expected, graph(*each.tensors), SURE)]
    if doubtful:
        _check_in_double_precision(exported, make_precise(), doubtful)


def _with_other_words(exported: Exported, graph: Graph) -> tuple[Examples, Tensor]:
    """Other words than the example's, and what the network says to them; the example where it takes no others."""
    x = exported.examples
    other = x.sampled(lambda place: _words(graph, place), seed=0)
    with suppress(Exception):
        return other, exported.answer(other)
    return x, exported.first_answer


def _check_calls_again(exported: Exported, x: Examples, wanted: Tensor) -> None:
    """Another batch of the same examples gets the same answers: there is no state, and examples are apart."""
    name, more = type(exported.net).__name__, exported.answer(x.repeated())
    apart = wanted.dim() > 0 and len(wanted) == EXAMPLES and len(more) == EXAMPLES + 1
    if apart and _near(torch.cat([wanted.flip(0), wanted[:1]]), more, TOLERANCE):
        return
    if not _near(wanted, exported.answer(x), CLOSE):
        raise BhcError(
            f"{name} gives another answer when it is called again",
            hint="take state and random numbers out of the forward pass",
        )
    both, more = (exported.run(each, precise=True) for each in (x, x.repeated()))  # a batch's size changes last bits
    if apart and _near(torch.cat([both.flip(0), both[:1]]), more, TOLERANCE):
        return
    raise BhcError(
        f"what {name} says of an example depends on the others of its batch",
        hint="the first axis must be the batch (recurrent layers and attention: batch_first=True), and norms must"
        " have running statistics",
    )


def _check_in_double_precision(exported: Exported, precise: Graph, inputs: Sequence[Examples]) -> None:
    name = type(exported.net).__name__
    for x in inputs:
        if not _near(exported.answer(x), exported.run(x), TOLERANCE):
            raise BhcError(
                f"the captured program does not compute what {name} computes",
                hint="look for a forward pass that depends on something else than its input",
            )
        if not _is_the_same(exported, x.changed(wider), precise):
            raise BhcError(
                f"the graph does not compute what {name} computes", hint="please report this network: it is our fault"
            )


def _is_the_same(exported: Exported, x: Examples, precise: Graph) -> bool:
    """Or no further from the program than that is from itself when the last bits of its input are perturbed."""
    wanted, given = exported.run(x, precise=True), precise(*x.tensors)
    if _near(wanted, given, CLOSE):
        return True
    perturbed = exported.run(x.changed(_perturbed), precise=True)
    return _largest(given - wanted) <= FURTHER * _largest(perturbed - wanted)


def _perturbed(x: Tensor) -> Tensor:
    draws = torch.Generator().manual_seed(0)
    return x * (1 + LAST_BITS * torch.randn(x.shape, generator=draws, dtype=x.dtype)) if x.is_floating_point() else x


def _largest(numbers: Tensor) -> float:
    return float(numbers.abs().max())


def _near(wanted: Tensor, given: Tensor, tolerance: float) -> bool:
    if wanted.shape != given.shape:
        return False
    if not wanted.is_floating_point():
        return torch.equal(wanted, given)
    largest = max(float(wanted.abs().nan_to_num(0.0, 0.0, 0.0).max()), 1e-30)
    return torch.allclose(wanted, given, rtol=0.0, atol=tolerance * largest, equal_nan=True)


@torch.no_grad()
def check_batches(graph: Graph, exported: Exported) -> Sequence[str]:
    """The weighted layers whose examples do not come one after the other.

    Two batches go through the graph, the second with two more examples at its end: what a layer reads of the first
    must be the beginning of what it reads of the second.
    """
    x, other = (exported.examples.sampled(lambda place: _words(graph, place), seed=seed) for seed in (0, 1))
    longer = replace(x, tensors=tuple(map(torch.cat, zip(x.tensors, other.tensors, strict=True))))
    seen: dict[str, Tensor] = {}
    apart: list[str] = []

    owners = graph.owners

    def note(step: Step, *values: Tensor) -> Tensor:
        if step.name in owners:
            seen[step.name] = values[0]
        return step.module(*values)

    def compare(step: Step, *values: Tensor) -> Tensor:
        if step.name in owners:
            before, now = seen.pop(step.name), values[0]
            half = len(now) // 2
            if 2 * half != len(now) or now[:half].shape != before.shape or not _near(before, now[:half], TOLERANCE):
                apart.append(step.name)
        return step.module(*values)

    graph.run(x.as_inputs(), note)
    graph.run(longer.as_inputs(), compare)
    layers = {owners[name] for name in apart}
    return [name for name, owner in owners.items() if owner in layers]


def _words(graph: Graph, place: int) -> int | None:
    """How many words there are, where it is an embedding that reads an input."""
    source = (graph.input_steps or (INPUT,))[place]
    readers = (step.module for step in graph.steps if source in step.reads)
    return min((module.count for module in readers if isinstance(module, Embed)), default=None)
