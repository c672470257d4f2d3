import pytest
import torch
from torch import nn

from bhc.formats import PooledConvolution, fold_normalisation, unrolled
from bhc.models import Normalise

from .chains import NETWORKS, TORCH_REMARKS, assert_alike, floats, graph_of, inputs, named, quantised

pytestmark = TORCH_REMARKS


NORMALISED = [name for name, (graph, _) in NETWORKS.items() if isinstance(graph.steps[0].module, Normalise)]
LEFT_AS_THEY_ARE = {
    *("padding-and-a-mean", "max-pool", "avg-pool"),  # nothing may lie between, zeros must stay zeros
    "normalise-by-channel",  # codes have one step
    *("two-readers-of-the-normalised-input", "input-read-late"),  # others read the value too
    "recordings",  # energies come between
}


@pytest.mark.parametrize("make", [floats, quantised])
@pytest.mark.parametrize("name", [name for name in NORMALISED if name not in LEFT_AS_THEY_ARE])
def test_the_folded_network_computes_the_same_with_a_step_less(name: str, make) -> None:  # type: ignore[no-untyped-def]
    network = make(name)
    x = inputs(network.input_shape)
    steps, expected = network.graph.steps, network.graph(x)
    folded = fold_normalisation(network)
    assert [step.name for step in folded.graph.steps] == [step.name for step in steps[1:]]
    assert_alike(folded.graph(x), expected, part=1e-5)
    assert network.graph.steps == steps
    assert torch.equal(network.graph(x), expected), "the network itself has changed"


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in NORMALISED or name in LEFT_AS_THEY_ARE])
def test_what_cannot_be_folded_is_left_as_it_is(name: str) -> None:
    network = quantised(name)
    assert fold_normalisation(network) is network


@pytest.mark.parametrize("name", ["relu", "plain-conv", "conv-and-a-mean"])
def test_the_codes_stay_and_their_step_changes(name: str) -> None:
    network = quantised(name)
    folded, first = fold_normalisation(network), network.layers[0]
    std = float(network.graph.normalise.std)
    assert first.weight is not None
    assert folded.weights[first.name].codes is first.weight.codes
    assert folded.weights[first.name].step == pytest.approx(first.weight.step / std)
    torch.testing.assert_close(folded.weights[first.name].values(), folded.layers[0].module.weight)
    assert all(folded.weights[layer.name] is layer.weight for layer in network.layers[1:])
    has_mean = bool(network.graph.normalise.mean.any()) or first.bias is None
    assert (first.name in folded.biases) != has_mean, "biases stay codes without a mean and become floats with one"
    assert all(layer.name in folded.biases for layer in network.layers[1:])


# Convolutions taken together with their pools

RISING = ("relu", "relu6", "elu", "elu-of-a-whole-number", "selu", "tanh")
TAKEN_TOGETHER = {
    *(f"conv-{name}-pool" for name in RISING),
    *("conv-same-pool", "conv-padding-pool", "conv-pool-twice"),
    *("pooled-in-a-branch", "pooled-value-read-twice"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_convolutions_taken_together_with_their_pools_compute_the_same(name: str) -> None:
    graph, shape = graph_of(name)
    before = graph.steps
    together = unrolled(graph)
    assert graph.steps == before
    assert_alike(together(inputs(shape)), graph(inputs(shape)), part=1e-5)
    taken = any(isinstance(step.module, PooledConvolution) for step in together.steps)
    assert taken == (name in TAKEN_TOGETHER)
    assert taken or together.steps == before


def test_grouped_convolutions_stay() -> None:
    graph = named(conv=nn.Conv2d(2, 4, 3, groups=2), act=nn.ReLU(), pool=nn.MaxPool2d(2))
    assert unrolled(graph).steps == graph.steps
