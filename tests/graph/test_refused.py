"""Networks that are refused, each with the layer or step by name and a hint."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.errors import BhcError
from bhc.graph import trace

from .nets import FLAT, MAPS, ends, maps_of, net_of, seeded, sequential


class Weighted(nn.Module):
    """Numbers that belong to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.end = nn.Parameter(torch.ones(4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(x * self.scale)


class Counting(nn.Module):
    """A state kept between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.end, self.calls = nn.Linear(4, 4), nn.Linear(4, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.first(x)
        return self.end(x) if self.calls == 1 else self.end(x.relu())


class Remembering(nn.Module):
    """A running mean of its own."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.end = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.seen = 0.9 * self.seen + 0.1 * x.mean(0)
        return self.end(x - self.seen)


def adds_into_what_is_read_again(net: Any, x: Tensor) -> Tensor:
    x = net.a(x)
    y = x
    x += net.b(x)
    return ends(net, x * y)


def ignores_what_it_wrote(net: Any, x: Tensor) -> Tensor:
    x = net.a(x)
    F.relu(x, inplace=True)
    return ends(net, net.b(x))


def ignores_a_method(net: Any, x: Tensor) -> Tensor:
    x = net.a(x)
    x.relu_()
    return ends(net, net.b(x))


def writes_into_places(net: Any, x: Tensor) -> Tensor:
    x = net.a(x)
    x[:, 0] = 0.0
    return ends(net, net.b(x))


def inplace_relu(net: Any, x: Tensor) -> Tensor:
    x = net.a(x)
    return ends(net, net.b(net.relu(x)) + x)


def inplace_net() -> nn.Module:
    net = maps_of(inplace_relu)
    net.relu = nn.ReLU(inplace=True)
    return net


def pooled(module: nn.Module) -> nn.Module:
    return sequential(nn.Conv2d(3, 4, 3), module, nn.Flatten(), nn.LazyLinear(2))


def run_once(net: nn.Module, shape: tuple[int, ...] = MAPS) -> nn.Module:
    net.eval()(seeded(*shape))
    return net


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))


def shared() -> nn.Module:
    """Two layers with one weight."""
    net: Any = net_of(
        lambda net, x: net.end(net.second(net.first(x).relu())),
        first=nn.Linear(4, 4),
        second=nn.Linear(4, 4),
        end=nn.Linear(4, 2),
    )
    net.second.weight = net.first.weight
    return net


