import pytest
from torch import nn

from bhc.formats import PooledConvolution, unrolled
from bhc.graph import Graph

from .chains import NETWORKS, TORCH_REMARKS, assert_alike, graph_of, inputs, named

pytestmark = TORCH_REMARKS
RISING = ("relu", "relu6", "elu", "elu-of-a-whole-number", "selu", "tanh")
TAKEN_TOGETHER = {
    *(f"conv-{name}-pool" for name in RISING),
    *("conv-same-pool", "conv-padding-pool", "conv-pool-twice"),
    *("pooled-in-a-branch", "pooled-value-read-twice"),
}


def taken_together(graph: Graph) -> list[str]:
    return [step.name for step in graph.steps if isinstance(step.module, PooledConvolution)]


@pytest.mark.parametrize("name", NETWORKS)
def test_convolutions_taken_together_with_their_pools_compute_the_same(name: str) -> None:
    graph, shape = graph_of(name)
    together = unrolled(graph)
    assert_alike(together(inputs(shape)), graph(inputs(shape)), part=1e-5)
    assert bool(taken_together(together)) == (name in TAKEN_TOGETHER)


@pytest.mark.parametrize("name", NETWORKS)
def test_unrolling_leaves_the_graph_alone(name: str) -> None:
    graph, _ = graph_of(name)
    before = graph.steps
    unrolled(graph)
    assert graph.steps == before


def test_readers_of_the_pool_read_the_convolution_instead() -> None:
    together = unrolled(graph_of("pooled-value-read-twice")[0])
    assert [step.name for step in together.steps] == ["conv", "inner", "sum", "mean", "fc"]
    assert [step.reads for step in together.steps][1:3] == [("conv",), ("conv", "inner")]


def test_a_value_that_others_read_before_the_pool_stays() -> None:
    graph, _ = graph_of("read-before-the-pool")
    assert unrolled(graph).steps == graph.steps


def test_grouped_convolutions_stay() -> None:
    graph = named(conv=nn.Conv2d(2, 4, 3, groups=2), act=nn.ReLU(), pool=nn.MaxPool2d(2))
    assert unrolled(graph).steps == graph.steps
    assert not taken_together(unrolled(graph))
