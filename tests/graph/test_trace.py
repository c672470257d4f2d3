import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bhc.errors import BhcError
from bhc.graph import trace
from bhc.models import lenet_5_caffe, lenet_300_100

SEED = 0


def seeded(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED))


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
    x = 255 * torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(SEED))
    chain = trace(net, x)
    assert type(chain) is nn.Sequential
    assert [name for name, _ in chain.named_children()] == [name for name, _ in net.named_children()]
    assert torch.equal(chain(x), net(x))


def test_a_network_with_functions_and_dropout_becomes_a_chain_of_modules():
    net, x = Written(), seeded(5, 1, 6, 6)
    chain = trace(net, x)
    kinds = [
        nn.Conv2d,
        nn.ReLU,
        nn.AvgPool2d,
        nn.Conv2d,
        nn.ReLU,
        nn.Flatten,
        nn.Linear,
        nn.Tanh,
        nn.ReLU,
        nn.Linear,
    ]
    assert [type(module) for module in chain] == kinds
    assert_computes_the_same(net, chain, x)


def test_steps_keep_the_names_of_their_modules():
    names = [name for name, _ in trace(Written(), seeded(1, 1, 6, 6)).named_children()]
    assert names[0] == "features_0"
    assert names[3] == "second"
    assert names[-1] == "last"


@pytest.mark.parametrize(
    "flatten",
    [
        lambda x: torch.flatten(x, 1),
        lambda x: torch.flatten(x, start_dim=1),
        lambda x: x.flatten(1),
        lambda x: x.flatten(start_dim=1, end_dim=-1),
        nn.Flatten(),
    ],
)
def test_every_way_to_flatten_all_but_the_batch(flatten):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.flatten, self.last = flatten, nn.Linear(12, 2)

        def forward(self, x):
            return self.last(self.flatten(x))

    net, x = Flat(), seeded(2, 3, 2, 2)
    assert_computes_the_same(net, trace(net, x), x)


ACTIVATIONS = {
    "relu6": nn.ReLU6(),
    "leaky-relu": nn.LeakyReLU(0.3),
    "elu": nn.ELU(0.7),
    "selu": nn.SELU(),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "F.elu": F.elu,
    "F.gelu": F.gelu,
    "F.silu": F.silu,
    "inplace": lambda x: F.relu(x, inplace=True),
}


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_every_activation_is_traced_and_leaves_zero_at_zero(activation):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.activation, self.last = nn.Linear(4, 5), activation, nn.Linear(5, 2)

        def forward(self, x):
            return self.last(self.activation(self.first(x)))

    net, x = Net(), seeded(6, 4)
    chain = trace(net, x)
    assert_computes_the_same(net, chain, x)
    assert torch.equal(chain[1](torch.zeros(3)), torch.zeros(3))


def test_the_network_itself_is_left_alone():
    net = Written().train()
    before = copy.deepcopy(net.state_dict())
    chain = trace(net, seeded(1, 1, 6, 6))
    with torch.no_grad():
        for parameter in chain.parameters():
            parameter.zero_()
    assert net.training
    assert net.drop.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


