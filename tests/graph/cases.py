"""Networks as people write them, and as they should not: which are taken and which refused is for the tests to say."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .nets import FLAT, MAPS, ends, maps_of, net_of, seeded, sequential


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


def counts(net: Any, x: Tensor) -> Tensor:
    net.calls += 1
    x = net.first(x)
    return net.end(x) if net.calls == 1 else net.end(x.relu())


def dynamic(net: Any, x: Tensor) -> Tensor:
    """Kernels that depend on the input."""
    kernels = net.kernels(x.mean((2, 3))).reshape(-1, 4, 1, 1)
    x = net.first(x)
    together = x.reshape(1, -1, *x.shape[2:])
    return ends(net, F.conv2d(together, kernels, groups=x.shape[0]).reshape(x.shape))


def adds_into_what_is_read_again(net: Any, x: Tensor) -> Tensor:
    x = net.a(x)
    y = x
    x += net.b(x)
    return ends(net, x * y)


def ignores_what_it_wrote(net: Any, x: Tensor) -> Tensor:
    x = net.a(x)
    F.relu(x, inplace=True)
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


def _second_input(net: Any, x: Tensor, y: Tensor = torch.zeros(1, 4)) -> Tensor:  # noqa: B008
    return net.end(net.first(x) + y)


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


# How to build it, and the shape of its input.
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "weights that depend on the input": (
        lambda: net_of(dynamic, first=nn.Conv2d(3, 4, 3), kernels=nn.Linear(3, 16), end=nn.Linear(4, 2)),
        MAPS,
    ),
    "a branch on values": (lambda: net_of(lambda net, x: net.end(x) if x.sum() > 0 else net.end(net.first(x))), FLAT),
    "a loop over the batch": (lambda: net_of(lambda net, x: torch.stack([net.end(net.first(row)) for row in x])), FLAT),
    "the length of a batch": (lambda: net_of(lambda net, x: net.end(net.first(x).reshape(len(x), 4))), FLAT),
    "a number taken out": (lambda: net_of(lambda net, x: net.end(net.first(x) * float(x.max()))), FLAT),
    "a layer called twice": (lambda: net_of(lambda net, x: net.end(net.first(net.first(x)))), FLAT),
    "a shared weight": (shared, FLAT),
    "two heads of one layer": (lambda: net_of(lambda net, x: net.end(x) + net.end(net.first(x))), FLAT),
    "an in-place activation of what is read again": (inplace_net, MAPS),
    "an in-place sum into what is read again": (lambda: maps_of(adds_into_what_is_read_again), MAPS),
    "an unknown in-place method": (lambda: net_of(lambda net, x: net.end(net.first(x).clamp_(0))), FLAT),
    "an in-place function whose result is ignored": (lambda: maps_of(ignores_what_it_wrote), MAPS),
    "an assignment to some channels": (lambda: maps_of(writes_into_places), MAPS),
    "a layer that is not used": (lambda: net_of(lambda net, x: net.end(x)), FLAT),
    "a result that nobody reads": (lambda: net_of(lambda net, x: (net.first(x), net.end(x))[1]), FLAT),
    "numbers of no layer": (
        lambda: net_of(lambda net, x: net.end(x * net.scale), scale=nn.Parameter(torch.ones(4)), end=nn.Linear(4, 2)),
        FLAT,
    ),
    "a weight used by a function": (lambda: net_of(lambda net, x: net.end(F.linear(x, net.first.weight))), FLAT),
    "a state kept between calls": (lambda: net_of(counts, calls=0, first=nn.Linear(4, 4), end=nn.Linear(4, 2)), FLAT),
    "a mean of its own": (Remembering, FLAT),
    "dropout that is always on": (lambda: net_of(lambda net, x: net.end(F.dropout(net.first(x), 0.5))), FLAT),
    "noise": (lambda: net_of(lambda net, x: net.end(net.first(x) + torch.randn(2, 4))), FLAT),
    "noise like a value": (lambda: net_of(lambda net, x: net.end(net.first(x) + torch.randn_like(x))), FLAT),
    "a batch of one size": (lambda: net_of(lambda net, x: net.end(net.first(x).view(3, 4))), (3, 4)),
    "two inputs": (lambda: net_of(lambda net, x, y: net.end(net.first(x) + y)), FLAT),
    "two inputs, one with a default": (lambda: net_of(_second_input), FLAT),
    "a tuple": (lambda: net_of(lambda net, x: (net.end(net.first(x)),)), FLAT),
    "a dict": (lambda: net_of(lambda net, x: {"logits": net.end(net.first(x))}), FLAT),
    "an LSTM": (
        lambda: net_of(
            lambda net, x: net.end(net.lstm(x)[0].mean(1)), lstm=nn.LSTM(8, 4, batch_first=True), end=nn.Linear(4, 2)
        ),
        (2, 3, 8),
    ),
    "a GRU of two layers in both directions, time first": (
        lambda: net_of(
            lambda net, x: net.end(net.gru(x.transpose(0, 1))[0].mean(0)),
            gru=nn.GRU(5, 6, 2, bidirectional=True),
            end=nn.Linear(12, 2),
        ),
        (2, 4, 5),
    ),
    "the last states of a recurrent layer beside all of its outputs": (
        lambda: net_of(
            lambda net, x: (lambda steps, state: net.end(steps.amax(1) + state[-1]))(*net.rnn(x)),
            rnn=nn.RNN(5, 8, 2, nonlinearity="relu", batch_first=True),
            end=nn.Linear(8, 2),
        ),
        (2, 4, 5),
    ),
    "a state that is carried over": (
        lambda: net_of(
            lambda net, x: net.end(net.second(x, net.first(x)[1])[0][:, -1]),
            first=nn.GRU(5, 6, batch_first=True),
            second=nn.GRU(5, 6, batch_first=True),
            end=nn.Linear(6, 2),
        ),
        (2, 4, 5),
    ),
    "a bilinear layer": (
        lambda: net_of(lambda net, x: net.end(net.first(x, x)), first=nn.Bilinear(4, 4, 4), end=nn.Linear(4, 2)),
        FLAT,
    ),
    "a fold": (
        lambda: sequential(nn.Linear(4, 12), nn.Unflatten(1, (12, 1)), nn.Fold((2, 2), (2, 2)), nn.Flatten()),
        FLAT,
    ),
    "a transposed convolution": (lambda: run_once(pooled(nn.ConvTranspose2d(4, 4, 3))), MAPS),
    "an unknown activation": (lambda: sequential(nn.Linear(4, 4), nn.Sequential(nn.Mish()), nn.Linear(4, 2)), FLAT),
    "an unknown function": (lambda: net_of(lambda net, x: net.end(F.softsign(net.first(x)))), FLAT),
    "a softmax at the end": (lambda: sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Softmax(1)), FLAT),
    "a group norm": (lambda: run_once(pooled(nn.GroupNorm(2, 4))), MAPS),
    "a lazy layer that was not run": (lambda: sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2)), FLAT),
    "a quantised network": (quantised, FLAT),
    "a batch norm without statistics": (
        lambda: sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)),
        FLAT,
    ),
    "circular padding": (lambda: run_once(pooled(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"))), MAPS),
    "a pool that rounds up": (lambda: run_once(pooled(nn.MaxPool2d(4, ceil_mode=True))), MAPS),
    "an average that rounds up": (lambda: run_once(pooled(nn.AvgPool2d(4, ceil_mode=True))), MAPS),
    "an average without the padding": (
        lambda: run_once(pooled(nn.AvgPool2d(2, padding=1, count_include_pad=False))),
        MAPS,
    ),
    "an average with a divisor": (lambda: run_once(pooled(nn.AvgPool2d(2, divisor_override=3))), MAPS),
    "a pool to many places": (lambda: run_once(pooled(nn.AdaptiveAvgPool2d(2))), MAPS),
    "a pool to the largest": (lambda: run_once(pooled(nn.AdaptiveMaxPool2d(1))), MAPS),
    "values side by side in another direction": (
        lambda: maps_of(lambda net, x: (lambda y: ends(net, torch.cat([y, net.b(y)], 2)))(net.a(x))),
        MAPS,
    ),
    "a mean over the channels": (lambda: maps_of(lambda net, x: net.end(net.b(net.a(x)).mean(1).mean(1)[:, :4])), MAPS),
    "a mean over some places": (lambda: maps_of(lambda net, x: ends(net, net.b(net.a(x)).mean(3, keepdim=True))), MAPS),
    "a constant added": (lambda: net_of(lambda net, x: net.end(net.first(x) + 1)), FLAT),
    "a constant factor": (lambda: net_of(lambda net, x: net.end(2 * net.first(x))), FLAT),
    "a sum with a factor": (lambda: net_of(lambda net, x: net.end(torch.add(x, net.first(x), alpha=2))), FLAT),
    "a difference": (lambda: net_of(lambda net, x: net.end(x - net.first(x))), FLAT),
    "values of different shapes": (
        lambda: maps_of(lambda net, x: (lambda y: ends(net, y + F.adaptive_avg_pool2d(net.b(y), 1)))(net.a(x))),
        MAPS,
    ),
    "one channel for many": (
        lambda: net_of(
            lambda net, x: ends(net, net.a(x) * net.b(x)),
            a=nn.Conv2d(3, 4, 1),
            b=nn.Conv2d(3, 1, 1),
            end=nn.Linear(4, 2),
        ),
        MAPS,
    ),
    "some of the channels": (
        lambda: maps_of(lambda net, x: net.end(net.b(net.a(x)).mean((2, 3))[:, :2].repeat(1, 2))),
        MAPS,
    ),
    "a piece of the channels": (
        lambda: maps_of(lambda net, x: ends(net, torch.chunk(net.b(net.a(x)), 2, 1)[0].repeat(1, 2, 1, 1))),
        MAPS,
    ),
    "a step of two strides": (lambda: maps_of(lambda net, x: ends(net, net.b(net.a(x))[:, :, ::2, ::3])), MAPS),
    "some of the places": (lambda: maps_of(lambda net, x: ends(net, net.b(net.a(x))[:, :, 1:, 1:])), MAPS),
    "padded places": (lambda: maps_of(lambda net, x: ends(net, net.b(F.pad(net.a(x), (1, 1, 1, 1))))), MAPS),
    "channels in another order": (lambda: maps_of(lambda net, x: ends(net, net.b(net.a(x)).transpose(2, 3))), MAPS),
    "a shape that is not flat": (lambda: maps_of(lambda net, x: ends(net, net.b(net.a(x)).view(2, 4, 16, 4))), MAPS),
    "a batch flattened too": (lambda: net_of(lambda net, x: net.end(torch.flatten(net.first(x)).view(-1, 4))), FLAT),
    "a value beside itself": (
        lambda: net_of(
            lambda net, x: (lambda y: net.end(torch.cat([y, y], 1)))(net.first(x)),
            first=nn.Linear(4, 4),
            end=nn.Linear(8, 2),
        ),
        FLAT,
    ),
    # Near relatives of what is refused.
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
