"""Networks as they are stored, and as they are made ready for a runtime."""

import math
import operator
import re

import numpy as np
import pytest
import torch
from torch import fx, nn

from bhc.formats import (
    LARGEST_BIAS_CODE,
    Codes,
    PooledConvolution,
    QuantisedNetwork,
    fold_normalisation,
    onnx_bytes,
    round_step,
    unrolled,
    with_numbers,
)
from bhc.formats.quantised import LARGEST_CODE, SIGNIFICANT_BITS
from bhc.graph import Graph, shaped_steps
from bhc.layers import Add, Embed, Recurrence, TransposedConvolution, is_weighted
from bhc.models import Normalise

from .chains import NETWORKS, TORCH_REMARKS, assert_alike, floats, graph_of, inputs, named, quantised
from .graphs import wired

pytestmark = TORCH_REMARKS


def test_codes_are_the_nearest_multiples_of_the_step() -> None:
    codes = Codes.of(torch.tensor([[0.0, 0.24, 0.26], [-0.24, -0.26, 10.0]]), 0.5)
    assert codes.codes.tolist() == [[0, 0, 1], [0, -1, 20]]
    assert codes.codes.dtype == np.int32
    assert codes.step == 0.5
    assert codes.values().tolist() == [[0.0, 0.0, 0.5], [0.0, -0.5, 10.0]]


@pytest.mark.parametrize("largest", [LARGEST_BIAS_CODE, LARGEST_CODE])
def test_a_step_too_fine_for_the_codes_is_made_coarser(largest: int) -> None:
    values = torch.tensor([-3.0, 1.0, 2.9])
    codes = Codes.of(values, 1e-9, largest=largest)
    assert largest - 200 * largest // 2**SIGNIFICANT_BITS - 1 <= -codes.codes.min() <= largest
    torch.testing.assert_close(codes.values(), values, rtol=0, atol=codes.step / 2 + 1e-6)


@pytest.mark.parametrize("step", [0.0, 1e-30, 0.1])
@pytest.mark.parametrize("values", [torch.zeros(3), torch.zeros(0), torch.tensor([1e-42, 0.0])])
def test_zeros_and_next_to_nothing_have_a_positive_step(values: torch.Tensor, step: float) -> None:
    codes = Codes.of(values, step)
    assert codes.step > 0
    assert np.float32(codes.step) == codes.step
    assert not codes.codes.any()
    assert torch.equal(codes.values(), torch.zeros_like(values))
    assert codes.bits == 1


@pytest.mark.parametrize(
    ("codes", "bits"),
    [
        ([0, 0], 1),
        ([-1, 0], 1),
        ([0, 1], 2),
        ([-2, 1], 2),
        ([-3, 0], 3),
        ([3, -4], 3),
        ([127, -128], 8),
        ([128], 9),
        ([], 1),
    ],
)
def test_bits_are_those_of_the_narrowest_two_s_complement(codes: list[int], bits: int) -> None:
    assert Codes(np.array(codes, dtype=np.int32), 1.0).bits == bits
    assert all(-(2 ** (bits - 1)) <= code < 2 ** (bits - 1) for code in codes)


def test_a_step_is_rounded_up_to_few_significant_bits() -> None:
    for step in torch.logspace(-30, 5, 200, dtype=torch.float64).tolist():
        rounded = round_step(step)
        assert step <= rounded <= step * (1 + 2.0 ** (1 - SIGNIFICANT_BITS))
        assert (math.frexp(rounded)[0] * 2**SIGNIFICANT_BITS).is_integer()
        assert np.float32(rounded) == rounded
        assert round_step(rounded) == rounded
    assert [round_step(number) for number in (2.0**-20, 1.0, 8.0, math.inf)] == [2.0**-20, 1.0, 8.0, math.inf]
    assert math.isnan(round_step(math.nan))


def test_other_numbers_leave_the_original_alone_and_share_the_other_steps() -> None:
    chain = named(flatten=nn.Flatten(), fc1=nn.Linear(4, 3), act=nn.ReLU(), fc2=nn.Linear(3, 2))
    before = {key: value.clone() for key, value in chain.state_dict().items()}
    changed = with_numbers(chain, {"fc1.weight": torch.ones(3, 4), "fc1.bias": None})
    assert torch.equal(changed.fc1.weight, torch.ones(3, 4))
    assert changed.fc1.bias is None
    assert all(torch.equal(value, before[key]) for key, value in chain.state_dict().items())
    assert chain.fc1.bias is not None
    shared = map(operator.is_, changed.children(), chain.children())
    assert [*shared] == [True, False, True, True]
    x = torch.rand(5, 1, 2, 2)
    torch.testing.assert_close(changed(x), chain.fc2(torch.relu(x.flatten(1) @ torch.ones(4, 3))))
    graph, _ = graph_of("residual")
    changed = with_numbers(graph, {"inner.weight": torch.zeros(4, 4, 3, 3)})
    assert [step.reads for step in changed.steps] == [step.reads for step in graph.steps]


