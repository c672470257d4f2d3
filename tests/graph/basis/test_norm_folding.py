"""What is left of norms when the layers around have taken in their numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.graph import Graph, capture
from bhc.graph.basis import fold_gains, take_means_off, with_streams_freed, without_norms_numbers
from bhc.graph.spaces import find_free

from ..nets import net_of, seeded
from . import networks as ours
from .test_principal_axes import trained, value_of

TOKENS = (2, 5, 6)  # examples, tokens, channels


def net(forward: Callable[[Any, Tensor], Tensor], **more: Any) -> nn.Module:
    """``one`` and ``two`` write six coordinates, ``norm`` has gains and shifts, ``end`` reads six."""
    torch.manual_seed(0)
    layers = {name: nn.Linear(6, 6) for name in ("one", "two")} | {"end": nn.Linear(6, 2)}
    return trained(net_of(forward, **(layers | {"norm": nn.LayerNorm(6)} | more)))


def numbers_of_norms(graph: Graph) -> int:
    norms = [step.module for step in graph.steps if getattr(step.module, "op", "").endswith("_norm")]
    return sum(numbers.numel() for norm in norms for numbers in norm.parameters())


def operators(graph: Graph) -> list[str]:
    return [getattr(step.module, "op", type(step.module).__name__) for step in graph.steps]


@torch.no_grad()
def assert_same(graph: Graph, made: nn.Module, x: Tensor) -> None:
    torch.testing.assert_close(graph(x), made(x), rtol=1e-4, atol=1e-5)


def pooled(x: Tensor, there: Tensor) -> Tensor:
    return (x * there).sum(1) / there.sum(1)


def first(net: Any, x: Tensor) -> Tensor:
    return net.first.expand(x.shape[0], 1, 6)


# What reads a norm, and whether layers take in all of its numbers.
READ: dict[str, tuple[Callable[[Any, Tensor], Tensor], bool]] = {
    "by a layer": (lambda net, x: net.end(net.norm(net.one(x))).flatten(1), True),
    "by a layer without a bias": (lambda net, x: net.bare(net.norm(x)).flatten(1), True),
    "by two layers": (lambda net, x: (net.end(y := net.norm(x)) * net.bare(y)).flatten(1), True),
    "by one token": (lambda net, x: net.end(net.norm(x)[:, 0]), True),
    "as a mean": (lambda net, x: net.end(net.norm(x).mean(1)), True),
    "in another order": (lambda net, x: net.end(net.norm(x).flip(-1)).flatten(1), True),
    "by a layer that reads all tokens": (lambda net, x: net.wide(net.norm(x).flatten(1)), True),
    "by one half": (lambda net, x: net.three(net.norm(x)[..., :3]).flatten(1), True),
    "two norms side by side": (lambda net, x: net.both(torch.cat([net.norm(x), net.other(x)], -1)).flatten(1), True),
    "an RMS norm": (lambda net, x: net.end(net.rms(x)).flatten(1), True),
    "a norm with a shift alone": (lambda net, x: net.end(net.plain(x)).flatten(1), True),
    "after an activation": (lambda net, x: net.end(net.norm(x).relu()).flatten(1), False),
    "by a shortcut too": (lambda net, x: net.end(net.one(y := net.norm(x)) + y).flatten(1), False),
    "by the network's result too": (lambda net, x: torch.cat([net.end(y := net.norm(x)), y], -1).flatten(1), False),
    "by a norm": (lambda net, x: net.end(net.other(net.norm(x))).flatten(1), False),
    "by other tokens": (lambda net, x: ((y := net.norm(x)) @ y.mT).flatten(1), False),
    "beside a constant": (lambda net, x: net.end(torch.cat([net.norm(x), first(net, x)], 1).mean(1)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_layers_take_in_gains_and_shifts(name):
    forward, expected = READ[name]
    shift_alone = nn.LayerNorm(6, bias=True)
    shift_alone.weight = None
    layers = {"bare": nn.Linear(6, 2, bias=False), "wide": nn.Linear(30, 2), "three": nn.Linear(3, 2)}
    norms = {"other": nn.LayerNorm(6), "rms": nn.RMSNorm(6), "plain": shift_alone}
    made = net(forward, both=nn.Linear(12, 2), first=nn.Parameter(seeded(1, 6)), **layers, **norms)
    x = seeded(*TOKENS)
    folded = fold_gains(capture(made, x), TOKENS[1:])
    assert_same(folded, made, x)
    assert (numbers_of_norms(folded) == 0) is expected


@torch.no_grad()
def test_a_shift_that_no_bias_can_hold_is_added_before_the_gain():
    """A mean over the tokens that are there: whether their weights sum to one, no step can tell."""
    torch.manual_seed(0)

    def forward(net, x):
        return net.end(pooled(net.norm(net.block(net.words(x))), (x != 0).float()[..., None]))

    parts = {"words": nn.Embedding(11, 12), "block": ours.Before(ours.Apart()), "end": nn.Linear(12, 2)}
    made, x = trained(net_of(forward, norm=nn.LayerNorm(12), **parts)), ours.words(200)
    graph = capture(made, x[:2])
    bare = without_norms_numbers(graph, (6,))
    assert numbers_of_norms(bare) == 0
    assert "layer_norm" not in operators(bare)
    assert 12 in [space.size for space in find_free(bare, (6,))]
    assert_same(bhc.PrincipalAxes(x).turned(graph, x, (6,)), made, x)


@pytest.mark.parametrize("layer", [nn.Linear(6, 6), nn.Linear(6, 6, bias=False)])
def test_a_layer_takes_in_the_scale_of_what_it_writes(layer):
    made = net(lambda net, x: net.end(x + net.scale * net.one(x)).flatten(1), one=layer, scale=nn.Parameter(seeded(6)))
    graph = capture(made, seeded(*TOKENS))
    folded = fold_gains(graph, TOKENS[1:])
    assert_same(folded, made, seeded(*TOKENS))
    assert len(folded.steps) == len(graph.steps) - 1


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: net.end((y := net.one(x)) + net.scale * y).flatten(1),
        lambda net, x: (net.long * torch.cat([y := net.one(x), y], -1)).relu().flatten(1),
        lambda net, x: (net.scale * net.one(x).relu()).relu().flatten(1),
    ],
    ids=["read elsewhere", "beside itself", "of no layer"],
)
def test_a_scale_that_no_layer_can_take_in_stays(forward):
    made = net(forward, scale=nn.Parameter(seeded(6)), long=nn.Parameter(seeded(12)))
    graph = capture(made, seeded(*TOKENS))
    folded = fold_gains(graph, TOKENS[1:])
    assert operators(folded) == operators(graph)
    assert_same(folded, made, seeded(*TOKENS))


def stream(net: Any, x: Tensor) -> Tensor:
    y = net.one(x)
    return net.end(net.norm(y + net.two(net.norm(y))))


PLACES = torch.arange(30.0).reshape(5, 6)

# What norms without gains stand on, and whether they become RMS norms.
CENTRED: dict[str, tuple[Callable[[Any, Tensor], Tensor], bool]] = {
    "a stream": (stream, True),
    "a stream with constants": (lambda net, x: net.end(net.norm(net.one(x) + PLACES)), True),
    "the input": (lambda net, x: net.end(net.norm(x)), False),
    "a stream that a layer reads": (lambda net, x: net.end(net.norm(y := net.one(x))) + net.end_two(y), False),
    "a stream with an RMS norm too": (lambda net, x: net.end(net.norm(y := net.one(x)) + net.rms(y)), False),
    "two streams side by side": (lambda net, x: net.wide(net.long(torch.cat([net.one(x), net.two(x)], -1))), False),
    "half of a stream": (lambda net, x: net.three(net.short(net.one(x)[..., :3])), True),
    "each head": (lambda net, x: net.end(net.short(net.one(x).unflatten(-1, (2, 3))).flatten(2)), True),
    "a norm and a constant": (lambda net, x: net.end(net.norm(net.norm(net.one(x)) + PLACES)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CENTRED)
def test_writers_take_the_mean_off(name):
    forward, expected = CENTRED[name]
    norms = {"norm": nn.LayerNorm(6, elementwise_affine=False), "rms": nn.RMSNorm(6, elementwise_affine=False)}
    norms |= {"long": nn.LayerNorm(12, elementwise_affine=False), "short": nn.LayerNorm(3, elementwise_affine=False)}
    made, x = (
        net(forward, wide=nn.Linear(12, 2), three=nn.Linear(3, 2), end_two=nn.Linear(6, 2), **norms),
        seeded(*TOKENS),
    )
    bare = take_means_off(fold_gains(capture(made, x), TOKENS[1:]), TOKENS[1:])
    assert_same(bare, made, x)
    assert ("layer_norm" not in operators(bare)) is expected
    if name == "a stream":
        assert value_of(bare, "two", x).mean(-1).abs().max() < 1e-6


@torch.no_grad()
@pytest.mark.parametrize(
    ("made", "streams", "layers"),
    [
        (lambda: ours.Words(nn.LayerNorm(12), ours.After(ours.Apart()), ours.After(ours.Apart())), 5, 4),
        (
            lambda: ours.Words(ours.After(ours.Apart()), ours.After(ours.Apart())),
            3,
            3,
        ),  # words are read with their mean
        (lambda: ours.Words(ours.Before(ours.Apart()), norm=nn.LayerNorm), 1, 0),
    ],
    ids=["BERT", "BERT without a norm of its words, which are read with their mean", "norms before"],
)
def test_layers_on_shortcuts_free_streams_that_norms_stand_on(made, streams, layers):
    torch.manual_seed(0)
    network, x = trained(made()), ours.words(200)
    graph = capture(network, x[:2])
    freed = with_streams_freed(graph, (6,))
    assert sum(space.orthogonal and space.size == 12 for space in find_free(freed, (6,))) == streams
    assert len(freed.steps) == len(graph.steps) + layers
    turned = bhc.PrincipalAxes(x, shortcuts=True).turned(graph, x, (6,))
    assert_same(turned, network, x)
    model = bhc.wrap(network, bhc.ClassSubsets(5), example_input=x[:2], basis=bhc.PrincipalAxes(x, shortcuts=True))
    small = model.compress(classes=[0, 2], threshold=1e6, quantisation=bhc.Float32())
    torch.testing.assert_close(small.module(x), network(x)[:, [0, 2]], rtol=1e-4, atol=1e-5)
