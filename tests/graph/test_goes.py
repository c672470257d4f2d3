"""What is moved, picked or summed between layers keeps no units: they go, and what is left computes the same."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import Cutter, slim_model
from bhc.formats import QuantisedNetwork, pack, parse_network
from bhc.graph import capture
from bhc.layers import is_weighted

from .nets import net_of, seeded
from .test_taken import cut_in_half, near

FLAT, TOKENS, MAPS = (3, 6), (3, 5, 6), (3, 3, 6, 6)
HARDEST = -1e30  # a threshold under all rates
ALL_BUT_FEW = 0.7  # of the weights of small networks: a unit of each value stays


def can_go(net: nn.Module, x: Tensor) -> float:
    """The part of the weights that the hardest cut leaves out, of a network that still computes the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about how much stays whole
        network = bhc.wrap(net, bhc.SingleContext(), example_input=x, initial=bhc.Initial()).network.eval()
    plan, batch = Cutter(network, Context()).cut(HARDEST), ContextBatch.of([Context()], network.num_classes)
    assert near(slim_model(network, plan).run(x), network.masked(x, batch, threshold=torch.tensor([[HARDEST]])))
    return 1 - plan.num_weights / network.num_weights


def gated_by_extremes(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.e((h * torch.sigmoid(h.max(1, keepdim=True)[0] - h.min(1)[0][:, None])).mean((2, 3)))


def cell_by_cell(net: Any, x: Tensor) -> Tensor:
    """From a state of zeros on: that of an LSTM's cell has two parts."""
    state = tuple(x.new_zeros(x.shape[0], 8) for _ in "hc")
    for step in x.unbind(1):
        given = net.cell(step, state if isinstance(net.cell, nn.LSTMCell) else state[0])
        state = given if isinstance(given, tuple) else (given,)
    return net.e(state[0])


def in_place(net: Any, x: Tensor) -> Tensor:
    """Some channels are changed where they are, for all examples."""
    h = net.a(x)
    h[:, :4] *= 2.0
    h += net.b(x)
    return net.e(h.mean((2, 3)))


def gated_by_neighbours(net: Any, x: Tensor) -> Tensor:
    """ECA: a convolution over channels, of values that are not zero where a channel is gone."""
    h = torch.sigmoid(net.a(x))
    gate = net.beside(h.mean((2, 3))[:, None]).sigmoid()
    return net.e((h * gate[:, 0, :, None, None]).mean((2, 3)))


def sliding_over_channels(net: Any, x: Tensor) -> Tensor:
    """Half as many places of twice as many values, which are channels again, and meet others."""
    h = net.slide(torch.sigmoid(net.a(x)).unsqueeze(1)).flatten(1, 2)
    return net.e((h * net.b(x)).mean((2, 3)))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "channels in another order": (
        lambda: net_of(lambda n, x: n.e(n.a(x).index_select(1, n.order)),
                       a=nn.Linear(6, 8), order=torch.tensor([3, 1, 0, 7, 5, 6, 2, 4]), e=nn.Linear(8, 4)), FLAT),
    "some channels, one of them twice": (
        lambda: net_of(lambda n, x: n.e(n.a(x)[:, [3, -1, 0, 3]].mean((2, 3))),
                       a=nn.Conv2d(3, 8, 3), e=nn.Linear(4, 4)), MAPS),
    "channels that come last": (
        lambda: net_of(lambda n, x: n.e(n.a(x)[..., [1, 4, 5]].mean(1)),
                       a=nn.Linear(6, 8), e=nn.Linear(3, 4)), TOKENS),
    "places that are picked by several numbers": (
        lambda: net_of(lambda n, x: n.e(n.a(x)[:, :, [[0], [2], [1]], [[3, 0], [1, 2], [0, 0]]].mean((2, 3))),
                       a=nn.Conv2d(3, 8, 3), e=nn.Linear(8, 4)), MAPS),
    "channels that are written over others": (
        lambda: net_of(lambda n, x: n.e(torch.slice_scatter(n.a(x), n.b(x), 1, 2, -1).mean((2, 3))),
                       a=nn.Conv2d(3, 8, 3), b=nn.Conv2d(3, 5, 3), e=nn.Linear(8, 4)), MAPS),
    "places that are written over others": (
        lambda: net_of(lambda n, x: n.e(torch.slice_scatter(n.a(x), n.b(x), 2, 1, 3).mean((2, 3))),
                       a=nn.Conv2d(3, 8, 3), b=nn.Conv2d(3, 8, (5, 3)), e=nn.Linear(8, 4)), MAPS),
    "own numbers that are written over channels": (
        lambda: net_of(lambda n, x: n.e(torch.slice_scatter(n.a(x), n.own.expand(x.shape[0], 3), 1, 4, 7)),
                       a=nn.Linear(6, 8), own=nn.Parameter(seeded(1, 3)), e=nn.Linear(8, 4)), FLAT),
    "a gate of the largest and smallest channels": (
        lambda: net_of(gated_by_extremes, a=nn.Conv2d(3, 8, 3), e=nn.Linear(8, 4)), MAPS),
    "two parts of one weight": (
        lambda: net_of(lambda n, x: n.e(torch.relu(F.linear(x, n.w[:8])) + torch.tanh(F.linear(x, n.w[8:]))),
                       w=nn.Parameter(seeded(16, 6)), e=nn.Linear(8, 4)), FLAT),
    "a weight that is split and turned": (
        lambda: net_of(lambda n, x: n.e(torch.relu(F.linear(x, n.w.T.chunk(2)[0])) * F.linear(x, n.w.T.chunk(2)[1])),
                       w=nn.Parameter(seeded(6, 16)), e=nn.Linear(8, 4)), FLAT),
    "a mean over branches": (
        lambda: net_of(lambda n, x: n.e(torch.stack([n.a(x), n.b(x)]).mean(0)),
                       a=nn.Linear(6, 8), b=nn.Linear(6, 8), e=nn.Linear(8, 4)), FLAT),
    "the largest of branches": (
        lambda: net_of(lambda n, x: n.e(torch.stack([n.a(x), n.b(x)], 1).max(1).values.mean((2, 3))),
                       a=nn.Conv2d(3, 8, 3), b=nn.Conv2d(3, 8, 3), e=nn.Linear(8, 4)), MAPS),
    "branches that are chosen by a softmax": (
        lambda: net_of(lambda n, x: n.e((n.a(x).view(-1, 2, 8) * n.b(x).view(-1, 2, 8).softmax(1)).sum(1)),
                       a=nn.Linear(6, 16), b=nn.Linear(6, 16), e=nn.Linear(8, 4)), FLAT),
    "two values in pairs": (
        lambda: net_of(lambda n, x: n.e(n.pairs(n.a(x), n.b(x)).relu()),
                       a=nn.Linear(6, 8), b=nn.Linear(6, 5), pairs=nn.Bilinear(8, 5, 7), e=nn.Linear(7, 4)), FLAT),
    "two values in pairs, at many places": (
        lambda: net_of(lambda n, x: n.e(n.pairs(n.a(x), n.b(x)).relu().mean(1)),
                       a=nn.Linear(6, 8), b=nn.Linear(6, 5), pairs=nn.Bilinear(8, 5, 7, bias=False), e=nn.Linear(7, 4)),
        TOKENS),
    "a sum over channels that is written out": (
        lambda: net_of(lambda n, x: n.e(torch.einsum("nchw,dc->nhwd", n.a(x), n.w).relu().mean((1, 2))),
                       a=nn.Conv2d(3, 8, 3), w=nn.Parameter(seeded(9, 8)), e=nn.Linear(9, 4)), MAPS),
    "a sum over channels that is written out, the matrix first": (
        lambda: net_of(lambda n, x: n.e(torch.einsum("cd,ntc->ndt", n.w, n.a(x)).relu().mean(2)),
                       a=nn.Linear(6, 8), w=nn.Parameter(seeded(8, 9)), e=nn.Linear(9, 4)), TOKENS),
    "a product and what is added to it": (
        lambda: net_of(lambda n, x: n.e(torch.baddbmm(x, n.a(x), n.b(x), alpha=0.5).relu().mean(1)),
                       a=nn.Linear(6, 5), b=nn.Linear(6, 6), e=nn.Linear(6, 4)), (3, 5, 6)),
    "an LSTM's cell": (
        lambda: net_of(cell_by_cell, cell=nn.LSTMCell(6, 8), e=nn.Linear(8, 4)), TOKENS),
    "a GRU's cell": (
        lambda: net_of(cell_by_cell, cell=nn.GRUCell(6, 8), e=nn.Linear(8, 4)), TOKENS),
    "a plain cell": (
        lambda: net_of(cell_by_cell, cell=nn.RNNCell(6, 8, nonlinearity="relu"), e=nn.Linear(8, 4)),
        TOKENS),
    "channels that are changed in place": (
        lambda: net_of(in_place, a=nn.Conv2d(3, 8, 3), b=nn.Conv2d(3, 8, 3), e=nn.Linear(8, 4)), MAPS),
    "a convolution over channels": (
        lambda: net_of(gated_by_neighbours, a=nn.Conv2d(3, 8, 3), beside=nn.Conv1d(1, 1, 3, padding=1, bias=False),
                       e=nn.Linear(8, 4)), MAPS),
    "a convolution over channels, to others": (
        lambda: net_of(sliding_over_channels, a=nn.Conv2d(3, 8, 3), b=nn.Conv2d(3, 8, 3), e=nn.Linear(8, 4),
                       slide=nn.Conv3d(1, 2, (4, 1, 1), stride=(2, 1, 1), padding=(1, 0, 0))), MAPS),
    "a convolution of one place over channels": (
        lambda: net_of(lambda n, x: n.e((n.a(x) + n.mix(n.a(x)).relu()).mean(1)),
                       a=nn.Linear(6, 8), mix=nn.Conv1d(5, 5, 1), e=nn.Linear(8, 4)), TOKENS),
    "a stack of experts, each of which has something to say of every class": (
        lambda: net_of(lambda n, x: (n.g(x).softmax(1)[..., None] * torch.stack([n.b(n.a(x)), n.d(n.c(x))], 1)).sum(1),
                       a=nn.Linear(6, 32), b=nn.Linear(32, 4), c=nn.Linear(6, 32), d=nn.Linear(32, 4),
                       g=nn.Linear(6, 2)),
        FLAT),
    "gated by the other half": (
        lambda: net_of(lambda n, x: n.e(n.b(n.a(x)[:, :8].relu()) * torch.sigmoid(n.c(n.a(x)[:, 8:]))),
                       a=nn.Linear(6, 16), b=nn.Linear(8, 8), c=nn.Linear(8, 8), e=nn.Linear(8, 4)), FLAT),
    "zeros like a value": (
        lambda: net_of(lambda n, x: n.e(torch.maximum(n.a(x), torch.zeros_like(n.a(x)))),
                       a=nn.Linear(6, 8), e=nn.Linear(8, 4)), FLAT),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_its_units_go_and_what_is_left_computes_the_same(name: str) -> None:
    build, shape = CASES[name]
    torch.manual_seed(0)
    net, x = build().eval(), seeded(*shape)
    assert near(capture(net, seeded(1, *shape[1:]))(x), net(x))
    assert can_go(net, x) > ALL_BUT_FEW
    slim, given, masked, _ = cut_in_half(net, x)
    assert near(given, masked)
    network = QuantisedNetwork(slim, shape[1:], tuple(range(4)), card={"context": {}})
    assert near(parse_network(pack(network), Path("it.bhc")).network.graph(x), given)


@torch.no_grad()
def test_a_number_without_axes_that_is_made_on_the_way() -> None:
    def run(net: nn.Module, x: Tensor) -> Tensor:
        return net.e(torch.where(net.a(x) > 0, net.a(x), x[:, 0].new_ones([])))  # type: ignore[operator]

    net, x = net_of(run, a=nn.Linear(6, 8), e=nn.Linear(8, 4)).eval(), seeded(*FLAT)
    assert near(capture(net, seeded(1, 6))(x), net(x))
    _, given, masked, _ = cut_in_half(net, x)
    assert near(given, masked)


@torch.no_grad()
@pytest.mark.parametrize("end", [9, 16])
def test_parts_of_a_weight_that_overlap_are_one_weight_that_is_used_twice(end: int) -> None:
    def run(net: Any, x: Tensor) -> Tensor:
        return net.e(F.linear(x, net.w[:9]).relu()[:, :8] + F.linear(x, net.w[8:end]).tanh()[:, :1])

    net, x = net_of(run, w=nn.Parameter(seeded(16, 6)), e=nn.Linear(8, 4)).eval(), seeded(*FLAT)
    graph = capture(net, x)
    assert [step.name for step in graph.steps if is_weighted(step.module)] == ["e"]
    assert near(graph(x), net(x))


@torch.no_grad()
@pytest.mark.parametrize("place", [-1, 0, 1])
def test_one_of_the_places_that_a_mask_picks(place: int) -> None:
    """As the last token of T5 and BART is found: each example has as many that end something."""

    def run(net: Any, words: Tensor) -> Tensor:
        h = net.a(net.words(words))
        return net.e(h[words.eq(2), :].view(h.shape[0], -1, h.shape[-1])[:, place, :].relu())

    net = net_of(run, words=nn.Embedding(9, 6), a=nn.Linear(6, 8), e=nn.Linear(8, 4)).eval()
    words = torch.tensor([[3, 2, 4, 2, 5], [2, 2, 6, 7, 8], [3, 4, 5, 2, 2]])
    assert near(capture(net, words[:1])(words), net(words))
    assert can_go(net, words) > ALL_BUT_FEW
    _, given, masked, _ = cut_in_half(net, words)
    assert near(given, masked)
