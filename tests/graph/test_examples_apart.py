"""Attention that has its examples and heads along one axis: heads go, as in any other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.formats import QuantisedNetwork, onnx_bytes, open_session, pack, parse_network
from bhc.graph import capture

from .nets import net_of, seeded
from .test_goes import ALL_BUT_FEW, can_go
from .test_taken import cut_in_half, near

TOKENS, HEADS, WIDTH = 5, 2, 8
SHAPE = (3, TOKENS, 6)


def attending(forward: Callable[..., Any], **options: Any) -> nn.Module:
    return net_of(
        forward,
        start=nn.Linear(6, WIDTH),
        attend=nn.MultiheadAttention(WIDTH, HEADS, **options),
        mask=torch.triu(torch.full((TOKENS, TOKENS), -1e9), 1),
        end=nn.Linear(WIDTH, 4),
    )


def batch_first(net: Any, x: Tensor) -> Tensor:
    x = net.start(x)
    return net.end((x + net.attend(x, x, x)[0]).mean(1))


def time_first(net: Any, x: Tensor) -> Tensor:
    x = net.start(x).transpose(0, 1)
    return net.end(net.attend(x, x, x)[0][-1])


def masked(net: Any, x: Tensor) -> Tensor:
    x = net.start(x)
    return net.end(net.attend(x, x, x, attn_mask=net.mask)[0][:, 0])


def crossed(net: Any, x: Tensor) -> Tensor:
    """Other queries than keys and values."""
    x = net.start(x)
    return net.end(net.attend(x[:, :2].relu(), x, x)[0].mean(1))


def written_out(net: Any, x: Tensor) -> Tensor:
    """As in the first BART: heads and examples are taken apart for the mask alone."""
    n, t, _ = x.shape

    def heads(h: Tensor) -> Tensor:
        return h.view(n, t, HEADS, -1).transpose(1, 2).contiguous().view(n * HEADS, t, -1)

    query, key, value = heads(net.q(x) * 0.5), heads(net.k(x)), heads(net.v(x))
    scores = torch.bmm(query, key.transpose(1, 2)).view(n, HEADS, t, t) + net.mask
    scores = scores.view(n * HEADS, t, t).softmax(-1)
    mixed = torch.bmm(scores, value).view(n, HEADS, t, -1).transpose(1, 2).reshape(n, t, WIDTH)
    return net.end(net.out(mixed).mean(1))


def written_by_hand() -> nn.Module:
    layers = {name: nn.Linear(6, WIDTH) for name in "qkv"} | {"out": nn.Linear(WIDTH, WIDTH)}
    return net_of(written_out, **layers, mask=torch.triu(torch.full((5, 5), -1e9), 1), end=nn.Linear(WIDTH, 4))


def gated(net: Any, x: Tensor) -> Tensor:
    """Something between that has no rule, and numbers for each place beside."""
    n = x.shape[0]
    h = net.q(x).view(n, TOKENS, HEADS, -1).transpose(1, 2).reshape(n * HEADS, TOKENS, -1)
    h = torch.bmm(h.cumsum(1).flip(1), h.transpose(1, 2)) * net.mask.exp()
    return net.end(h.view(n, HEADS, TOKENS, TOKENS).mean((1, 2)))


def relative(net: Any, x: Tensor) -> Tensor:
    """As in DeBERTa: scores of queries with keys that places have, picked by how far apart two tokens are."""
    n = x.shape[0]

    def heads(h: Tensor) -> Tensor:
        return h.view(h.shape[0], h.shape[1], HEADS, -1).permute(0, 2, 1, 3).contiguous().view(-1, h.shape[1], 4)

    query, key, value = heads(net.q(x)), heads(net.k(x)), heads(net.v(x))
    places = heads(net.places[None]).repeat(n, 1, 1)
    far = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)[None] + TOKENS - 1
    own = torch.bmm(query, places.transpose(-1, -2))
    own = torch.gather(own, -1, far[None].expand(n * HEADS, TOKENS, TOKENS))
    scores = torch.bmm(query, key.transpose(-1, -2)) + own
    mixed = torch.bmm(scores.view(n, HEADS, TOKENS, TOKENS).softmax(-1).view(-1, TOKENS, TOKENS), value)
    return net.end(net.out(mixed.view(n, HEADS, TOKENS, -1).permute(0, 2, 1, 3).reshape(n, TOKENS, -1)).mean(1))


def placed_by_hand() -> nn.Module:
    layers = {name: nn.Linear(6, WIDTH) for name in "qkv"} | {"out": nn.Linear(WIDTH, WIDTH)}
    return net_of(relative, **layers, places=nn.Parameter(seeded(2 * TOKENS - 1, WIDTH)), end=nn.Linear(WIDTH, 4))


NETS: dict[str, Callable[[], nn.Module]] = {
    "examples first": lambda: attending(batch_first, batch_first=True),
    "time first": lambda: attending(time_first),
    "no biases": lambda: attending(batch_first, batch_first=True, bias=False),
    "a mask": lambda: attending(masked, batch_first=True),
    "other queries": lambda: attending(crossed, batch_first=True),
    "written out": written_by_hand,
    "relative places": placed_by_hand,
}


@torch.no_grad()
@pytest.mark.parametrize("name", NETS)
def test_heads_go_and_what_is_left_computes_the_same(name: str) -> None:
    torch.manual_seed(0)
    net, x = NETS[name]().eval(), seeded(*SHAPE)
    assert near(capture(net, seeded(1, *SHAPE[1:]))(x), net(x))
    assert can_go(net, x) > ALL_BUT_FEW
    slim, given, masked, _ = cut_in_half(net, x)
    assert near(given, masked)
    network = QuantisedNetwork(slim, SHAPE[1:], tuple(range(4)), card={"context": {}})
    assert near(parse_network(pack(network), Path("it.bhc")).network.graph(x), given)
    (answer,) = open_session(onnx_bytes(network)).run(None, {"input": x.numpy()})
    assert near(torch.from_numpy(answer), given)


@torch.no_grad()
def test_a_step_without_a_rule_reads_them_together() -> None:
    net = net_of(gated, q=nn.Linear(6, WIDTH), mask=torch.zeros(TOKENS, TOKENS), end=nn.Linear(TOKENS, 4)).eval()
    x = seeded(*SHAPE)
    assert near(capture(net, x)(x), net(x))
    _, given, masked, _ = cut_in_half(net, x)
    assert near(given, masked)


@torch.no_grad()
def test_as_many_tokens_as_there_are() -> None:
    net, x = attending(batch_first, batch_first=True).eval(), seeded(2, 7, 6)
    graph = capture(net, seeded(1, *SHAPE[1:]), dynamic_axes=(1,))
    assert near(graph(x), net(x))


def test_heads_are_found() -> None:
    model = bhc.wrap(attending(batch_first, batch_first=True).eval(), bhc.SingleContext(), example_input=seeded(*SHAPE))
    (heads,) = model.network.units.heads
    assert len(heads.rows) == HEADS
    assert [part.units.shape for part in heads.parts] == [(HEADS, WIDTH // HEADS)] * 2


@torch.no_grad()
def test_what_has_no_product_of_matrices_is_left_alone() -> None:
    """Places of all examples in a row, as some write a layer for each place."""
    net = net_of(lambda n, x: n.end(n.a(x.reshape(-1, 6)).relu().view(-1, TOKENS, 8).mean(1)),
                 a=nn.Linear(6, 8), end=nn.Linear(8, 4)).eval()  # fmt: skip
    assert [step.name for step in capture(net, seeded(*SHAPE)).steps][:2] == ["reshape", "a"]
