"""A captured graph made simpler: norms taken into layers, turns that undo each other, steps that nobody reads."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from bhc.graph.graph import INPUT, Graph, Step
from bhc.layers import Affine, Embed, Shape, Subsample, bare_copy, is_product, weighted_kind
from bhc.layers.aten import AtenCall, Dtype
from bhc.layers.modules import fixed


def tidy(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    """The same function with fewer steps; ``shapes`` are those of what they give."""
    graph = _with_subsamples(graph, shapes)
    graph = _without_turns(_without_casts_of_words(graph))
    return _without_unread(fold_affines(graph, shapes))


def fold_affines(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    """``a (W x + b) + c = (a W) x + (a b + c)``: two numbers a channel go into the layer that alone is read.

    Where the value before is no layer's, or others read it too, they stay as a step of their own.
    """
    steps: dict[str, Step] = {}
    instead: dict[str, str] = {INPUT: INPUT}  # whose result stands for that of a step that is gone
    for step in graph.steps:
        reads = tuple(instead[name] for name in step.reads)
        instead[step.name] = step.name
        before = steps.get(reads[0]) if reads else None
        alone = len(graph.readers[step.reads[0]]) == 1 if step.reads else False
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


def _without_casts_of_words(graph: Graph) -> Graph:
    """An embedding takes numbers of any dtype for words."""
    steps = {step.name: step for step in graph.steps}

    def source(name: str) -> str:
        module = steps[name].module if name in steps else None
        is_cast = isinstance(module, AtenCall) and module.op in ("_to_copy", "to") and _holds_words(module)
        return source(steps[name].reads[0]) if is_cast else name

    return Graph(
        Step(step.name, step.module, (source(step.reads[0]),)) if isinstance(step.module, Embed) else step
        for step in graph.steps
    )


def _holds_words(cast: AtenCall) -> bool:
    """Whether every number of a word goes through a cast unchanged."""
    return cast.argument("dtype") in (None, *map(Dtype, ("int64", "int32", "float32", "float64")))


def _without_unread(graph: Graph) -> Graph:
    """Only the steps that the result depends on."""
    needed = {graph.last_step, *graph.given}
    for step in reversed(graph.steps):
        if step.name in needed:
            needed.update(step.reads)
    return Graph(step for step in graph.steps if step.name in needed)


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
    return _rewired(graph, instead)


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


def _rewired(graph: Graph, instead: Mapping[str, str]) -> Graph:
    """The graph without some steps, whose readers read others."""
    if not instead:
        return graph
    last = graph.last_step
    steps = [
        Step(step.name, step.module, tuple(instead.get(name, name) for name in step.reads))
        for step in graph.steps
        if step.name not in instead or step.name == last
    ]
    return Graph(steps)
