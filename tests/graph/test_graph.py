import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from bhc.graph import INPUT, Graph, Step
from bhc.layers import Add, Concat, Multiply

from ..formats.graphs import wired
from .nets import seeded


def chain() -> Graph:
    return Graph.chain([("first", nn.Linear(4, 5)), ("relu", nn.ReLU()), ("last", nn.Linear(5, 2))])


def branching() -> Graph:
    """The input and what a layer makes of it, added; the sum times itself; all three side by side."""
    return wired(
        ("layer", nn.Linear(4, 4)),
        ("sum", Add(), INPUT, "layer"),
        ("square", Multiply(), "sum", "sum"),
        ("beside", Concat(), "layer", "square", "sum"),
        ("end", nn.Linear(12, 3)),
    )


def test_each_step_is_computed_of_what_it_reads() -> None:
    graph, x = chain(), seeded(3, 4)
    assert torch.equal(graph(x), graph.last(graph.first(x).relu()))
    graph = branching()
    layer = graph.layer(x)
    total = x + layer
    assert torch.equal(graph(x), graph.end(torch.cat([layer, total * total, total], 1)))


def test_every_result_knows_its_readers() -> None:
    assert branching().readers == {
        INPUT: ("layer", "sum"),
        "layer": ("sum", "beside"),
        "sum": ("square", "square", "beside"),
        "square": ("beside",),
        "beside": ("end",),
        "end": (INPUT,),
    }


@pytest.mark.parametrize(
    "steps",
    [
        [Step("a", nn.ReLU(), (INPUT,)), Step("a", nn.ReLU(), ("a",))],
        [Step("a", nn.ReLU(), ("b",)), Step("b", nn.ReLU(), (INPUT,))],
        [Step("a", nn.ReLU(), ("a",))],
        [Step("a", nn.ReLU(), ("nowhere",))],
    ],
    ids=["twice", "later", "itself", "nowhere"],
)
def test_steps_out_of_order_are_refused(steps: list[Step]) -> None:
    with pytest.raises(ValueError, match="twice"):
        Graph(steps)


def test_a_value_is_let_go_after_its_last_reader() -> None:
    graph, given, seen = branching(), {}, {}

    def apply(step: Step, *values: Tensor) -> Tensor:
        gc.collect()
        seen[step.name] = {name for name, value in given.items() if value() is not None}
        result = step.module(*values)
        given[step.name] = weakref.ref(result)
        return result

    with torch.no_grad():
        graph.run(seeded(3, 4), apply)
    assert seen == {
        "layer": set(),
        "sum": {"layer"},
        "square": {"layer", "sum"},
        "beside": {"layer", "sum", "square"},
        "end": {"beside"},
    }
