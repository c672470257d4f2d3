"""Whether a captured graph computes what the network computes, for one batch as for another."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bhc.errors import BhcError
from bhc.graph.graph import Graph, Step
from bhc.layers import Embed, is_weighted
from bhc.layers.aten import AtenCall, Dtype

if TYPE_CHECKING:
    from bhc.graph.exporting import Exported

PROBES = 2  # random inputs on which the graph must do as the network does
TOLERANCE = 1e-3  # of the largest number, in single precision
CLOSE = 1e-6  # in double precision


@torch.no_grad()
def check_runs_alike(exported: "Exported", precise: Graph) -> None:
    """On the example, and on inputs like it: an example of zeros would prove little.

    The program is compared with the network, and the graph with the program in double precision: a deep network may
    make something large of what is rounded otherwise. ``precise`` is the graph in double precision.
    """
    draws = torch.Generator().manual_seed(0)
    inputs = [exported.examples, *(_like(exported.examples, precise, draws) for _ in range(PROBES))]
    name = type(exported.net).__name__
    for x in inputs:
        wanted, again = exported.answer(x), exported.answer(x)
        before = exported.first_answer if x is exported.examples else again
        if not (_near(wanted, again, CLOSE) and _near(wanted, before, CLOSE)):
            raise BhcError(
                f"{name} gives another answer when it is called again",
                hint="take state and random numbers out of the forward pass",
            )
        if not _near(wanted, exported.run(x), TOLERANCE):
            raise BhcError(
                f"the captured program does not compute what {name} computes",
                hint="look for a forward pass that depends on something else than its input",
            )
        floats = x.double() if x.is_floating_point() else x
        if not _near(exported.run(floats, precise=True), precise(floats), CLOSE):
            raise BhcError(
                f"the graph does not compute what {name} computes", hint="please report this network: it is our fault"
            )
    _check_first_axis(exported, inputs[-1])


def _near(wanted: Tensor, given: Tensor, tolerance: float) -> bool:
    if wanted.shape != given.shape:
        return False
    if not wanted.is_floating_point():
        return torch.equal(wanted, given)
    largest = max(float(wanted.abs().nan_to_num(0.0, 0.0, 0.0).max()), 1e-30)
    return torch.allclose(wanted, given, rtol=0.0, atol=tolerance * largest, equal_nan=True)


def _check_first_axis(exported: "Exported", x: Tensor) -> None:
    """Examples of a batch must not know of each other."""
    both, more = exported.answer(x), exported.answer(torch.cat([x.flip(0), x[:1]]))
    apart = both.shape[:1] == x.shape[:1] and len(more) == len(x) + 1
    if not apart or not _near(torch.cat([both.flip(0), both[:1]]), more, TOLERANCE):
        raise BhcError(
            f"what {type(exported.net).__name__} says of an example depends on the others of its batch",
            hint="the first axis must be the batch (recurrent layers and attention: batch_first=True), and norms must"
            " have running statistics",
        )


def in_double_precision(graph: Graph) -> Graph:
    """A copy that computes in double precision also where a step names its dtype."""
    twin = copy.deepcopy(graph).double()
    for module in twin.modules():
        if isinstance(module, AtenCall):
            module.arguments = [_wider(argument) for argument in module.arguments]
            module.named = {name: _wider(argument) for name, argument in module.named.items()}
    return twin


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
    x = exported.examples
    longer = torch.cat([x, _like(x, graph, torch.Generator().manual_seed(1))])
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

    graph.run(x.double() if x.is_floating_point() else x, note)
    graph.run(longer.double() if x.is_floating_point() else longer, compare)
    return apart


def _like(example: Tensor, graph: Graph, draws: torch.Generator) -> Tensor:
    """Random inputs of the example's size, or words where it is words that are read."""
    shape = tuple(example.shape)
    if example.is_floating_point():
        peak = float(example.abs().max()) or 1.0
        return peak * torch.randn(shape, generator=draws)
    counts = [step.module.count for step in graph.steps if isinstance(step.module, Embed)]
    highest = min(counts) if counts else int(example.max()) + 1
    return torch.randint(max(highest, 1), shape, generator=draws).to(example.dtype)