class OneReLU(nn.Module):
    """One activation module for all layers: a common way to write a network."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 2)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.last(self.relu(self.second(self.relu(self.first(x)))))


def test_a_module_called_twice_is_two_steps():
    net, x = OneReLU(), seeded(8, 4)
    assert_computes_the_same(net, trace(net, x), x)


# BUG, the same: where the example input does not show the difference, the chain is silently another network.
def test_a_dropped_step_is_never_accepted():
    net = OneReLU()
    nn.init.ones_(net.first.bias)
    nn.init.constant_(net.second.weight, -1.0)
    nn.init.constant_(net.second.bias, 20.0)
    chain = trace(net, torch.zeros(1, 4))
    assert_computes_the_same(net, chain, 100 * seeded(8, 4))


def refused(net, x):
    with pytest.raises(BhcError) as caught:
        trace(net, x)
    return caught.value


def test_an_unknown_layer_is_named_with_what_is_supported():
    net = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.BatchNorm1d(5)), nn.Linear(5, 2))
    error = refused(net, seeded(2, 4))
    assert "layer '1.0' is a BatchNorm1d" in error.problem
    assert all(name in error.hint for name in ("Conv2d", "Linear", "ReLU", "MaxPool2d", "Flatten"))


def test_an_activation_that_moves_zero_is_refused():
    assert "Sigmoid" in refused(nn.Sequential(nn.Linear(4, 2), nn.Sigmoid()), seeded(2, 4)).problem


def with_forward(forward):
    """A small network with two layers, run by ``forward(net, ...)``."""
    net_type = type("Net", (nn.Module,), {"forward": forward})
    net = net_type()
    net.first, net.last = nn.Linear(4, 4), nn.Linear(4, 2)
    return net


@pytest.mark.parametrize(
    ("forward", "named"),
    [
        (lambda net, x: net.last(F.leaky_relu(net.first(x))), "leaky_relu"),
        (lambda net, x: net.last(net.first(x).sigmoid()), "sigmoid"),
        (lambda net, x: net.last(2 * net.first(x)), "mul"),
        (lambda net, x: net.last(torch.flatten(net.first(x), 0)), "flatten"),
    ],
)
def test_an_unknown_function_is_named_with_what_is_supported(forward, named):
    error = refused(with_forward(forward), seeded(2, 4))
    assert f"calls {named}" in error.problem
    assert "supported layers" in error.hint


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: net.last(x + net.first(x)),
        lambda net, x: net.last(x) + net.last(net.first(x)),
        lambda net, x: (net.first(x), net.last(x))[1],
        lambda net, x: F.linear(x, net.last.weight),
        lambda net, x: (net.first(x), net.last(x)),
    ],
    ids=["skip", "two readers", "unused", "parameter", "two outputs"],
)
def test_a_branch_is_refused(forward):
    error = refused(with_forward(forward), seeded(2, 4))
    assert "does not continue the chain" in error.problem
    assert "branches" in error.hint


def test_a_second_input_is_refused():
    error = refused(with_forward(lambda net, x, y: net.last(net.first(x))), seeded(2, 4))
    assert "more than one input" in error.problem


def test_a_branch_on_values_is_refused():
    net = with_forward(lambda net, x: net.last(x) if x.sum() > 0 else net.first(x))
    error = refused(net, seeded(2, 4))
    assert "could not trace Net" in error.problem
    assert "must not branch" in error.hint


@pytest.mark.parametrize(
    "forward",
    [lambda net, x: (net.last(net.first(x)),), lambda net, x: {"logits": net.last(net.first(x))}],
    ids=["tuple", "dict"],
)
def test_an_output_that_is_not_a_tensor_is_refused(forward):
    assert refused(with_forward(forward), seeded(2, 4)).problem


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (nn.Conv2d(2, 4, 3, groups=2), "groups=2"),
        (nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), "padding_mode='circular'"),
        (nn.MaxPool2d(2, ceil_mode=True), "MaxPool2d with ceil_mode"),
        (nn.AvgPool2d(2, ceil_mode=True), "AvgPool2d with ceil_mode"),
        (nn.AvgPool2d(2, padding=1, count_include_pad=False), "AvgPool2d"),
        (nn.AvgPool2d(2, divisor_override=3), "AvgPool2d"),
        (nn.Flatten(2), "Flatten"),
    ],
)
def test_an_unsupported_variant_is_named(module, named):
    error = refused(nn.Sequential(module), seeded(1, 2, 7, 7))
    assert "layer '0'" in error.problem
    assert named in error.problem


@pytest.mark.parametrize("build", [lenet_300_100, lenet_5_caffe])
@pytest.mark.parametrize("shape", [(784,), (2, 1, 27, 28), (2, 3, 28, 28)])
def test_an_example_input_of_another_shape_is_refused(build, shape):
    error = refused(build(), torch.zeros(shape))
    assert str(shape) in error.problem
    assert "example_input" in error.hint
