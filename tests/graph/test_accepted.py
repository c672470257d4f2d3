"""Near relatives of networks that are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.graph import Graph, capture

from .nets import FLAT, MAPS, ends, maps_of, net_of, seeded, sequential


def late(net: Any, x: Tensor) -> Tensor:
    """What is written into is not read again."""
    x = net.a(x)
    identity = x
    out = net.b(F.relu(x))
    out += identity
    return ends(net, net.relu(out))


def in_place_throughout(net: Any, x: Tensor) -> Tensor:
    x = net.a(x).relu_()
    y = net.b(x)
    y *= x
    return ends(net, F.relu(y, inplace=True))


def averages_what_is_left(net: Any, x: Tensor) -> Tensor:
    x = net.relu(net.b(net.a(x)))
    x = F.avg_pool2d(x, x.size(3))
    return net.end(x.view(x.size(0), -1))


def _with_options(net: Any, x: Tensor, features: bool = False, names: Any = None) -> Tensor:
    x = net.first(x)
    if features or names is not None:
        return x
    return net.end(x)


def computes_too_much(net: Any, x: Tensor) -> Tensor:
    x = net.first(x)
    x.tanh().sum()
    return net.end(x)


def in_place_modules() -> nn.Module:
    net = maps_of(late)
    net.relu = nn.ReLU(inplace=True)
    return net


# Near relatives of what is refused.
ACCEPTED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dropout in a module": (
        lambda: sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Identity(), nn.AlphaDropout(0.5), nn.Linear(4, 2)),
        FLAT,
    ),
    "dropout that is off in use": (
        lambda: net_of(lambda net, x: net.end(F.dropout(net.first(x), 0.5, net.training))),
        FLAT,
    ),
    "an average over all places": (lambda: maps_of(averages_what_is_left), MAPS),
    "in-place modules whose input is not read again": (in_place_modules, MAPS),
    "in-place functions whose input is not read again": (
        lambda: net_of(
            in_place_throughout, a=nn.Conv2d(3, 4, 3, padding=1), b=nn.Conv2d(4, 4, 3, padding=1), end=nn.Linear(4, 2)
        ),
        MAPS,
    ),
    "options that nobody gives": (lambda: net_of(_with_options), FLAT),
    "a value that nobody reads": (lambda: net_of(computes_too_much), FLAT),
    "batch norms": (
        lambda: sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4, affine=False), nn.ReLU(), nn.Linear(4, 2)),
        FLAT,
    ),
    "every second place": (
        lambda: maps_of(lambda net, x: ends(net, net.b(net.relu(net.a(x)))[:, :, ::2, ::2])),
        MAPS,
    ),
    "a pool to one place": (
        lambda: maps_of(lambda net, x: net.end(F.adaptive_avg_pool2d(net.b(net.relu(net.a(x))), (1, 1)).flatten(1))),
        MAPS,
    ),
    "a mean by negative places": (
        lambda: maps_of(lambda net, x: net.end(torch.mean(net.b(net.relu(net.a(x))), dim=[-1, -2]))),
        MAPS,
    ),
    "values side by side by name": (
        lambda: net_of(
            lambda net, x: net.end(torch.cat((x, net.first(x)), dim=-1)), first=nn.Linear(4, 4), end=nn.Linear(8, 2)
        ),
        FLAT,
    ),
    "a value beside nothing": (
        lambda: net_of(lambda net, x: net.end(torch.cat([net.first(x)], 1))),
        FLAT,
    ),
    "a single layer": (lambda: nn.Linear(4, 2), FLAT),
    "a convolution of another kind of padding": (
        lambda: sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
        MAPS,
    ),
}


@pytest.mark.parametrize(("build", "shape"), ACCEPTED.values(), ids=ACCEPTED)
def test_is_accepted_and_computes_the_same(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    net = build().train()
    x = 3 * seeded(5, *shape[1:])
    graph = capture(net, x)
    assert type(graph) is Graph
    torch.testing.assert_close(graph(x), net.eval()(x.clone()))


@pytest.mark.parametrize("name", ["a value beside nothing", "a value that nobody reads"])
def test_what_changes_nothing_is_no_step(name: str) -> None:
    build, shape = ACCEPTED[name]
    assert [step.name for step in capture(build(), seeded(*shape)).steps] == ["first", "end"]
