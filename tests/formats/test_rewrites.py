import pytest
import torch
from torch import nn

from bhc.formats import fold_normalisation
from bhc.graph import INPUT, Graph
from bhc.layers import Select
from bhc.models import Normalise

from .chains import GRAPHS, NETWORKS, TORCH_REMARKS, assert_alike, floats, inputs, quantised

pytestmark = TORCH_REMARKS


def is_normalised(graph: Graph) -> bool:
    return isinstance(graph.steps[0].module, Normalise)


NORMALISED = [name for name, (graph, _) in NETWORKS.items() if is_normalised(graph)]
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
    folded = fold_normalisation(network)
    assert [*dict(folded.graph.named_children())] == [*dict(network.graph.named_children())][1:]
    x = inputs(network.input_shape)
    assert_alike(folded.graph(x), network.graph(x), part=1e-5)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in NORMALISED or name in LEFT_AS_THEY_ARE])
def test_what_cannot_be_folded_is_left_as_it_is(name: str) -> None:
    network = quantised(name)
    assert fold_normalisation(network) is network


def test_folding_leaves_the_network_alone() -> None:
    network = quantised("conv-and-a-mean")
    x = inputs(network.input_shape, 4)
    expected = network.graph(x)
    fold_normalisation(network)
    assert torch.equal(network.graph(x), expected)
    assert is_normalised(network.graph)


@pytest.mark.parametrize("name", ["relu", "plain-conv", "conv-and-a-mean", "padding"])
def test_the_codes_stay_and_their_step_changes(name: str) -> None:
    network = quantised(name)
    folded, first = fold_normalisation(network), network.layers[0]
    std = float(network.graph.normalise.std)
    assert first.weight is not None
    assert folded.weights[first.name].codes is first.weight.codes
    assert folded.weights[first.name].step == pytest.approx(first.weight.step / std)
    torch.testing.assert_close(folded.weights[first.name].values(), folded.layers[0].module.weight)
    assert all(folded.weights[layer.name] is layer.weight for layer in network.layers[1:])


def test_biases_stay_codes_without_a_mean_and_become_floats_with_one() -> None:
    for name, are_codes in (("plain-conv", True), ("conv-and-a-mean", False)):
        network = quantised(name)
        assert ("step0" in fold_normalisation(network).biases) == are_codes
        assert "fc" in fold_normalisation(network).biases


def test_a_layer_without_a_bias_gets_one_from_the_mean() -> None:
    network = quantised("no-bias-and-a-mean")
    assert network.layers[0].module.bias is None
    layer = fold_normalisation(network).layers[0].module
    torch.testing.assert_close(layer.bias, -2.0 / 3.0 * network.layers[0].module.weight.sum(1))


def test_a_padded_convolution_without_a_mean_is_folded() -> None:
    network = quantised("padding")
    assert network.layers[0].module.padding == (1, 2)
    kinds = [type(step.module) for step in fold_normalisation(network).graph.steps]
    assert kinds == [nn.Conv2d, nn.Flatten, Select, nn.Linear]


def test_graphs_that_branch_after_the_first_layer_are_folded() -> None:
    assert {name for name in NORMALISED if name in GRAPHS} - LEFT_AS_THEY_ARE == {
        "shortcut-of-zeros",
        "normalised-before-it-branches",
    }
    folded = fold_normalisation(quantised("normalised-before-it-branches")).graph
    assert [step.reads for step in folded.steps][:2] == [(INPUT,), ("stem",)]
    assert folded.steps[3].reads == ("act", "inner")