def test_a_built_network_has_the_numbers_that_the_codes_stand_for() -> None:
    chain, shape = graph_of("plain-conv")
    weight = chain.step0.weight.clone()
    network = QuantisedNetwork.build(
        chain, weights={"step0": Codes.of(weight, 0.25)}, biases={}, input_shape=shape, labels=(1, 2, 3, 4)
    )
    assert torch.equal(network.graph.step0.weight, Codes.of(weight, 0.25).values())
    assert torch.equal(chain.step0.weight, weight)
    assert network.graph.step0.bias is chain.step0.bias
    assert [layer.bits for layer in network.layers] == [Codes.of(weight, 0.25).bits, 32]
    assert (network.layers[1].weight, network.layers[1].bias) == (None, None)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_module_is_plain_computes_the_same_to_the_last_bit_and_may_be_changed(name: str) -> None:
    network = quantised(name)
    module = network.module()
    assert type(module) is nn.Sequential if network.graph.is_chain else isinstance(module, fx.GraphModule)
    assert not any(isinstance(part, Graph) for part in module.modules())
    assert not module.training
    x = inputs(network.input_shape, 5)
    expected = network.graph(x)
    kernels = any(isinstance(step.module, Recurrence) for step in network.graph.steps)  # torch's own round otherwise
    assert torch.allclose(module(x), expected, atol=1e-5 if kernels else 0.0, rtol=0.0)
    if kernels:  # which stand for two steps each
        assert {name for name, _ in module.named_children()} <= {step.name for step in network.graph.steps}
    for old, (new, _) in () if kernels else zip(network.graph.steps, module.named_children(), strict=True):
        assert new == old.name or not re.fullmatch(r"\w+", old.name, re.ASCII)
    for parameter in module.parameters():
        parameter.zero_()
    assert not torch.equal(module(x), expected)
    module.double()
    assert torch.equal(network.graph(x), expected)


@pytest.mark.parametrize("name", ["pop", "graph", "self", "class", "_graph", "0", "ﬁ"])
def test_a_layer_may_have_a_name_that_torch_s_containers_use(name: str) -> None:
    chain = [(name, nn.Linear(2, 2)), ("step_pop", nn.ReLU()), (f"step_{name}_", nn.Linear(2, 2))]
    for steps in (chain, [*chain, ("sum", Add(), name, f"step_{name}_")]):
        graph = wired(*steps).requires_grad_(False)
        x = inputs((2,), 3)
        assert torch.equal(QuantisedNetwork(graph, (2,), (0, 1)).module()(x), graph(x))


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_count_what_the_modules_do(name: str) -> None:
    network = quantised(name)
    flops = []

    def note(module: nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        places = 0 if isinstance(module, Embed) else output[0].numel() // len(module.weight)  # rows are picked
        if isinstance(module, Recurrence):
            places = output.shape[1]
        if isinstance(module, TransposedConvolution):
            places = given[0][0, 0].numel()
        flops.append(2 * module.weight.numel() * places)

    for step in {id(step.module): step.module for step in network.graph.steps}.values():
        if is_weighted(step):
            step.register_forward_hook(note)
    network.graph(inputs(network.input_shape, 1))
    of_layers = [
        each.num_flops for each in shaped_steps(network.graph, network.input_shape) if is_weighted(each.module)
    ]
    assert of_layers == flops
    for layer in network.layers:
        assert layer.num_weights == layer.module.weight.numel()
        convolution = layer.module.weight.dim() > 2
        assert layer.width == (layer.module.out_channels if convolution else layer.module.weight.shape[1])
        assert layer.weight is not None
        assert layer.bits == layer.weight.bits


def test_numbers_that_could_learn_no_longer_do() -> None:
    graph = Graph.chain([("flat", nn.Flatten()), ("a", nn.Linear(8, 4))]).eval()
    network = QuantisedNetwork.build(graph, weights={}, biases={}, input_shape=(8,), labels=(0, 1, 2, 3))
    assert not any(parameter.requires_grad for parameter in network.graph.parameters())
    assert onnx_bytes(network)


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
