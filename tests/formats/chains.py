"""Small chains that between them have every step kind, in every variant that a format must write."""

import pytest
import torch
from torch import nn

from bhc.formats import Codes, QuantisedNetwork
from bhc.graph import Graph
from bhc.layers import Select, Shape, is_weighted
from bhc.models import LogMel, Normalise

from .graphs import GRAPHS, TEXT, WORDS

TORCH_REMARKS = pytest.mark.filterwarnings("ignore:Using padding='same'")  # on even kernels, once a process

ACTIVATIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "leaky-relu": nn.LeakyReLU(0.2),
    "leaky-relu-of-a-whole-number": nn.LeakyReLU(2),
    "elu": nn.ELU(0.7),
    "elu-of-a-whole-number": nn.ELU(2),
    "selu": nn.SELU(),
    "gelu": nn.GELU(),
    "gelu-tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
}

FALLING: dict[str, nn.Module] = {"falling-elu": nn.ELU(-0.5), "falling-leaky-relu": nn.LeakyReLU(-2.0)}


def named(**steps: nn.Module) -> Graph:
    return Graph.chain(steps.items())


def dense(activation: nn.Module) -> Graph:
    """A linear network that reads some of its inputs."""
    return named(
        normalise=Normalise(1.5, 2.0),
        flatten=nn.Flatten(),
        select_fc1=Select(torch.tensor([0, 3, 4, 11, 17])),
        fc1=nn.Linear(5, 8),
        act=activation,
        select_fc2=Select(torch.tensor([1, 2, 5, 6])),
        fc2=nn.Linear(4, 3),
    )


def convolutional(first: nn.Module, *between: nn.Module, features: int, mean: float = 0.0) -> Graph:
    """Layers on images, then a linear one that reads some of the values."""
    steps = {f"step{place}": module for place, module in enumerate((first, *between))}
    return named(
        normalise=Normalise(mean, 0.5),
        **steps,
        flatten=nn.Flatten(),
        select_fc=Select(torch.arange(0, features, 2)),
        fc=nn.Linear(len(range(0, features, 2)), 4),
    )


