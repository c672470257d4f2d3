import json
from pathlib import Path

import pytest
import torch
from torch import nn

from bhc.errors import BhcError
from bhc.graph import INPUT, Graph, Step, describe, rebuild
from bhc.layers import (
    Add,
    Affine,
    Concat,
    Embed,
    GlobalMean,
    LogMel,
    Multiply,
    PadChannels,
    ScatterChannels,
    Select,
    Subsample,
    kind_of,
    kinds,
)
from bhc.models import Normalise, lenet_5_caffe, lenet_300_100

LINEAR = {"kind": "linear", "name": "fc", "in_features": 3, "out_features": 2, "bias": True}
CONVOLUTION = {
    "kind": "conv-2d",
    "name": "conv",
    "in_channels": 1,
    "out_channels": 2,
    "kernel_size": [3, 3],
    "stride": [1, 1],
    "padding": [0, 0],
    "dilation": [1, 1],
    "bias": True,
}

# Between them one of each kind, with arguments that are not the defaults.
IMAGES = Graph.chain(
    [
        ("normalise", Normalise([3.0], [2.0])),
        ("conv", nn.Conv2d(1, 4, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(1, 2), bias=False)),
        ("leaky", nn.LeakyReLU(0.3)),
        ("same", nn.Conv2d(4, 4, 3, padding="same", groups=2)),
        ("relu6", nn.ReLU6()),
        ("max", nn.MaxPool2d(3, stride=2, padding=1)),
        ("elu", nn.ELU(0.5)),
        ("average", nn.AvgPool2d((2, 1), stride=1, padding=0)),
        ("selu", nn.SELU()),
        ("flatten", nn.Flatten()),
        ("select", Select(torch.tensor([0, 5, 7, 20]))),
        ("place", ScatterChannels(torch.tensor([0, 1, 3, 4]), 6)),
        ("fc1", nn.Linear(6, 5, bias=False)),
        ("gelu", nn.GELU(approximate="tanh")),
        ("fc2", nn.Linear(5, 3)),
        ("silu", nn.SiLU()),
        ("relu", nn.ReLU()),
        ("tanh", nn.Tanh()),
    ]
)
SEQUENCES = Graph(
    [
        Step("conv", nn.Conv1d(2, 4, 3, padding=1), (INPUT,)),
        Step("pool", nn.MaxPool1d(2, dilation=2), ("conv",)),
        Step("mean", nn.AvgPool1d(2, stride=1, padding=1), ("pool",)),
        Step("affine", Affine(4), ("mean",)),
        Step("sigmoid", nn.Sigmoid(), ("mean",)),
        Step("product", Multiply(), ("affine", "sigmoid")),
        Step("beside", Concat(), ("product", "mean", "affine")),
        Step("softplus", nn.Softplus(2.0, 10.0), ("beside",)),
        Step("end", GlobalMean(False), ("softplus",)),
    ]
)
VOLUMES = Graph(
    [
        Step("normalise", Normalise(1.0, 2.0), (INPUT,)),
        Step("conv", nn.Conv3d(2, 4, (1, 3, 3), stride=2, padding=(0, 1, 1)), ("normalise",)),
        Step("swish", nn.Hardswish(), ("conv",)),
        Step("halved", Subsample(2), ("normalise",)),
        Step("wider", PadChannels(1, 1), ("halved",)),
        Step("sum", Add(), ("swish", "wider")),
        Step("max", nn.MaxPool3d((1, 2, 2)), ("sum",)),
        Step("average", nn.AvgPool3d((1, 2, 2), stride=1), ("max",)),
        Step("hard", nn.Hardsigmoid(), ("average",)),
        Step("end", GlobalMean(True), ("hard",)),
    ]
)
TEXTS = Graph.chain([("words", Embed(7, 4, 3)), ("act", nn.Tanh())])
SOUNDS = Graph.chain([("log_mel", LogMel(80, 5, 16, 6))])
EVERYTHING = (IMAGES, SEQUENCES, VOLUMES, TEXTS, SOUNDS)


def chain_of(net):
    return Graph.chain(net.named_children())


def through_json(graph):
    return rebuild(json.loads(json.dumps(describe(graph))))


def test_the_graphs_of_everything_have_every_kind():
    described = {kind_of(step.module).name for graph in EVERYTHING for step in graph.steps}
    calls = {"pointwise", "movement", "along-axes", "opaque"}  # tried with the networks of cases.py
    tried_elsewhere = {"channel-norm", "self-attention", "flatten-places", "shift", "given"} | calls
    assert described | tried_elsewhere == {kind.name for kind in kinds()}


@pytest.mark.parametrize(
    ("graph", "shape"),
    [
        (chain_of(lenet_300_100()), (2, 1, 28, 28)),
        (chain_of(lenet_5_caffe()), (2, 1, 28, 28)),
        (IMAGES, (2, 1, 10, 10)),
        (SEQUENCES, (2, 2, 12)),
        (VOLUMES, (2, 2, 3, 8, 8)),
        (TEXTS, (2, 6)),
        (SOUNDS, (2, 1, 40)),
    ],
    ids=["lenet-300-100", "lenet-5-caffe", "images", "sequences", "volumes", "texts", "sounds"],
)
def test_a_described_network_comes_back_with_its_state(graph, shape):
    rebuilt = through_json(graph)
    assert describe(rebuilt) == describe(graph)
    rebuilt.load_state_dict(graph.state_dict())
    draws = torch.Generator().manual_seed(0)
    x = torch.randint(7, shape, generator=draws) if graph is TEXTS else torch.randn(shape, generator=draws)
    assert torch.equal(rebuilt(x), graph(x))


