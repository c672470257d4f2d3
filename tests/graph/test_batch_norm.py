"""Batch norms are taken into layers exactly, or stay as two numbers a channel."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bhc.graph import INPUT, Graph, capture, shaped_steps
from bhc.graph.capture import fold_affines
from bhc.layers import Add, Affine

from ..formats.graphs import wired

LAYERS = {
    "linear": (nn.Linear(4, 6), nn.BatchNorm1d, (4,)),
    "linear without bias": (nn.Linear(4, 6, bias=False), nn.BatchNorm1d, (4,)),
    "conv-1d": (nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d, (4, 7)),
    "conv-2d": (nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d, (4, 7, 6)),
    "conv-3d": (nn.Conv3d(4, 6, (1, 2, 3)), nn.BatchNorm3d, (4, 3, 4, 5)),
    "without bias": (nn.Conv2d(4, 6, 3, padding="same", bias=False), nn.BatchNorm2d, (4, 7, 6)),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d, (4, 7, 6)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d, (4, 7, 6)),
}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def used(norm: Any, *, seed: int = 1) -> Affine:
    """A norm as training leaves it, in double precision, as two numbers a channel."""
    norm = trained(norm, seed=seed)
    factor = torch.rsqrt(norm.running_var + norm.eps) * (1 if norm.weight is None else norm.weight.detach())
    affine = Affine(len(factor)).double()
    affine.weight.data = factor
    affine.bias.data = (0 if norm.bias is None else norm.bias.detach()) - factor * norm.running_mean
    return affine


def trained(norm: Any, *, seed: int = 1) -> Any:
    norm = norm.double().eval()
    draws = torch.Generator().manual_seed(seed)
    norm.running_mean.normal_(generator=draws)
    norm.running_var.uniform_(0.1, 4, generator=draws)
    if norm.affine:
        norm.weight.data.normal_(generator=draws)
        norm.bias.data.normal_(generator=draws)
    return norm


def folded_in(graph: Graph, *shape: int) -> Graph:
    return fold_affines(graph, {each.name: each.leaving for each in shaped_steps(graph, shape)})


def modules_of(graph: Graph) -> list[type[nn.Module]]:
    return [type(step.module) for step in graph.steps]


def assert_equal(given: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(given, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.1])
@pytest.mark.parametrize(("layer", "norm", "shape"), LAYERS.values(), ids=LAYERS)
def test_a_norm_is_captured_as_what_it_is_in_use_and_the_network_left_alone(
    layer: Any, norm: Any, shape: tuple[int, ...], affine: bool, eps: float
) -> None:
    own = trained(norm(len(layer.weight), affine=affine, eps=eps)).float()
    net, x = nn.Sequential(layer.float(), own, nn.ReLU()).train(), numbers(3, *shape).float()
    before = copy.deepcopy(net.state_dict())
    graph = capture(net, x)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert modules_of(graph) == [type(layer), nn.ReLU]
    torch.testing.assert_close(graph(x), net.eval()(x), rtol=1e-4, atol=1e-5)


Steps = list[tuple[Any, ...]]
LINEAR, CONV, NORM, NORM_2D = nn.Linear(4, 4), nn.Conv2d(4, 4, 1), nn.BatchNorm1d(4), nn.BatchNorm2d(4)
# Steps with a norm among them, the shape of an example, and the steps that are left.
ELSEWHERE: dict[str, tuple[Steps, tuple[int, ...], Steps]] = {
    "two norms after one layer are both taken in": (
        [("layer", LINEAR), ("a", used(NORM)), ("b", used(nn.BatchNorm1d(4), seed=2))],
        (4,),
        [("layer", INPUT)],
    ),
    "a norm of a value that others read stays": (
        [("layer", CONV), ("norm", used(NORM_2D)), ("sum", Add(), "norm", "layer")],
        (4, 5, 5),
        [("layer", INPUT), ("norm", "layer"), ("sum", "norm", "layer")],
    ),
    "two norms of one value stay": (
        [("layer", LINEAR), ("a", used(NORM)), ("b", used(NORM, seed=2), "layer"), ("sum", Add(), "a", "b")],
        (4,),
        [("layer", INPUT), ("a", "layer"), ("b", "layer"), ("sum", "a", "b")],
    ),
    "what reads a folded norm twice reads the layer twice": (
        [("layer", LINEAR), ("norm", used(NORM)), ("relu", nn.ReLU()), ("sum", Add(), "relu", "norm")],
        (4,),
        [("layer", INPUT), ("relu", "layer"), ("sum", "relu", "layer")],
    ),
    "a norm after an addition stays under its name": (
        [("layer", LINEAR), ("sum", Add(), INPUT, "layer"), ("norm", used(NORM)), ("relu", nn.ReLU())],
        (4,),
        [("layer", INPUT), ("sum", INPUT, "layer"), ("norm", "sum"), ("relu", "norm")],
    ),
    "a norm after a pool stays": (
        [("layer", CONV), ("pool", nn.AvgPool2d(2)), ("norm", used(NORM_2D))],
        (4, 4, 4),
        [("layer", INPUT), ("pool", "layer"), ("norm", "pool")],
    ),
    "a norm after an activation stays": (
        [("layer", CONV), ("relu", nn.ReLU()), ("norm", used(NORM_2D))],
        (4, 4, 4),
        [("layer", INPUT), ("relu", "layer"), ("norm", "relu")],
    ),
    "a norm of the input stays": ([("norm", used(NORM_2D))], (4, 4, 4), [("norm", INPUT)]),
}


@pytest.mark.parametrize(("steps", "shape", "left"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_norm_elsewhere(steps: Steps, shape: tuple[int, ...], left: Steps) -> None:
    graph, x = wired(*steps).double(), numbers(2, *shape)
    folded = folded_in(graph, *shape)
    assert [(step.name, *step.reads) for step in folded.steps] == left
    assert_equal(folded(x), graph(x))