CHAINS: dict[str, tuple[Graph, Shape]] = {
    **{name: (dense(module), (2, 3, 3)) for name, module in ACTIVATIONS.items()},
    "one-layer": (named(flatten=nn.Flatten(), fc=nn.Linear(6, 3)), (1, 2, 3)),
    "no-biases": (
        named(flatten=nn.Flatten(), fc1=nn.Linear(6, 4, bias=False), act=nn.ReLU(), fc2=nn.Linear(4, 3, bias=False)),
        (1, 2, 3),
    ),
    "no-bias-and-a-mean": (
        named(normalise=Normalise(2.0, 3.0), flatten=nn.Flatten(), fc=nn.Linear(6, 3, bias=False)),
        (1, 2, 3),
    ),
    "flat-input": (
        named(normalise=Normalise(-1.0, 3.0), fc1=nn.Linear(5, 4), act=nn.Tanh(), fc2=nn.Linear(4, 3)),
        (5,),
    ),
    "activation-first": (named(act=nn.Tanh(), flatten=nn.Flatten(), fc=nn.Linear(6, 3)), (1, 2, 3)),
    "activation-last": (named(flatten=nn.Flatten(), fc=nn.Linear(6, 3), act=nn.SiLU()), (1, 2, 3)),
    "select-then-activation": (
        named(flatten=nn.Flatten(), pick=Select(torch.tensor([5, 1])), act=nn.ELU(), fc=nn.Linear(2, 3)),
        (1, 2, 3),
    ),
    "names-that-formats-use": (
        named(input=nn.Flatten(), logits=nn.Linear(6, 5), scores=nn.ReLU(), labels=nn.Linear(5, 3)),
        (1, 2, 3),
    ),
    "names-that-c-lacks": (
        Graph.chain([("flat", nn.Flatten()), ("a*/é", nn.Linear(6, 5)), ("a/*_", nn.Linear(5, 3))]),
        (1, 2, 3),
    ),
    "plain-conv": (convolutional(nn.Conv2d(2, 3, 3), nn.ReLU(), features=3 * 4 * 5), (2, 6, 7)),
    "conv-and-a-mean": (convolutional(nn.Conv2d(2, 3, 3), nn.ReLU(), features=3 * 4 * 5, mean=0.7), (2, 6, 7)),
    "strides": (convolutional(nn.Conv2d(2, 3, (3, 2), stride=(2, 3)), features=3 * 2 * 2), (2, 6, 7)),
    "dilation": (convolutional(nn.Conv2d(2, 3, (2, 3), dilation=(3, 2)), features=3 * 3 * 3), (2, 6, 7)),
    "padding": (convolutional(nn.Conv2d(2, 3, 3, padding=(1, 2), bias=False), features=3 * 6 * 9), (2, 6, 7)),
    "padding-and-a-mean": (convolutional(nn.Conv2d(2, 3, 3, padding=1), features=3 * 6 * 7, mean=0.7), (2, 6, 7)),
    "padding-valid": (convolutional(nn.Conv2d(2, 3, 3, padding="valid"), features=3 * 4 * 5), (2, 6, 7)),
    "padding-same": (convolutional(nn.Conv2d(2, 3, 3, padding="same"), features=3 * 6 * 7), (2, 6, 7)),
    "padding-same-even": (
        convolutional(nn.Conv2d(2, 3, (2, 4), padding="same", dilation=(1, 3)), features=3 * 6 * 7),
        (2, 6, 7),
    ),
    "everything-at-once": (
        convolutional(
            nn.Conv2d(2, 3, 3, stride=(1, 2), padding=(2, 1), dilation=(2, 1)),
            nn.GELU(),
            nn.Conv2d(3, 5, 2, padding="same"),
            nn.MaxPool2d(2, 2),
            features=5 * 3 * 2,
        ),
        (2, 6, 7),
    ),
    "max-pool": (
        convolutional(
            nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), nn.Conv2d(2, 3, 2), features=3 * 2 * 4
        ),
        (2, 6, 7),
    ),
    "avg-pool": (
        convolutional(nn.AvgPool2d((2, 3), stride=(2, 1), padding=(1, 1)), nn.Conv2d(2, 3, 2), features=3 * 3 * 6),
        (2, 6, 7),
    ),
    **{
        f"conv-{name}-pool": (convolutional(nn.Conv2d(2, 3, 3), module, nn.MaxPool2d(2), features=3 * 2 * 2), (2, 6, 7))
        for name, module in (ACTIVATIONS | FALLING).items()
    },
    "conv-same-pool": (
        convolutional(
            nn.Conv2d(2, 3, (3, 5), padding="same", bias=False), nn.ReLU(), nn.MaxPool2d(2, 2), features=3 * 3 * 3
        ),
        (2, 6, 7),
    ),
    "conv-padding-pool": (
        convolutional(nn.Conv2d(2, 3, 2, padding=(1, 0)), nn.Tanh(), nn.MaxPool2d((2, 2)), features=3 * 3 * 3),
        (2, 6, 7),
    ),
    "conv-pool-twice": (
        convolutional(
            nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 17, 2), nn.ReLU(), nn.MaxPool2d(2), features=17
        ),
        (2, 8, 9),
    ),
    "conv-wide-pool": (
        convolutional(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(3, 2), features=3 * 1 * 2),
        (2, 6, 7),
    ),
    "recordings": (
        named(
            normalise=Normalise(0.0, 2.0),
            log_mel=LogMel(80, 5, 16, 6),
            scale=Normalise(-3.0, 2.0),
            conv=nn.Conv2d(1, 2, 2),
            act=nn.ReLU(),
            flatten=nn.Flatten(),
            fc=nn.Linear(2 * 4 * 5, 3),
        ),
        (1, 48),
    ),
    "pools-of-negative-numbers": (
        convolutional(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2, padding=1), nn.AvgPool2d(2, padding=1), features=3 * 2 * 2),
        (2, 6, 7),
    ),
}  # fmt: skip


NETWORKS = CHAINS | GRAPHS


def graph_of(name: str) -> tuple[Graph, Shape]:
    """A network by its name, with weights from a seed."""
    graph, shape = NETWORKS[name]
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in graph.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng) / parameter[0].numel() ** 0.5)
    return graph.eval().requires_grad_(False), shape


def labels_of(graph: Graph) -> tuple[int, ...]:
    """Labels that are not the outputs' own numbers, some of them large."""
    *_, last = (step.module for step in graph.steps if isinstance(step.module, nn.Linear))
    return tuple(3 + 70 * place for place in range(last.out_features))


def floats(name: str) -> QuantisedNetwork:
    """The network as it is."""
    graph, shape = graph_of(name)
    return QuantisedNetwork(graph, shape, labels_of(graph))


def quantised(name: str, *, step: float = 0.02) -> QuantisedNetwork:
    """The network with its weights and biases rounded."""
    graph, shape = graph_of(name)
    layers = {key: module for key, module in graph.named_children() if is_weighted(module)}
    return QuantisedNetwork.build(
        graph,
        weights={key: Codes.of(module.weight, step) for key, module in layers.items()},
        biases={
            key: Codes.of(module.bias, 0.0, largest=127) for key, module in layers.items() if module.bias is not None
        },
        input_shape=shape,
        labels=labels_of(graph),
    )


def inputs(shape: Shape, count: int = 64) -> torch.Tensor:
    if shape == TEXT:
        return torch.randint(0, WORDS, (count, *shape), generator=torch.Generator().manual_seed(1)).float()
    return 3 * torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))


def assert_alike(given: torch.Tensor, expected: torch.Tensor, *, part: float) -> None:
    """To ``part`` of the largest value: sums in another order differ by that."""
    torch.testing.assert_close(given, expected, rtol=0, atol=part * max(1.0, expected.abs().max().item()))