def test_a_step_says_what_it_reads_unless_it_is_the_one_before():
    described = {step["name"]: step.get("reads") for step in describe(SEQUENCES)}
    assert described == dict.fromkeys(described) | {
        "sigmoid": ["mean"],
        "product": ["affine", "sigmoid"],
        "beside": ["product", "mean", "affine"],
    }


def test_the_input_may_be_read_by_any_step():
    graph = Graph([Step("fc", nn.Linear(2, 2), (INPUT,)), Step("sum", Add(), ("fc", INPUT))])
    assert through_json(graph).steps[1].reads == ("fc", INPUT)


@pytest.mark.parametrize("reads", [["later"], ["fc"], ["nowhere"], 7, None])
def test_a_step_that_reads_what_is_not_there_is_refused(reads):
    with pytest.raises(BhcError, match="description of the network is damaged"):
        rebuild([LINEAR | {"reads": reads}, {"kind": "relu", "name": "later"}])


def test_older_descriptions_of_convolutions_know_no_groups():
    (step,) = rebuild([CONVOLUTION]).steps
    assert step.module.groups == 1


@pytest.mark.parametrize("groups", [0, -1, 3, 1 << 40, "1", None])
def test_impossible_groups_are_refused(groups):
    with pytest.raises(BhcError, match="description of the network is damaged"):
        rebuild([CONVOLUTION | {"in_channels": 2, "groups": groups}])


def test_a_description_names_kinds_and_arguments():
    assert describe(chain_of(nn.Sequential(nn.Linear(3, 2)))) == [LINEAR | {"name": "0"}]


@pytest.mark.parametrize(
    "step",
    [
        LINEAR | {"in_features": 10**9, "out_features": 10**9},
        LINEAR | {"out_features": 10**30},
        LINEAR | {"in_features": 1, "out_features": (1 << 28) + 1},
        CONVOLUTION | {"out_channels": 1 << 26},
        LINEAR | {"in_features": -3, "out_features": -3},
        LINEAR | {"in_features": 0},
        LINEAR | {"in_features": 2.5},
        LINEAR | {"in_features": None},
        LINEAR | {"in_features": "3"},
        CONVOLUTION | {"in_channels": 1 << 20, "out_channels": 1 << 20},
        CONVOLUTION | {"kernel_size": [1 << 20, 1 << 20]},
        CONVOLUTION | {"kernel_size": 3},
        CONVOLUTION | {"kernel_size": [3]},
        CONVOLUTION | {"padding": "everywhere"},
        {"kind": "select", "name": "select", "kept": 10**12},
        {"kind": "select", "name": "select", "kept": -1},
        {"kind": "affine", "name": "affine", "channels": 10**12},
        {"kind": "affine", "name": "affine", "channels": 0},
        {"kind": "normalise", "name": "normalise", "channels": 10**12},
        {"kind": "conv-3d", "name": "conv", "in_channels": 1 << 12, "out_channels": 1 << 12, "kernel_size": [9, 9, 9]}
        | {"stride": [1, 1, 1], "padding": [0, 0, 0], "dilation": [1, 1, 1], "bias": False},
    ],
    ids=str,
)
def test_impossible_sizes_are_refused(step):
    with pytest.raises(BhcError, match="description of the network is damaged"):
        rebuild([step])


# list times a large number asks for all memory (here 2^60 bytes, which fails at once).
@pytest.mark.parametrize(
    "step",
    [
        LINEAR | {"in_features": "a", "out_features": 1 << 60},
        LINEAR | {"in_features": [0], "out_features": 1 << 60},
        CONVOLUTION | {"kernel_size": ["a", 1 << 60]},
    ],
    ids=str,
)
def test_sizes_that_are_not_numbers_are_refused(step):
    with pytest.raises(BhcError, match="description of the network is damaged"):
        rebuild([step])


def test_two_steps_with_one_name_are_refused():
    with pytest.raises(BhcError, match="description of the network is damaged"):
        rebuild([LINEAR, {"kind": "relu", "name": "fc"}])


@pytest.mark.parametrize(
    "steps",
    [
        None,
        7,
        [7],
        ["linear"],
        [{}],
        [{"kind": "relu"}],
        [{"name": "fc"}],
        [{"kind": "system", "name": "fc"}],
        [{"kind": ["linear"], "name": "fc"}],
        [{"kind": "linear", "name": "fc"}],
        [{"kind": "select", "name": "select"}],
        [LINEAR | {"device": "meta"}],
        [LINEAR | {"name": "a.b"}],
        [LINEAR | {"name": ""}],
        [{"kind": "relu", "name": "relu", "bias": True}],
        [{name: value for name, value in CONVOLUTION.items() if name != "stride"}],
    ],
    ids=str,
)
def test_damaged_descriptions_are_refused(steps):
    with pytest.raises(BhcError, match="description of the network is damaged"):
        rebuild(steps)


def test_a_description_holds_no_code():
    text = json.dumps([describe(graph) for graph in EVERYTHING])
    assert "torch" not in text
    assert Path(__file__).stem not in text
