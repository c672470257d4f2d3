"""Which coordinates may be mixed, between linear maps and nowhere else, and where their vectors stand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.graph import Graph, capture
from bhc.graph.basis import without_norms_numbers
from bhc.graph.spaces import components, find_free, turn_

from ..cases import CASES
from ..nets import net_of, seeded
from ..test_taken import TAKEN

TOKENS = (2, 5, 6)  # examples, tokens, channels


def sizes(graph: Graph, *shape: int) -> list[int]:
    """Of what may be turned."""
    return sorted(space.size for space in find_free(without_norms_numbers(graph, shape), shape))


def net(forward: Callable[[Any, Tensor], Tensor], **more: Any) -> nn.Module:
    """``one`` writes six coordinates, ``two`` others; ``end`` reads six."""
    torch.manual_seed(0)
    layers = {name: nn.Linear(6, 6) for name in ("one", "two")}
    return net_of(forward, **layers, end=nn.Linear(6, 2), **more).eval()


def halves(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.cat([change(x[..., :3]), x[..., 3:]], -1)


# What stands between two linear layers with six coordinates, and which spaces are left.
BETWEEN: dict[str, tuple[Callable[[Tensor], Tensor], list[int]]] = {
    "nothing": (lambda x: x, [6]),
    "a factor": (lambda x: 3 * x / 2, [6]),
    "a sign": (lambda x: -x, [6]),
    "a factor for each token": (lambda x: x * torch.arange(1.0, 6.0)[:, None], [6]),
    "a factor that depends on the token": (lambda x: x * x.square().sum(-1, keepdim=True), [6]),
    "a length taken off": (lambda x: F.normalize(x, dim=-1), [6]),
    "tokens in another order": (lambda x: x.flip(1).roll(1, 1), [6]),
    "channels in another order": (lambda x: x.flip(2), [6]),
    "a mean over the tokens": (lambda x: x.mean(1), [6]),
    "a sum over the tokens": (lambda x: x.sum(1, keepdim=True), [6]),
    "a token": (lambda x: x[:, 2], [6]),
    "a sum with a constant for each channel": (lambda x: x + torch.arange(6.0), [6]),
    "a sum with a constant for each place": (lambda x: x + torch.arange(30.0).reshape(5, 6), [6]),
    "a sum with other tokens": (lambda x: x + x.flip(1), [6]),
    "zeros at some tokens": (lambda x: x.masked_fill((torch.arange(5) > 2)[:, None], 0.0), [6]),
    "windows of tokens": (lambda x: x[:, :4].reshape(-1, 2, 2, 6).transpose(1, 2).flatten(1, 2), [6]),
    "heads and back": (lambda x: x.unflatten(-1, (2, 3)).transpose(1, 2).transpose(1, 2).flatten(2), [6]),
    "an activation": (lambda x: x.relu(), []),
    "a square": (lambda x: x.square(), []),
    "a softmax over the channels": (lambda x: x.softmax(-1), []),
    "a mean over the channels": (lambda x: x - x.mean(-1, keepdim=True), []),
    "a sum with one number": (lambda x: x + 1.5, []),
    "a sum with channels in another order": (lambda x: x + x.roll(1, 2), []),
    "another factor for each channel": (lambda x: x * torch.arange(1.0, 31.0).reshape(5, 6), []),
    "a length over half of the channels": (
        lambda x: torch.cat([F.normalize(x[..., :3], dim=-1), x[..., 3:]], -1),
        [3, 3],
    ),
    "half of the channels from the token before": (halves(lambda x: x.roll(1, 1)), [3, 3]),
    "half of the channels changed": (halves(torch.relu), [3]),
    "half of the channels times a factor, half over it": (
        lambda x: torch.cat([x[..., :3] * (g := x.new_ones(1).cumsum(0) + 1), x[..., 3:] / g], -1),
        [3, 3],
    ),
    "a product with values, token by token, that is summed": (
        lambda x: (x[:, None] * torch.arange(25.0).reshape(5, 5, 1)).sum(2),
        [6],
    ),
    "half of the channels times a number": (halves(lambda x: 2 * x), [3, 3]),
    "half of the channels and a constant": (halves(lambda x: x + torch.arange(3.0)), [3, 3]),
    "numbers of all tokens shifted by half a vector": (lambda x: x.flatten(1).roll(3, 1).reshape(-1, 5, 6), [3, 3]),
    "channels taken for tokens": (lambda x: x.flatten(1).reshape(-1, 6, 5).mT, []),
    "zeros in the place of some": (lambda x: F.pad(x[..., :4], (0, 2)), [4]),
}


@torch.no_grad()
@pytest.mark.parametrize("name", BETWEEN)
def test_what_may_stand_between_two_linear_layers(name):
    between, expected = BETWEEN[name]
    made, x = net(lambda net, x: net.end(between(net.one(x))).flatten(1)), seeded(*TOKENS)
    graph = capture(made, x)
    assert sizes(graph, *x.shape[1:]) == expected
    other = seeded(64, *TOKENS[1:])
    turned = bhc.PrincipalAxes(other).turned(graph, x, tuple(x.shape[1:]))
    torch.testing.assert_close(turned(other), made(other), rtol=1e-4, atol=1e-5)
    assert torch.equal(turned.get_submodule("one").weight, made.one.weight) is not bool(expected)


WEIGHTS = seeded(5, 5)

# Networks that are no chain.
WIRED: dict[str, tuple[Callable[[Any, Tensor], Tensor], list[int]]] = {
    "two layers that are added": (lambda net, x: net.end(net.one(x) + net.two(x)), [6]),
    "two layers that are multiplied": (lambda net, x: net.end(net.one(x) * net.two(x)), []),
    "a gate": (lambda net, x: net.end(net.one(x) * net.two(x).sigmoid()), []),
    "a shortcut": (lambda net, x: net.end(net.two(net.one(x).relu()) + net.one(x)), []),
    "a sum with the input": (lambda net, x: net.end(net.one(x) + x), []),
    "what is read and given too": (lambda net, x: torch.cat([net.end(y := net.one(x)), y], -1), []),
    "what is read twice": (lambda net, x: net.end((y := net.one(x)).flip(1)) + net.end_two(y.relu()), []),
    "side by side": (lambda net, x: net.wide(torch.cat([net.one(x), net.two(x)], -1)), [6, 6]),
    "a value beside itself": (lambda net, x: net.wide(torch.cat([y := net.one(x), y], -1)), []),
    "products of tokens with tokens": (lambda net, x: net.one(x) @ net.two(x).mT, [6]),
    "products of tokens with themselves": (lambda net, x: (y := net.one(x)) @ y.mT, [6]),
    "products of channels with channels": (lambda net, x: net.one(x).mT @ net.two(x), []),
    "a weight that two layers share": (
        lambda net, x: net.end(F.linear(F.linear(x, net.one.weight), net.one.weight)),
        [],
    ),
    "products by letters": (lambda net, x: torch.einsum("btc,bsc->bst", net.one(x), net.two(x)), [6]),
    "heads by letters, last": (
        lambda net, x: torch.einsum("bthc,bshc->bhts", *[y.unflatten(-1, (2, 3)) for y in (net.one(x), net.two(x))]),
        [3, 3],
    ),
    "tokens weighed by letters": (lambda net, x: net.end(torch.einsum("st,btc->bsc", WEIGHTS, net.one(x))), [6]),
    "letters that are summed in one value": (lambda net, x: torch.einsum("btc,bsd->bts", net.one(x), net.two(x)), []),
    "squares beside others": (
        lambda net, x: torch.cat([net.one(x).square(), net.two(x)], -1).sum(-1),
        [],
    ),
    "squares beside squares": (
        lambda net, x: torch.cat([net.one(x).square(), net.two(x).square()], -1).sum(-1),
        [6, 6],
    ),
    "batches of matrices": (lambda net, x: torch.bmm(net.one(x), net.two(x).mT), [6]),
    "tokens weighed from the right": (lambda net, x: net.end((net.one(x).mT @ WEIGHTS).mT), [6]),
    "channels weighed": (lambda net, x: net.end(net.one(x) @ torch.ones(6, 6).tril()), [6]),
    "numbers that are learned, as questions": (lambda net, x: net.one(x) @ net.asked.mT, [6]),
    "a mask that is computed": (
        lambda net, x: net.end(F.scaled_dot_product_attention(x, x, x, attn_mask=net.one(x)[..., :5])),
        [],
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", WIRED)
def test_what_may_be_turned_in_other_networks(name):
    forward, expected = WIRED[name]
    more = {"wide": nn.Linear(12, 2), "end_two": nn.Linear(6, 2), "asked": nn.Parameter(seeded(3, 6))}
    made, x = net(forward, **more), seeded(*TOKENS)
    graph = capture(made, x)
    assert sizes(graph, *x.shape[1:]) == expected
    other = seeded(64, *TOKENS[1:])
    turned = bhc.PrincipalAxes(other).turned(graph, x, tuple(x.shape[1:]))
    torch.testing.assert_close(turned(other), made(other), rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.long
@pytest.mark.parametrize("name", TAKEN)
def test_every_network_that_is_taken_computes_the_same(name):
    build, shape = CASES[name]
    x = seeded(16, *shape[1:])
    graph = capture(build(), seeded(*shape))
    turned = bhc.PrincipalAxes(x).turned(graph, x, tuple(shape[1:]))
    torch.testing.assert_close(turned(x), graph(x), rtol=1e-4, atol=1e-4)


def slowly(count: int, links: Tensor) -> list[int]:
    """The smallest number that each leads to, by looking again and again."""
    smallest = list(range(count))
    for _ in range(count):
        for left, right in links.T.tolist():
            smallest[left] = smallest[right] = min(smallest[left], smallest[right])
    return smallest


@pytest.mark.parametrize("links", [0, 5, 20, 60])
@pytest.mark.parametrize("seed", range(5))
def test_components_are_those_that_links_lead_to(links, seed):
    drawn = torch.randint(0, 40, (2, links), generator=torch.Generator().manual_seed(seed))
    assert components(40, drawn).tolist() == slowly(40, drawn)


def test_a_long_chain_is_one_component():
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert not components(1000, torch.stack([order[:-1], order[1:]])).any()


@torch.no_grad()
def test_ends_are_in_one_order():
    """Zeros in the place of one coordinate are the same where it is written as where it is read."""
    torch.manual_seed(0)
    net = net_of(
        lambda net, x: net.end((net.one(x).flip(-1) + net.two(x).roll(2, -1) + torch.arange(6.0)).flip(1)).flatten(1),
        one=nn.Linear(6, 6),
        two=nn.Linear(6, 6),
        end=nn.Linear(6, 3),
    )
    x = seeded(2, 5, 6)

    def without(coordinate: int, *, reads: bool) -> Tensor:
        graph = capture(net, x)
        (space,) = find_free(graph, (5, 6))
        mask = torch.ones(6, dtype=torch.float64).index_fill(0, torch.tensor([coordinate]), 0.0)
        for end in space.ends:
            if end.reads == reads:
                turn_(graph, end, mask.diag())
        return graph(x)

    given = [(without(each, reads=False), without(each, reads=True)) for each in range(6)]
    for written, read in given:
        torch.testing.assert_close(written, read)
    assert not torch.allclose(given[0][0], given[1][0])
