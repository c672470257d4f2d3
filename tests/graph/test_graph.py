import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from bhc.graph import INPUT, Graph, Step
from bhc.layers import Add, Concat, Multiply, bare_copy

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


GRAPHS = {"chain": chain, "branching": branching}


def test_each_step_is_computed_of_what_it_reads() -> None:
    graph, x = chain(), seeded(3, 4)
    assert torch.equal(graph(x), graph.last(graph.first(x).relu()))
    graph = branching()
    layer = graph.layer(x)
    total = x + layer
    assert torch.equal(graph(x), graph.end(torch.cat([layer, total * total, total], 1)))


def test_steps_are_children_in_the_order_they_run() -> None:
    graph, names = branching(), ["layer", "sum", "square", "beside", "end"]
    assert [step.name for step in graph.steps] == [name for name, _ in graph.named_children()] == names
    assert list(graph.state_dict()) == ["layer.weight", "layer.bias", "end.weight", "end.bias"]
    assert graph.last_step == "end"
    assert [step.reads for step in chain().steps] == [(INPUT,), ("first",), ("relu",)]


def test_every_result_knows_its_readers() -> None:
    assert branching().readers == {
        INPUT: ("layer", "sum"),
        "layer": ("sum", "beside"),
        "sum": ("square", "square", "beside"),
        "square": ("beside",),
        "beside": ("end",),
        "end": (INPUT,),
    }


def test_only_steps_in_a_row_are_a_chain() -> None:
    assert chain().is_chain
    assert not branching().is_chain
    assert not Graph([Step("a", nn.ReLU(), (INPUT,)), Step("b", nn.Tanh(), (INPUT,))]).is_chain


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


@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("training", [True, False])
def test_the_plain_module_is_the_same_function(build: Any, training: bool) -> None:
    graph, x = build().train(training), seeded(3, 4)
    plain = graph.plain()
    assert type(plain) is nn.Sequential if graph.is_chain else isinstance(plain, fx.GraphModule)
    assert torch.equal(plain(x), graph(x))
    assert plain.training == training
    assert {name: value.data_ptr() for name, value in plain.state_dict().items()} == {
        name: value.data_ptr() for name, value in graph.state_dict().items()
    }


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


def test_the_result_may_be_read_on_the_way() -> None:
    """Nothing more than the last step's result is asked for, also where nobody reads a step."""
    graph = Graph([Step("unread", nn.Tanh(), (INPUT,)), Step("end", nn.ReLU(), (INPUT,))])
    x = seeded(3, 4)
    assert torch.equal(graph(x), x.relu())
    assert graph.readers["unread"] == ()


def test_modules_are_replaced_and_the_wiring_stays() -> None:
    graph, x = branching(), seeded(3, 4)
    other = nn.Linear(12, 3)
    replaced = graph.with_steps({"end": other})
    assert [step.reads for step in replaced.steps] == [step.reads for step in graph.steps]
    assert replaced.end is other
    assert replaced.layer is graph.layer
    assert not torch.equal(replaced(x), graph(x))


@pytest.mark.parametrize("build", GRAPHS.values(), ids=GRAPHS)
def test_a_copy_is_a_graph_of_its_own(build: Any) -> None:
    graph, x = build(), seeded(3, 4)
    expected = graph(x)
    twin = copy.deepcopy(graph)
    assert torch.equal(twin(x), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(graph(x), expected)
    assert twin.readers == graph.readers


def test_a_bare_copy_shares_numbers_until_they_are_replaced() -> None:
    layer = nn.Linear(3, 2)
    twin = bare_copy(layer)
    assert type(twin) is nn.Linear
    assert twin.weight is layer.weight
    twin._parameters["weight"] = nn.Parameter(torch.zeros(2, 3))
    assert layer.weight.any()
    assert not twin.weight.any()
