"""Whether a captured graph computes what the network computes, for one batch as for another."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bhc.errors import BhcError
from bhc.graph.examples import Examples
from bhc.graph.graph import INPUT, Graph, Step
from bhc.layers import EXAMPLES, Embed, is_weighted

if TYPE_CHECKING:
    from bhc.graph.exported import Exported

TOLERANCE = 1e-3  # of the largest number, in single precision
SURE = 1e-5  # in single precision: what differs by less does not compute something else
CLOSE = 1e-6  # in double precision
LAST_BITS = 1e-15  # of doubles
FURTHER = 10  # times what those make of a result: every layer rounds, not the input alone


@torch.no_grad()
def check_runs_alike(exported: "Exported", graph: Graph, make_precise: Callable[[], Graph]) -> None:
    """On an input like the example: an example of zeros would prove little.

    The graph is compared with the network. Where that leaves a doubt, since a deep network may make something large of
    what is rounded otherwise, the program is compared with the network, and the graph with the program in double
    precision: ``make_precise`` makes it with numbers that were never rounded.
    """
    x, wanted = exported.examples, exported.first_answer
    if any(not tensor.is_floating_point() for tensor in x.tensors):  # other words than the example's
        x = x.drawn(lambda place: _words(graph, place), seed=0)
        wanted = exported.answer(x)
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


def _check_calls_again(exported: "Exported", x: Examples, wanted: Tensor) -> None:
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


def _check_in_double_precision(exported: "Exported", precise: Graph, inputs: Sequence[Examples]) -> None:
    name = type(exported.net).__name__
    for x in inputs:
        if not _near(exported.answer(x), exported.run(x), TOLERANCE):
            raise BhcError(
                f"the captured program does not compute what {name} computes",
                hint="look for a forward pass that depends on something else than its input",
            )
        if not _is_the_same(exported, x.changed(_widened), precise):
            raise BhcError(
                f"the graph does not compute what {name} computes", hint="please report this network: it is our fault"
            )


def _is_the_same(exported: "Exported", x: Examples, precise: Graph) -> bool:
    """Or no further from the program than that is from itself when the last bits of its input are shaken."""
    wanted, given = exported.run(x, precise=True), precise(*x.tensors)
    if _near(wanted, given, CLOSE):
        return True
    shaken = exported.run(x.changed(_shaken), precise=True)
    return _largest(given - wanted) <= FURTHER * _largest(shaken - wanted)


def _shaken(x: Tensor) -> Tensor:
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
def check_batches(graph: Graph, exported: "Exported") -> Sequence[str]:
    """The weighted layers whose examples do not come one after the other.

    Two batches go through the graph, the second with two more examples at its end: what a layer reads of the first
    must be the beginning of what it reads of the second.
    """
    x, other = (exported.examples.drawn(lambda place: _words(graph, place), seed=seed) for seed in (0, 1))
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

    graph.run(x.as_inputs(), note)
    graph.run(longer.as_inputs(), compare)
    return apart


def _widened(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _words(graph: Graph, place: int) -> int | None:
    """How many words there are, where it is an embedding that reads an input."""
    source = (graph.given or (INPUT,))[place]
    readers = (step.module for step in graph.steps if source in step.reads)
    return min((module.count for module in readers if isinstance(module, Embed)), default=None)