# What is refused: how to build it, the shape of its input, and words that the message has.
REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[str, ...]]] = {
    "a branch on values": (
        lambda: net_of(lambda net, x: net.end(x) if x.sum() > 0 else net.end(net.first(x))),
        FLAT,
        ("could not trace Net",),
    ),
    "a loop over the batch": (
        lambda: net_of(lambda net, x: torch.stack([net.end(net.first(row)) for row in x])),
        FLAT,
        ("could not trace Net",),
    ),
    "the length of a batch": (
        lambda: net_of(lambda net, x: net.end(net.first(x).reshape(len(x), 4))),
        FLAT,
        ("could not trace Net", "len"),
    ),
    "a number taken out": (
        lambda: net_of(lambda net, x: net.end(net.first(x) * float(x.max()))),
        FLAT,
        ("could not trace Net",),
    ),
    "a layer called twice": (
        lambda: net_of(lambda net, x: net.end(net.first(net.first(x)))),
        FLAT,
        ("layer 'first' is used twice",),
    ),
    "a shared weight": (shared, FLAT, ("'first.weight' and 'second.weight' are the same numbers",)),
    "two heads of one layer": (
        lambda: net_of(lambda net, x: net.end(x) + net.end(net.first(x))),
        FLAT,
        ("layer 'end' is used twice",),
    ),
    "an in-place activation of what is read again": (inplace_net, MAPS, ("layer 'relu' writes into a value",)),
    "an in-place sum into what is read again": (
        lambda: maps_of(adds_into_what_is_read_again),
        MAPS,
        ("step 'iadd' writes into a value",),
    ),
    "an unknown in-place method": (
        lambda: net_of(lambda net, x: net.end(net.first(x).clamp_(0))),
        FLAT,
        ("step 'clamp_' calls clamp_",),
    ),
    "an in-place function whose result is ignored": (
        lambda: maps_of(ignores_what_it_wrote),
        MAPS,
        ("step 'relu' writes into a value",),
    ),
    "an in-place method whose result is ignored": (
        lambda: maps_of(ignores_a_method),
        MAPS,
        ("step 'relu_' writes into a value",),
    ),
    "an assignment to some channels": (lambda: maps_of(writes_into_places), MAPS, ("could not trace Net",)),
    "a layer that is not used": (
        lambda: net_of(lambda net, x: net.end(x)),
        FLAT,
        ("layer 'first' is never used",),
    ),
    "a result that nobody reads": (
        lambda: net_of(lambda net, x: (net.first(x), net.end(x))[1]),
        FLAT,
        ("layer 'first' is never used",),
    ),
    "numbers of no layer": (Weighted, FLAT, ("step 'mul' uses 'scale' directly",)),
    "a weight used by a function": (
        lambda: net_of(lambda net, x: net.end(F.linear(x, net.first.weight))),
        FLAT,
        ("'first.weight'", "used directly"),
    ),
    "a state kept between calls": (Counting, FLAT, ("does not compute what Counting computes",)),
    "a mean of its own": (Remembering, FLAT, ("step 'mean'",)),
    "dropout that is always on": (
        lambda: net_of(lambda net, x: net.end(F.dropout(net.first(x), 0.5))),
        FLAT,
        ("step 'dropout'", "also when the network is used"),
    ),
    "noise": (
        lambda: net_of(lambda net, x: net.end(net.first(x) + torch.randn(2, 4))),
        FLAT,
        ("step 'add'", "of another shape, (2, 4)"),
    ),
    "noise like a value": (
        lambda: net_of(lambda net, x: net.end(net.first(x) + torch.randn_like(x))),
        FLAT,
        ("step 'randn_like' calls randn_like",),
    ),
    "a batch of one size": (
        lambda: net_of(lambda net, x: net.end(net.first(x).view(3, 4))),
        (3, 4),
        ("does not run on two examples at once",),
    ),
    "two inputs": (
        lambda: net_of(lambda net, x, y: net.end(net.first(x) + y)),
        FLAT,
        ("does not run", "missing 1 required positional argument"),
    ),
    "two inputs, one with a default": (
        lambda: net_of(_second_input),
        FLAT,
        ("takes more than one input: x, y",),
    ),
    "a tuple": (lambda: net_of(lambda net, x: (net.end(net.first(x)),)), FLAT, ("returns a tuple",)),
    "a dict": (lambda: net_of(lambda net, x: {"logits": net.end(net.first(x))}), FLAT, ("returns a dict",)),
    "an LSTM": (
        lambda: net_of(
            lambda net, x: net.end(net.lstm(x)[0].mean(1)), lstm=nn.LSTM(8, 4, batch_first=True), end=nn.Linear(4, 2)
        ),
        (2, 3, 8),
        ("layer 'lstm', which is a LSTM",),
    ),
    "a bilinear layer": (
        lambda: net_of(lambda net, x: net.end(net.first(x, x)), first=nn.Bilinear(4, 4, 4), end=nn.Linear(4, 2)),
        FLAT,
        ("layer 'first' is a Bilinear that is called with more than one argument",),
    ),
    "a fold": (
        lambda: sequential(nn.Linear(4, 12), nn.Unflatten(1, (12, 1)), nn.Fold((2, 2), (2, 2)), nn.Flatten()),
        FLAT,
        ("layer '1' is a Unflatten",),
    ),
    "a transposed convolution": (
        lambda: run_once(pooled(nn.ConvTranspose2d(4, 4, 3))),
        MAPS,
        ("layer '1' is a ConvTranspose2d",),
    ),
    "an unknown activation": (
        lambda: sequential(nn.Linear(4, 4), nn.Sequential(nn.Mish()), nn.Linear(4, 2)),
        FLAT,
        ("layer '1.0' is a Mish",),
    ),
    "an unknown function": (
        lambda: net_of(lambda net, x: net.end(F.softsign(net.first(x)))),
        FLAT,
        ("step 'softsign'",),
    ),
    "a softmax at the end": (
        lambda: sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Softmax(1)),
        FLAT,
        ("layer '3' is a Softmax",),
    ),
    "a group norm": (
        lambda: run_once(pooled(nn.GroupNorm(2, 4))),
        MAPS,
        ("layer '1' is a GroupNorm",),
    ),
    "a lazy layer that was not run": (
        lambda: sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2)),
        FLAT,
        ("'0.weight' has no size yet",),
    ),
    "a quantised network": (quantised, FLAT, ("layer '0' is a torch.ao.nn.quantized.dynamic",)),
    "a batch norm without statistics": (
        lambda: sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)),
        FLAT,
        ("layer '1' is a BatchNorm1d without running statistics",),
    ),
    "circular padding": (
        lambda: run_once(pooled(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"))),
        MAPS,
        ("layer '1' is a Conv2d with padding_mode='circular'",),
    ),
    "a pool that rounds up": (
        lambda: run_once(pooled(nn.MaxPool2d(4, ceil_mode=True))),
        MAPS,
        ("layer '1' is a MaxPool2d with ceil_mode",),
    ),
    "an average that rounds up": (
        lambda: run_once(pooled(nn.AvgPool2d(4, ceil_mode=True))),
        MAPS,
        ("layer '1' is an AvgPool2d with ceil_mode",),
    ),
    "an average without the padding": (
        lambda: run_once(pooled(nn.AvgPool2d(2, padding=1, count_include_pad=False))),
        MAPS,
        ("layer '1' is an AvgPool2d",),
    ),
    "an average with a divisor": (
        lambda: run_once(pooled(nn.AvgPool2d(2, divisor_override=3))),
        MAPS,
        ("layer '1' is an AvgPool2d",),
    ),
    "a functional pool that rounds up": (
        lambda: maps_of(lambda net, x: ends(net, F.max_pool2d(net.b(net.a(x)), 3, ceil_mode=True))),
        MAPS,
        ("step 'max_pool2d'", "ceil_mode"),
    ),
    "a pool to many places": (
        lambda: run_once(pooled(nn.AdaptiveAvgPool2d(2))),
        MAPS,
        ("layer '1' is a AdaptiveAvgPool2d to 2 places",),
    ),
    "a functional pool to many places": (
        lambda: maps_of(lambda net, x: ends(net, F.adaptive_avg_pool2d(net.b(net.a(x)), 2))),
        MAPS,
        ("step 'adaptive_avg_pool2d'", "[2]"),
    ),
    "a pool to the largest": (
        lambda: run_once(pooled(nn.AdaptiveMaxPool2d(1))),
        MAPS,
        ("layer '1' is a AdaptiveMaxPool2d",),
    ),
    "values side by side in another direction": (
        lambda: maps_of(lambda net, x: (lambda y: ends(net, torch.cat([y, net.b(y)], 2)))(net.a(x))),
        MAPS,
        ("step 'cat'", "dimension 2"),
    ),
    "a mean over the channels": (
        lambda: maps_of(lambda net, x: net.end(net.b(net.a(x)).mean(1).mean(1)[:, :4])),
        MAPS,
        ("step 'mean'", "[1]"),
    ),
    "a mean over some places": (
        lambda: maps_of(lambda net, x: ends(net, net.b(net.a(x)).mean(3, keepdim=True))),
        MAPS,
        ("step 'mean'", "[3]"),
    ),
    "a constant added": (
        lambda: net_of(lambda net, x: net.end(net.first(x) + 1)),
        FLAT,
        ("step 'add'", "addition"),
    ),
    "a constant factor": (
        lambda: net_of(lambda net, x: net.end(2 * net.first(x))),
        FLAT,
        ("step 'mul'", "multiplication"),
    ),
    "a sum with a factor": (
        lambda: net_of(lambda net, x: net.end(torch.add(x, net.first(x), alpha=2))),
        FLAT,
        ("step 'add'", "addition"),
    ),
    "a difference": (
        lambda: net_of(lambda net, x: net.end(x - net.first(x))),
        FLAT,
        ("step 'sub' calls sub",),
    ),
    "values of different shapes": (
        lambda: maps_of(lambda net, x: (lambda y: ends(net, y + F.adaptive_avg_pool2d(net.b(y), 1)))(net.a(x))),
        MAPS,
        ("step 'add' joins values of shapes (4, 8, 8) and (4, 1, 1)",),
    ),
    "one channel for many": (
        lambda: net_of(
            lambda net, x: ends(net, net.a(x) * net.b(x)),
            a=nn.Conv2d(3, 4, 1),
            b=nn.Conv2d(3, 1, 1),
            end=nn.Linear(4, 2),
        ),
        MAPS,
        ("step 'mul' joins values of shapes (4, 8, 8) and (1, 8, 8)",),
    ),
    "some of the channels": (
        lambda: maps_of(lambda net, x: net.end(net.b(net.a(x)).mean((2, 3))[:, :2].repeat(1, 2))),
        MAPS,
        ("step 'getitem' picks",),
    ),
    "a piece of the channels": (
        lambda: maps_of(lambda net, x: ends(net, torch.chunk(net.b(net.a(x)), 2, 1)[0].repeat(1, 2, 1, 1))),
        MAPS,
        ("step 'getitem' reads 'chunk', which is not one value",),
    ),
    "a step of two strides": (
        lambda: maps_of(lambda net, x: ends(net, net.b(net.a(x))[:, :, ::2, ::3])),
        MAPS,
        ("step 'getitem' picks",),
    ),
    "some of the places": (
        lambda: maps_of(lambda net, x: ends(net, net.b(net.a(x))[:, :, 1:, 1:])),
        MAPS,
        ("step 'getitem' picks",),
    ),
    "padded places": (
        lambda: maps_of(lambda net, x: ends(net, net.b(F.pad(net.a(x), (1, 1, 1, 1))))),
        MAPS,
        ("step 'pad' pads by [1, 1, 1, 1]",),
    ),
    "channels in another order": (
        lambda: maps_of(lambda net, x: ends(net, net.b(net.a(x)).transpose(2, 3))),
        MAPS,
        ("step 'transpose' swaps dimensions 2 and 3",),
    ),
    "a shape that is not flat": (
        lambda: maps_of(lambda net, x: ends(net, net.b(net.a(x)).view(2, 4, 16, 4))),
        MAPS,
        ("step 'view'",),
    ),
    "a batch flattened too": (
        lambda: net_of(lambda net, x: net.end(torch.flatten(net.first(x)).view(-1, 4))),
        FLAT,
        ("step 'flatten'",),
    ),
    "a value beside itself": (
        lambda: net_of(
            lambda net, x: (lambda y: net.end(torch.cat([y, y], 1)))(net.first(x)),
            first=nn.Linear(4, 4),
            end=nn.Linear(8, 2),
        ),
        FLAT,
        ("step 'cat'", "beside itself"),
    ),
}


def _second_input(net: Any, x: Tensor, y: Tensor = torch.zeros(1, 4)) -> Tensor:  # noqa: B008
    return net.end(net.first(x) + y)


def refusal(net: nn.Module, example: Any) -> BhcError:
    with pytest.raises(BhcError) as caught:
        trace(net, example)
    return caught.value


@pytest.mark.parametrize(("build", "shape", "words"), REFUSED.values(), ids=REFUSED)
def test_is_refused_by_name_with_a_hint(
    build: Callable[[], nn.Module], shape: tuple[int, ...], words: tuple[str, ...]
) -> None:
    error = refusal(build(), seeded(*shape))
    assert all(word in error.problem for word in words), error.problem
    assert error.hint


@pytest.mark.parametrize(
    "example",
    [
        torch.zeros(2, 5),
        torch.zeros(2, 4, dtype=torch.long),
        torch.zeros(2, 4, dtype=torch.float64),
        torch.zeros(2, 3, 8, 8),
        [[0.0] * 4],
    ],
    ids=["shape", "whole numbers", "precision", "maps", "list"],
)
def test_an_example_that_the_network_does_not_take_is_refused(example: Any) -> None:
    error = refusal(net_of(lambda net, x: net.end(net.first(x))), example)
    assert "does not run on the example input" in error.problem
    assert error.hint is not None
    assert "example_input" in error.hint


@pytest.mark.parametrize(
    ("net", "shape", "words"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), MAPS, "values of shape (4, 6, 6), and not one number a class"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), MAPS, "not one number a class"),
        (net_of(lambda net, x: x + net.first(x), first=nn.Linear(4, 4)), FLAT, "not one number a class"),
        (nn.Sequential(nn.Flatten(), nn.ReLU()), MAPS, "nothing to compress"),
        (nn.Sequential(), MAPS, "nothing to compress"),
    ],
    ids=["maps", "flat maps", "the input itself", "no weights", "no steps"],
)
def test_a_network_that_gives_no_classes_or_has_no_weights_is_not_wrapped(
    net: nn.Module, shape: tuple[int, ...], words: str
) -> None:
    with pytest.raises(BhcError) as caught:
        bhc.wrap(net, bhc.ClassSubsets(4), example_input=seeded(*shape))
    assert words in caught.value.problem
    assert caught.value.hint
