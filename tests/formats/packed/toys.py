"""Small networks with all that a file can hold."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bhc.formats import Codes, QuantisedNetwork, parse_network
from bhc.graph import Graph
from bhc.layers import Add, Affine, GlobalMean, Normalise, Select, Subsample, Tied, is_weighted
from tests.formats import chains
from tests.formats.graphs import GRAPHS, in_a_row, wired

IT = Path("it.bhc")


def parse(content: bytes) -> QuantisedNetwork:
    return parse_network(content, IT).network


CARD = {
    "context": {"classes": [3, 4]},
    "threshold": -0.75,
    "scale": 0.5,
    "architecture_before": [6],
    "weights_before": 60,
    "parameter_bytes_before": 280,
    "flops_before": 120,
}


def example() -> QuantisedNetwork:
    """The network of the worked example in ``docs/format.md``."""
    graph = chains.named(scale=Normalise(0.0, 64.0), pick=Select(torch.tensor([0, 2, 3, 5])), fc=nn.Linear(4, 2))
    return QuantisedNetwork.build(
        graph,
        weights={"fc": Codes(np.array([[1, -1, 0, 2], [0, 0, -1, 1]], dtype=np.int32), 0.125)},
        biases={"fc": Codes(np.array([5, -127], dtype=np.int32), 1 / 64)},
        input_shape=(6,),
        labels=(3, 4),
        card=CARD,
    )


def branching_example() -> QuantisedNetwork:
    """A small network with values that are read twice, and the later forms of steps."""
    affine = Affine(2)
    affine.weight.data, affine.bias.data = torch.tensor([1.5, -0.5]), torch.tensor([0.25, 0.0])
    graph = wired(
        ("scale", Normalise([0.0, 1.0], [2.0, 4.0])),
        ("deep", nn.Conv2d(2, 2, 1, groups=2, bias=False)),
        ("affine", affine),
        ("sum", Add(), "affine", "scale"),
        ("fewer", Subsample(2), "deep"),
        ("mean", GlobalMean(False), "sum"),
        ("fc", nn.Linear(2, 2, bias=False)),
    )
    codes = {"deep": np.array([3, -1]).reshape(2, 1, 1, 1), "fc": np.array([[1, -1], [0, 2]])}
    return QuantisedNetwork.build(
        graph,
        weights={name: Codes(numbers.astype(np.int32), 0.125) for name, numbers in codes.items()},
        biases={},
        input_shape=(2, 2, 3),
        labels=(0, 1),
    )


def old_kinds() -> Graph:
    """A chain with every kind of step that the first files had, most of them in an unusual form."""
    return chains.named(
        normalise=Normalise(0.25, 64.0),
        first=nn.Conv2d(1, 4, 3, padding=1),
        a=nn.ReLU(),
        largest=nn.MaxPool2d(3, stride=2, padding=1),
        second=nn.Conv2d(4, 3, (3, 2), stride=(2, 1), padding=(2, 0), dilation=(1, 2), bias=False),
        b=nn.ReLU6(),
        average=nn.AvgPool2d((2, 1), stride=1, padding=(1, 0)),
        c=nn.LeakyReLU(0.1),
        third=nn.Conv2d(3, 2, 3, padding="same", dilation=2),
        d=nn.ELU(0.5),
        wide=nn.MaxPool2d(2, stride=1, dilation=2),
        fourth=nn.Conv2d(2, 2, 1, padding="valid"),
        e=nn.SELU(),
        flatten=nn.Flatten(),
        pick=Select(torch.tensor([0, 2, 5, 7, 8])),
        fc1=nn.Linear(5, 4),
        f=nn.GELU("tanh"),
        g=nn.GELU(),
        fc2=nn.Linear(4, 6, bias=False),
        h=nn.SiLU(),
        i=nn.Tanh(),
        again=Select(torch.tensor([1, 2, 3])),
        fc3=nn.Linear(3, 2),
    )


def called_again() -> Graph:
    """Layers whose weights other steps use too, one of them transposed."""
    layer, last = nn.Linear(5, 5), nn.Linear(5, 3)
    return wired(
        ("first", layer), ("a", nn.Tanh()), ("b", layer), ("c", layer, "a"), ("sum", Add(), "b", "c"),
        ("last", last), ("back", Tied(last)), ("more", Add(), "back", "a"), ("end", last),
    )  # fmt: skip


def quantised(
    graph: Graph,
    input_shape: tuple[int, ...],
    widths: Mapping[str, float],
    *,
    biased: Iterable[str] = (),
    seed: int = 0,
    **rest: Any,
) -> QuantisedNetwork:
    """``graph`` with Laplace codes of some width in the layers that ``widths`` names; the others stay floats."""
    rng = np.random.default_rng(seed)
    weights, biases = {}, {}
    for name, width in widths.items():
        module = graph.get_submodule(name)
        assert is_weighted(module)
        codes = np.clip(np.rint(rng.laplace(0, width, tuple(module.weight.shape))), -32767, 32767)
        weights[name] = Codes(codes.astype(np.int32), 0.0625)
        if name in biased:
            biases[name] = Codes(rng.integers(-127, 128, len(module.weight), dtype=np.int32), 0.01171875)
    rest = {"labels": (3, 4), "card": CARD} | rest
    return QuantisedNetwork.build(graph, weights=weights, biases=biases, input_shape=input_shape, **rest)


def zoo() -> dict[str, QuantisedNetwork]:
    """Networks that differ in what they hold."""
    torch.manual_seed(0)
    widths = {"first": 2.0, "second": 30.0, "third": 0.3, "fourth": 9000.0, "fc1": 1.0, "fc2": 0.0, "fc3": 300.0}
    mixed = {"second": 2.0, "fc1": 4.0}
    shape = (1, 13, 12)
    wide = in_a_row(nn.Linear(300, 40), nn.ReLU(), nn.Linear(40, 2))
    return {
        "example": example(),
        "branching example": branching_example(),
        "every kind": quantised(old_kinds(), shape, widths, biased=["first", "fc1", "fc3"], temperature=0.7),
        "floats": quantised(old_kinds(), shape, {}, labels=(0, 9)),
        "mixed": quantised(old_kinds(), shape, mixed, biased=["fc1"]),
        "wide layer": quantised(wide, (300,), {"0": 3.0, "2": 9.0}),
        "16 bits": quantised(in_a_row(nn.Linear(70, 2)), (70,), {"0": 12000.0}),
        "zeros": quantised(in_a_row(nn.Linear(8, 2)), (8,), {"0": 0.0}, biased=["0"]),
        "no card": quantised(in_a_row(nn.Linear(8, 2)), (8,), {"0": 1.0}, card={}),
        **{name: replace(chains.quantised(name), card=CARD) for name in (*GRAPHS, "recordings")},
        "branches of floats": replace(chains.floats("squeeze-and-excite"), card=CARD),
        "called again": quantised(called_again(), (5,), {"first": 2.0}, biased=["first"], labels=(0, 1, 2)),
        "flat picture": quantised(in_a_row(nn.Flatten(), nn.Linear(12, 2)), (3, 4), {"1": 1.0}),
    }
