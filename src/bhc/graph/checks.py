"""Whether a captured graph computes what the network computes, for one batch as for another."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.graph.examples import Examples
from bhc.graph.graph import INPUT, Graph, Step
from bhc.layers import EXAMPLES, Embed, bare_copy, is_weighted
from bhc.layers.aten import AtenCall, Dtype

if TYPE_CHECKING:
    from bhc.graph.exporting import Exported

TOLERANCE = 1e-3  # of the largest number, in single precision
CLOSE = 1e-6  # in double precision


@torch.no_grad()
def check_runs_alike(exported: "Exported", precise: Graph) -> None:
    """On an input like the example: an example of zeros would prove little.

    The network is called twice, the program is compared with it, and the graph with the program in double precision: a
    deep network may make something large of what is rounded otherwise. ``precise`` is the graph in double precision.
    """
    name, x = type(exported.net).__name__, _like(exported.examples, precise, seed=0)
    others = [x, x.shortened()] if any(x.dynamic) else [x]
    if not _near(exported.first_answer, exported.answer(exported.examples), CLOSE):
        raise BhcError(
            f"{name} gives another answer when it is called again",
            hint="take state and random numbers out of the forward pass",
        )
    wanted = exported.answer(x)
    if not _near(wanted, exported.run(x), TOLERANCE):
        raise BhcError(
            f"the captured program does not compute what {name} computes",
            hint="look for a forward pass that depends on something else than its input",
        )
    for each in others:
        if not _near(exported.run(each, precise=True), precise(*each.changed(_widened).tensors), CLOSE):
            raise BhcError(
                f"the graph does not compute what {name} computes", hint="please report this network: it is our fault"
            )
    _check_first_axis(exported, x, wanted)


def _near(wanted: Tensor, given: Tensor, tolerance: float) -> bool:
    if wanted.shape != given.shape:
        return False
    if not wanted.is_floating_point():
        return torch.equal(wanted, given)
    largest = max(float(wanted.abs().nan_to_num(0.0, 0.0, 0.0).max()), 1e-30)
    return torch.allclose(wanted, given, rtol=0.0, atol=tolerance * largest, equal_nan=True)


def _check_first_axis(exported: "Exported", x: Examples, both: Tensor) -> None:
    """Examples of a batch must not know of each other."""
    more = exported.answer(x.repeated())
    apart = both.dim() > 0 and len(both) == EXAMPLES and len(more) == EXAMPLES + 1
    if not apart or not _near(torch.cat([both.flip(0), both[:1]]), more, TOLERANCE):
        raise BhcError(
            f"what {type(exported.net).__name__} says of an example depends on the others of its batch",
            hint="the first axis must be the batch (recurrent layers and attention: batch_first=True), and norms must"
            " have running statistics",
        )


def in_double_precision(graph: Graph) -> Graph:
    """The same graph, whose numbers are doubles, computing so also where a step names its dtype."""
    replaced: dict[str, nn.Module] = {}
    for step in graph.steps:
        if isinstance(step.module, AtenCall):
            arguments = [_wider(argument) for argument in step.module.arguments]
            named = {name: _wider(argument) for name, argument in step.module.named.items()}
            if arguments != step.module.arguments or named != step.module.named:
                replaced[step.name] = twin = bare_copy(step.module)
                twin.arguments, twin.named = arguments, named
    return graph.with_steps(replaced)


def _wider(argument: Any) -> Any:
    if argument == Dtype("float32"):
        return Dtype("float64")
    return [_wider(part) for part in argument] if isinstance(argument, list) else argument


@torch.no_grad()
def check_batches(graph: Graph, exported: "Exported") -> Sequence[str]:
    """The weighted layers whose examples do not come one after the other.

    Two batches go through the graph, the second with two more examples at its end: what a layer reads of the first
    must be the beginning of what it reads of the second.
    """
    x = _like(exported.examples, graph, seed=0)
    other = _like(exported.examples, graph, seed=1)
    longer = replace(x, tensors=tuple(map(torch.cat, zip(x.tensors, other.tensors, strict=True))))
    seen: dict[str, Tensor] = {}
    apart: list[str] = []

    def note(step: Step, *values: Tensor) -> Tensor:
        if is_weighted(step.module):
            seen[step.name] = values[0]
        return step.module(*values)

    def compare(step: Step, *values: Tensor) -> Tensor:
        if is_weighted(step.module):
            before, now = seen.pop(step.name), values[0]
            half = len(now) // 2
            if 2 * half != len(now) or now[:half].shape != before.shape or not _near(before, now[:half], TOLERANCE):
                apart.append(step.name)
        return step.module(*values)

    graph.run(x.changed(_widened).as_inputs(), note)
    graph.run(longer.changed(_widened).as_inputs(), compare)
    return apart


def _widened(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _like(examples: Examples, graph: Graph, *, seed: int) -> Examples:
    """Random inputs of the examples' sizes, or words where it is words that are read."""
    draws = torch.Generator().manual_seed(seed)
    sources = graph.given or (INPUT,)
    made = (_drawn(each, _words(graph, source), draws) for each, source in zip(examples.tensors, sources, strict=True))
    return replace(examples, tensors=tuple(made))


def _words(graph: Graph, source: str) -> int | None:
    """How many words there are, where it is an embedding that reads an input."""
    readers = (step.module for step in graph.steps if source in step.reads)
    return min((module.count for module in readers if isinstance(module, Embed)), default=None)


def _drawn(example: Tensor, words: int | None, draws: torch.Generator) -> Tensor:
    shape = tuple(example.shape)
    if example.is_floating_point():
        peak = float(example.abs().max()) or 1.0
        return peak * torch.randn(shape, generator=draws)
    return torch.randint(max(words or int(example.max()) + 1, 1), shape, generator=draws).to(example.dtype)
