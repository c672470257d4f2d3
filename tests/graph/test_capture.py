import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bhc
from bhc.graph import Graph, calls_of_layers, capture
from bhc.graph.capture import _is_the_same
from bhc.graph.signature import Examples
from bhc.layers import Add, Affine, Multiply
from bhc.models import lenet_5_caffe, lenet_300_100

from ..emission.networks import build as build_network
from .nets import net_of, seeded


def assert_computes_the_same(net, chain, example_input):
    expected = copy.deepcopy(net).eval()(example_input)
    torch.testing.assert_close(chain(example_input), expected)


class Written(nn.Module):
    """A network as people write them: modules, functions and methods, nested, with dropout."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 3, 3, padding="same"), nn.ReLU(inplace=True), nn.AvgPool2d(2))
        self.second = nn.Conv2d(3, 4, 2, bias=False)
        self.drop = nn.Dropout(0.5)
        self.hidden = nn.Linear(16, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.second(self.features(x)))
        x = self.drop(torch.flatten(x, 1))
        x = torch.tanh(self.hidden(x))
        return self.last(x.relu())


@pytest.mark.parametrize("build", [lenet_300_100, lenet_5_caffe])
def test_a_lenet_is_traced_to_itself(build):
    net = build()
    x = 255 * torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    chain = capture(net, x)
    assert type(chain) is Graph
    assert chain.is_chain
    assert [name for name, _ in chain.named_children()] == [name for name, _ in net.named_children()]
    assert torch.equal(chain(x), net(x))


def test_a_network_with_functions_and_dropout_becomes_a_chain_of_modules_under_their_names():
    net, x = Written(), seeded(5, 1, 6, 6)
    chain = capture(net, x)
    kinds = ("Conv2d", "ReLU", "AvgPool2d", "Conv2d", "ReLU", "Flatten", "Linear", "Tanh", "ReLU", "Linear")
    assert tuple(type(step.module).__name__ for step in chain.steps) == kinds
    assert [chain.steps[place].name for place in (0, 3, -1)] == ["features_0", "second", "last"]
    assert_computes_the_same(net, chain, x)


@pytest.mark.parametrize(
    "flatten",
    [
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(start_dim=1, end_dim=-1),
        lambda x: x.flatten(-3),
        lambda x: x.view(-1, 12),
        lambda x: x.reshape(x.shape[0], 12),
        lambda x: torch.reshape(x, (x.size(0), -1)),
        lambda x: x.contiguous().view(x.size(0), x.size(1) * x.size(2) * x.size(3)),
        nn.Flatten(1, 3),
    ],
)
def test_every_way_to_flatten_all_but_the_batch(flatten):
    net, x = net_of(lambda net, x: net.last(flatten(x)), last=nn.Linear(12, 2)), seeded(2, 3, 2, 2)
    assert_computes_the_same(net, capture(net, x), x)


ACTIVATIONS = {
    "relu6": nn.ReLU6(),
    "leaky-relu": nn.LeakyReLU(0.3),
    "elu": nn.ELU(0.7),
    "selu": nn.SELU(),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "hard-swish": nn.Hardswish(),
    "hard-sigmoid": nn.Hardsigmoid(),
    "softplus": nn.Softplus(2.0, 5.0),
    "F.elu with alpha": lambda x: F.elu(x, alpha=0.3),
    "F.gelu of another kind": lambda x: F.gelu(x, approximate="tanh"),
    "method": lambda x: x.sigmoid(),
    "F.gelu": F.gelu,
    "inplace": lambda x: F.relu(x, inplace=True),
}


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_every_activation_is_traced(activation):
    net, x = net_of(lambda net, x: net.end(activation(net.first(x)))), seeded(6, 4)
    graph = capture(net, x)
    assert_computes_the_same(net, graph, x)
    assert len(graph.steps) == 3


def test_the_network_itself_is_left_alone():
    net = Written().train()
    before = copy.deepcopy(net.state_dict())
    chain = capture(net, seeded(1, 1, 6, 6))
    with torch.no_grad():
        for parameter in chain.parameters():
            parameter.zero_()
    assert net.training
    assert net.drop.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_module_called_twice_is_two_steps_also_where_the_example_shows_no_difference():
    layers = {"first": nn.Linear(4, 5), "second": nn.Linear(5, 6), "end": nn.Linear(6, 2), "relu": nn.ReLU()}
    net = net_of(lambda net, x: net.end(net.relu(net.second(net.relu(net.first(x))))), **layers)
    x = seeded(8, 4)
    assert_computes_the_same(net, capture(net, x), x)
    nn.init.ones_(net.first.bias)
    nn.init.constant_(net.second.weight, -1.0)
    nn.init.constant_(net.second.bias, 20.0)
    chain = capture(net, torch.zeros(1, 4))
    assert_computes_the_same(net, chain, 100 * x)


def test_a_value_may_meet_itself():
    net, x = net_of(lambda net, x: (lambda y: net.end(y + y * y))(net.first(x))), seeded(2, 4)
    graph = capture(net, x)
    assert [type(step.module) for step in graph.steps] == [nn.Linear, Multiply, Add, nn.Linear]
    assert_computes_the_same(net, graph, x)


def test_a_residual_network_is_traced_without_its_batch_norms():
    net, x = build_network("residual")
    graph = capture(net, x)
    assert not any(isinstance(step.module, nn.BatchNorm2d | Affine) for step in graph.steps)
    names = [step.name for step in graph.steps if isinstance(step.module, nn.Conv2d)]
    assert set(names) >= {"stem", "blocks_0_conv1", "blocks_0_conv2", "blocks_1_shortcut_0", "blocks_1_conv1"}
    assert len({step.name for step in graph.steps}) == len(graph.steps)
    assert_computes_the_same(net, graph, x)


def test_names_that_modules_have_of_their_own_are_left_to_them():
    layers = {name: nn.Linear(3, 3) for name in ("steps", "append", "graph", "code")}
    net, x = net_of(lambda net, x: net.code(net.graph(net.append(net.steps(x)))) + x, **layers), seeded(2, 3)
    graph = capture(net, x)
    assert [step.name for step in graph.steps] == ["steps_1", "append_1", "graph_1", "code_1", "add"]
    assert_computes_the_same(net, graph, x)
    torch.testing.assert_close(graph.plain()(x), graph(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_precisions_are_taken_in_single_precision(dtype):
    net, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), seeded(2, 4)
    wanted = net(x)
    with pytest.warns(UserWarning, match="float32"):
        graph = capture(net.to(dtype), x.to(dtype))
    assert graph(x).dtype == torch.float32
    torch.testing.assert_close(graph(x), wanted, rtol=0, atol=0.05)


def test_wrappers_are_taken_off():
    net, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), seeded(2, 4)
    for wrapped in (nn.DataParallel(net), torch.compile(net), nn.DataParallel(torch.compile(net))):
        graph = capture(wrapped, x)
        assert [step.name for step in graph.steps] == ["0", "1", "2"]
        assert_computes_the_same(net, graph, x)


def test_hooks_are_part_of_what_is_captured():
    net, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), seeded(2, 4)
    net[0].register_forward_hook(lambda module, given, result: result * 2)
    net[2].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    graph = capture(net, x)
    assert_computes_the_same(net, graph, x)
    assert len(graph.steps) == 5


def test_the_cache_of_a_language_model_is_switched_off():
    def forward(net, x):
        return (net.end(x), x) if net.config.use_cache else net.end(x)

    net, x = net_of(forward, config=SimpleNamespace(use_cache=True), end=nn.Linear(4, 2)), seeded(2, 4)
    with pytest.warns(UserWarning, match="cache"):
        graph = capture(net, x)
    torch.testing.assert_close(graph(x), net(x)[0])
    assert net.config.use_cache


@pytest.mark.parametrize("share", ["module", "weight", "transposed"])
def test_weights_that_are_used_twice_have_one_fate(share):
    again = {
        "module": lambda net, x: net.a(x),
        "weight": lambda net, x: net.b(x),
        "transposed": lambda net, x: F.linear(x, net.a.weight.T),
    }[share]
    layers = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "end": nn.Linear(4, 2)}
    net, x = net_of(lambda net, x: net.end(again(net, net.a(x).relu()).relu()), **layers), seeded(3, 4)
    if share == "weight":
        net.b.weight = net.a.weight
    graph = capture(net, x)
    assert_computes_the_same(net, graph, x)
    assert graph.original == (
        sum(p.numel() for p in net.parameters() if p.dim() > 1),
        sum(p.numel() for p in net.parameters()),
    )
    calls = {"module": ("a", "a_1"), "weight": None, "transposed": ("a", "linear_1")}[share]
    assert calls_of_layers(graph).get("a") == calls
    users = [step.module for step in graph.steps if getattr(step.module, "op", "") == "linear"]
    assert len(users) == (2 if share == "weight" else 0)  # their biases differ
    assert len({id(user.own0) for user in users}) <= 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about how much stays whole
        model = bhc.wrap(net, bhc.SingleContext(), example_input=x)
    assert sum(each.weights for each in model.network.whole) == (0 if share == "transposed" else 16)


@pytest.mark.parametrize(("rounds", "off", "same"), [(0, 0.0, True), (40, 1e-16, True), (0, 1e-5, False)])
def test_differences_count_against_what_last_bits_make_of_a_result(rounds, off, same):
    """Each round of a logistic map doubles a difference; without it, one of 1e-5 is no rounding."""

    class Program:
        def run(self, x, *, precise):
            (values,) = x.tensors
            for _ in range(rounds):
                values = 3.99 * values * (1 - values)
            return values

    x = Examples.like(torch.rand(2, 50)).changed(lambda x: torch.sigmoid(x.double()))
    program = Program()
    graph = lambda values: program.run(x.changed(lambda _: values * (1 + off)), precise=True)  # noqa: E731
    assert _is_the_same(program, x, graph) is same
