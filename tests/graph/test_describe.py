import json
from pathlib import Path

import pytest
import torch
from torch import nn

from bhc.errors import BhcError
from bhc.graph import Select, describe, rebuild
from bhc.graph.kinds import KINDS
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

# One of each kind, with arguments that are not the defaults.
EVERYTHING = nn.Sequential(
    Normalise(3.0, 2.0),
    nn.Conv2d(1, 4, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(1, 2), bias=False),
    nn.LeakyReLU(0.3),
    nn.Conv2d(4, 4, 3, padding="same"),
    nn.ReLU6(),
    nn.MaxPool2d(3, stride=2, padding=1),
    nn.ELU(0.5),
    nn.AvgPool2d((2, 1), stride=1, padding=0),
    nn.SELU(),
    nn.Flatten(),
    Select(torch.tensor([0, 5, 7, 20])),
    nn.Linear(4, 5, bias=False),
    nn.GELU(approximate="tanh"),
    nn.Linear(5, 3),
    nn.SiLU(),
    nn.ReLU(),
    nn.Tanh(),
)


def through_json(chain):
    return rebuild(json.loads(json.dumps(describe(chain))))


def test_the_chain_of_everything_has_every_kind():
    assert {type(module) for module in EVERYTHING} == set(KINDS)


@pytest.mark.parametrize(
    ("chain", "shape"),
    [(lenet_300_100(), (2, 1, 28, 28)), (lenet_5_caffe(), (2, 1, 28, 28)), (EVERYTHING, (2, 1, 10, 10))],
    ids=["lenet-300-100", "lenet-5-caffe", "everything"],
)
def test_a_described_network_comes_back_with_its_state(chain, shape):
    rebuilt = through_json(chain)
    assert describe(rebuilt) == describe(chain)
    rebuilt.load_state_dict(chain.state_dict())
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rebuilt(x), chain(x))


def test_a_description_names_kinds_and_arguments():
    assert describe(nn.Sequential(nn.Linear(3, 2))) == [LINEAR | {"name": "0"}]


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
        [{"kind": "os.system", "name": "fc"}],
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
    text = json.dumps(describe(EVERYTHING))
    assert "torch" not in text
    assert Path(__file__).stem not in text
