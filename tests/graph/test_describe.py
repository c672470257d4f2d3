import json
from pathlib import Path

import pytest
import torch
from torch import nn

from bhc.errors import BhcError
from bhc.graph import Graph, describe, rebuild

from ..formats.chains import NETWORKS, TORCH_REMARKS, graph_of, inputs

pytestmark = TORCH_REMARKS

LINEAR = {"kind": "linear", "name": "fc", "in_features": 3, "out_features": 2, "bias": True}
CONVOLUTION = {
    "kind": "conv-2d", "name": "conv", "in_channels": 1, "out_channels": 2, "kernel_size": [3, 3], "stride": [1, 1],
    "padding": [0, 0], "dilation": [1, 1], "bias": True,
}  # fmt: skip
EMBEDDING = {"kind": "embedding", "name": "words", "count": 12, "rows": 11, "channels": 5}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_described_network_comes_back_with_its_state(name):
    graph, shape = graph_of(name)
    rebuilt = rebuild(json.loads(json.dumps(describe(graph))))
    assert describe(rebuilt) == describe(graph)
    rebuilt.load_state_dict(graph.state_dict())
    assert torch.equal(rebuilt(inputs(shape, 3)), graph(inputs(shape, 3)))
    assert [step.reads for step in rebuilt.steps] == [step.reads for step in graph.steps]


def test_a_description_names_kinds_and_arguments_and_what_is_read_unless_it_is_the_step_before():
    graph = Graph.chain(nn.Sequential(nn.Linear(3, 2)).named_children())
    assert describe(graph) == [LINEAR | {"name": "0"}]
    read = {step["name"]: step["reads"] for step in describe(graph_of("shortcut-of-zeros")[0]) if "reads" in step}
    assert read == {"fewer": ["act"], "sum": ["inner", "more"]}
    (older,) = rebuild([CONVOLUTION]).steps
    assert older.module.groups == 1


SIZES = [
    LINEAR | {"in_features": 10**9, "out_features": 10**9},
    LINEAR | {"out_features": 10**30},
    LINEAR | {"in_features": 1, "out_features": (1 << 28) + 1},
    CONVOLUTION | {"out_channels": 1 << 26},
    LINEAR | {"in_features": -3, "out_features": -3},
    *(LINEAR | {"in_features": size} for size in (0, 2.5, None, "3")),
    CONVOLUTION | {"in_channels": 1 << 20, "out_channels": 1 << 20},
    *(CONVOLUTION | {"kernel_size": size} for size in ([1 << 20, 1 << 20], 3, [3])),
    CONVOLUTION | {"padding": "everywhere"},
    *(CONVOLUTION | {"in_channels": 2, "groups": groups} for groups in (0, -1, 3, 1 << 40, "1", None)),
    {"kind": "select", "name": "select", "kept": 10**12},
    {"kind": "select", "name": "select", "kept": -1},
    {"kind": "affine", "name": "affine", "channels": 10**12},
    {"kind": "affine", "name": "affine", "channels": 0},
    {"kind": "normalise", "name": "normalise", "channels": 10**12},
    *(EMBEDDING | change for change in ({"rows": 13}, {"rows": 0}, {"count": 1 << 40}, {"channels": -1}, {"extra": 1})),
    {"kind": "conv-3d", "name": "conv", "in_channels": 1 << 12, "out_channels": 1 << 12, "kernel_size": [9, 9, 9]}
    | {"stride": [1, 1, 1], "padding": [0, 0, 0], "dilation": [1, 1, 1], "bias": False},
    # A list times a large number asks for all memory (here 2^60 bytes, which fails at once).
    LINEAR | {"in_features": "a", "out_features": 1 << 60},
    LINEAR | {"in_features": [0], "out_features": 1 << 60},
    CONVOLUTION | {"kernel_size": ["a", 1 << 60]},
]
DAMAGED = [
    *([step] for step in SIZES),
    *(None, 7, [7], ["linear"], [{}]),
    [{"kind": "relu"}],
    [{"name": "fc"}],
    [{"kind": "system", "name": "fc"}],
    [{"kind": ["linear"], "name": "fc"}],
    [{"kind": "linear", "name": "fc"}],
    [{"kind": "select", "name": "select"}],
    [LINEAR | {"device": "meta"}],
    [LINEAR | {"name": "a.b"}],
    [LINEAR | {"name": ""}],
    [LINEAR, {"kind": "relu", "name": "fc"}],
    *(
        [LINEAR | {"reads": reads}, {"kind": "relu", "name": "later"}]
        for reads in (["later"], ["fc"], ["nowhere"], 7, None)
    ),
    [{"kind": "relu", "name": "relu", "bias": True}],
    [{name: value for name, value in CONVOLUTION.items() if name != "stride"}],
]


@pytest.mark.parametrize("steps", DAMAGED, ids=str)
def test_damaged_descriptions_are_refused(steps):
    with pytest.raises(BhcError, match="damaged"):
        rebuild(steps)


def test_a_description_holds_no_code():
    text = json.dumps([describe(graph) for graph, _ in NETWORKS.values()])
    assert "torch" not in text
    assert Path(__file__).stem not in text
