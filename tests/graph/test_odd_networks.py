"""Networks that are odd and yet people's: uncut, cut, packed and read, they compute what they should."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.formats import QuantisedNetwork, pack, parse_network
from bhc.graph import capture

from .nets import net_of, seeded
from .test_taken import cut_in_half, near


def learned(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.5 * seeded(*shape))


def first(inputs: int = 6, outputs: int = 8) -> nn.Linear:
    return nn.Linear(inputs, outputs)


FLAT, TOKENS, MAPS = (3, 6), (3, 5, 6), (3, 3, 6, 6)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "a product with a learned matrix beside a layer": (
        lambda: net_of(lambda n, x: n.e(n.a(x) - x @ n.w), a=first(), w=learned(6, 8), e=first(8, 4)), FLAT),
    "a maximum with a transposed convolution": (
        lambda: net_of(lambda n, x: n.e(torch.maximum(n.a(x), n.t(x)).mean((2, 3))),
                       a=nn.Conv2d(3, 8, 3, padding=1), t=nn.ConvTranspose2d(3, 8, 3, padding=1), e=first(8, 4)), MAPS),
    "a gate over places": (
        lambda: net_of(lambda n, x: n.e((n.a(x) * torch.sigmoid(n.g(n.a(x)))).mean((2, 3))),
                       a=nn.Conv2d(3, 8, 3), g=nn.Conv2d(8, 1, 1), e=first(8, 4)), MAPS),
    "a gate over tokens": (
        lambda: net_of(lambda n, x: n.e((n.a(x) * torch.softmax(n.g(n.a(x)), 1)).sum(1)),
                       a=first(), g=first(8, 1), e=first(8, 4)), TOKENS),
    "an expanded gate": (
        lambda: net_of(lambda n, x: n.e(n.a(x) / (1 + n.g(x).expand(-1, 8) ** 2)),
                       a=first(), g=first(6, 1), e=first(8, 4)), FLAT),
    "zeros that become something": (
        lambda: net_of(lambda n, x: n.e(torch.sigmoid(F.pad(n.a(x), (2, 1)))), a=first(6, 5), e=first(8, 4)), FLAT),
    "zeros that are shifted": (
        lambda: net_of(lambda n, x: n.e(F.pad(n.a(x), (1, 2)) + n.b),
                       a=first(6, 5), b=learned(8), e=first(8, 4)), FLAT),
    "a square with a rim": (
        lambda: net_of(lambda n, x: n.e(F.pad(n.a(x).view(-1, 4, 4), (1, 1, 1, 1)).flatten(1)),
                       a=first(6, 16), e=first(36, 4)), FLAT),
    "own numbers, learned and not": (
        lambda: net_of(lambda n, x: n.e(torch.lerp(n.a(x), n.goal, n.rate)),
                       a=first(), goal=seeded(8), rate=learned(8), e=first(8, 4)), FLAT),
    "a choice between a layer and own numbers": (
        lambda: net_of(lambda n, x: n.e(torch.where(n.which, n.a(x), n.other)),
                       a=first(), which=torch.arange(8) % 3 == 0, other=learned(8), e=first(8, 4)), FLAT),
    "a norm over tokens": (
        lambda: net_of(lambda n, x: n.e(n.norm(n.a(x)).mean(1)),
                       a=first(), norm=nn.BatchNorm1d(5), e=first(8, 4)), TOKENS),
    "a causal mask": (
        lambda: net_of(lambda n, x: n.e((torch.softmax(n.a(x) @ n.b(x).mT + n.mask, -1) @ n.c(x)).mean(1)),
                       a=first(), b=first(), c=first(), e=first(8, 4),
                       mask=torch.full((5, 5), -torch.inf).triu(1)), TOKENS),
    "a roll of everything": (
        lambda: net_of(lambda n, x: n.e(torch.roll(n.a(x).mean(1, keepdim=True), 1).squeeze(1) * 0 + n.a(x).mean(1)),
                       a=first(), e=first(8, 4)), TOKENS),
    "every second channel, written over": (
        lambda: net_of(lambda n, x: n.e(torch.slice_scatter(n.a(x), n.b(x), 1, 0, 8, 2)),
                       a=first(), b=first(6, 4), e=first(8, 4)), FLAT),
    "slopes of channels last": (
        lambda: net_of(lambda n, x: n.e(n.slope(n.a(x).mT).mean(2)),
                       a=first(), slope=nn.PReLU(8), e=first(8, 4)), TOKENS),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_it_is_what_it_was_uncut_cut_and_in_a_file(name: str) -> None:
    build, shape = CASES[name]
    torch.manual_seed(0)
    net, x = build().eval(), seeded(*shape)
    graph = capture(net, seeded(1, *shape[1:]))
    assert near(graph(x), net(x))
    slim, given, masked, _ = cut_in_half(net, x)
    assert near(given, masked)
    network = QuantisedNetwork(slim, shape[1:], tuple(range(4)), card={"context": {}})
    assert near(parse_network(pack(network), Path("it.bhc")).network.graph(x), given)
    model = bhc.wrap(net, bhc.ClassSubsets(4), example_input=x)
    small = model.compress(classes=[0, 1, 2, 3], threshold=1e6, quantisation=bhc.Float32())
    assert near(small.module(x), net(x)), "nothing is cut, and it computes something else"


@torch.no_grad()
def test_an_input_that_is_one_number() -> None:
    net = net_of(lambda n, t: n.e(torch.relu(n.a(t[:, None]))), a=first(1, 8), e=first(8, 4)).eval()
    model = bhc.wrap(net, bhc.ClassSubsets(4), example_input=seeded(2))
    small = model.compress(classes=[0, 1, 2, 3], threshold=1e6, quantisation=bhc.Float32())
    read = parse_network(small.to_bytes(), Path("it.bhc")).network
    assert near(read.graph(seeded(5)), net(seeded(5)))


def after_dropout(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    y = net.drop(h)  # the same tensor, when a network is used
    y += 1
    return net.e(torch.relu(y) + h)


def into_the_input(net: Any, x: Tensor) -> Tensor:
    x[:, 0] = x[:, 1] * 2
    return net.e(torch.relu(net.a(x)))


def into_a_place(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    y = torch.empty_like(h)
    torch.add(h, 1, out=y)
    return net.e(y + h)


WRITING: dict[str, Any] = {"a": first(), "drop": nn.Dropout(0.5), "e": first(8, 4)}
CAPTURED: dict[str, tuple[nn.Module, Tensor]] = {
    "words that begin at one": (
        net_of(lambda n, w: n.e(n.table(w - 1).mean(1)), table=nn.Embedding(9, 6), e=first(6, 4)),
        torch.arange(1, 10)[None],
    ),
    "words that are truths": (
        net_of(lambda n, w: n.e(n.table(w.bool().long()).mean(1)), table=nn.Embedding(2, 6), e=first(6, 4)),
        torch.tensor([[0, 1, 7, 9]]),
    ),
    "columns that are categories among numbers": (
        net_of(
            lambda n, x: n.e(torch.cat([n.table(x[:, 0].long()), x[:, 1:]], 1)), table=nn.Embedding(3, 4), e=first(6, 4)
        ),
        torch.tensor([[2.0, 0.3, -1.0], [0.0, 1.5, 0.2]]),
    ),
    "an input that is written into": (net_of(into_the_input, **WRITING), seeded(*FLAT)),
    "a value under another name after dropout": (net_of(after_dropout, **WRITING), seeded(*FLAT)),
    "a value that is written into a place": (net_of(into_a_place, **WRITING), seeded(*FLAT)),
}


@torch.no_grad()
@pytest.mark.parametrize(("net", "x"), CAPTURED.values(), ids=CAPTURED)
def test_it_is_captured_and_computes_the_same(net: nn.Module, x: Tensor) -> None:
    assert near(capture(net.eval(), x.clone())(x.clone()), net(x.clone()))


@torch.no_grad()
def test_a_causal_mask_of_texts_of_any_length() -> None:
    def run(net: Any, x: Tensor) -> Tensor:
        scores = net.a(x) @ net.b(x).mT + net.mask[: x.shape[1], : x.shape[1]]
        return net.e((torch.softmax(scores, -1) @ net.c(x)).mean(1))

    mask = torch.full((9, 9), -1e4).triu(1)
    net = net_of(run, a=first(), b=first(), c=first(), mask=mask, e=first(8, 4)).eval()
    model = bhc.wrap(net, bhc.ClassSubsets(4), example_input=seeded(1, 5, 6), dynamic_axes=(1,))
    small = model.compress(classes=[0, 1, 2, 3], threshold=1e6, quantisation=bhc.Float32())
    for length in (2, 5, 9):
        assert near(small.module(seeded(2, length, 6)), net(seeded(2, length, 6)))


def test_names_of_inputs_that_are_taken_here_stay_the_users() -> None:
    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.e = first(), first(8, 4)

        def forward(self, graph: Tensor, type: Tensor) -> Tensor:
            return self.e(torch.relu(self.a(graph)) + type)

    x = {"graph": seeded(2, 6), "type": seeded(2, 8)}
    small = bhc.wrap(Typed(), bhc.ClassSubsets(4), example_input=x).compress(classes=[0, 1])
    assert small.network.signature.names == ("graph", "type")
    assert small.module(**x).shape == small.predict(x).probabilities.shape
    doubles = {name: value.double() for name, value in x.items()}
    assert torch.allclose(small.predict(doubles).probabilities, small.predict(x).probabilities)
