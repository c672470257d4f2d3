"""Small networks that branch, or have steps that C lacks; with the chains they have every kind of step."""

import torch
from torch import nn

from bhc.graph import INPUT, Graph, Step
from bhc.layers import (
    Add,
    Affine,
    ChannelNorm,
    Concat,
    Embed,
    FlattenPlaces,
    GlobalMean,
    Multiply,
    PadChannels,
    Recurrence,
    ScatterChannels,
    Select,
    SelfAttention,
    Shape,
    Shift,
    Subsample,
    TransposedConvolution,
)
from bhc.models import Normalise

TEXT, WORDS = (11,), 9  # the shape of texts, and how many words there are

NEW_ACTIVATIONS: dict[str, nn.Module] = {
    "sigmoid": nn.Sigmoid(),
    "hard-swish": nn.Hardswish(),
    "hard-sigmoid": nn.Hardsigmoid(),
    "softplus": nn.Softplus(1.0, 20.0),
    "softplus-with-a-low-threshold": nn.Softplus(0.5, 1.5),
}


def wired(*steps: tuple[object, ...]) -> Graph:
    """Steps as (name, module, the names of what it reads ...); one that names none reads the step before."""
    built: list[Step] = []
    for name, module, *reads in steps:
        before = built[-1].name if built else INPUT
        assert isinstance(module, nn.Module)
        built.append(Step(str(name), module, tuple(map(str, reads or [before]))))
    return Graph(built)


def in_a_row(*modules: nn.Module) -> Graph:
    """A chain whose steps are called by their numbers."""
    return chain_of(nn.Sequential(*modules))


def chain_of(net: nn.Module) -> Graph:
    """The chain that a sequential network is."""
    return Graph.chain(net.named_children())


def flat(activation: nn.Module) -> Graph:
    return wired(("fc1", nn.Linear(5, 8)), ("act", activation), ("fc2", nn.Linear(8, 3)))


def headed(features: int, *body: tuple[object, ...]) -> Graph:
    """Steps on places, then a linear layer that reads the means of the channels."""
    return wired(*body, ("mean", GlobalMean(False)), ("fc", nn.Linear(features, 4)))


def embedding(words: list[int], channels: int) -> Embed:
    """With rows for some of the words, and zeros for the others."""
    embed = Embed(WORDS, len(words), channels)
    embed.has_rows_(torch.tensor(words))
    embed.weight.data = torch.randn(channels, len(words), generator=torch.Generator().manual_seed(2))
    return embed


GRAPHS: dict[str, tuple[Graph, Shape]] = {
    "text": (
        headed(
            4,
            ("words", embedding([1, 2, 5, 6, 8], 3)),
            ("conv", nn.Conv1d(3, 4, 3, padding=1)),
            ("largest", nn.MaxPool1d(11)),
        ),
        TEXT,
    ),
    "text-with-all-rows": (headed(4, ("words", embedding([*range(9)], 4)), ("act", nn.Tanh())), TEXT),
    **{name: (flat(module), (5,)) for name, module in NEW_ACTIVATIONS.items()},
    "residual": (
        headed(
            4,
            ("stem", nn.Conv2d(2, 4, 3, padding=1)),
            ("act", nn.ReLU()),
            ("inner", nn.Conv2d(4, 4, 3, padding=1, bias=False)),
            ("sum", Add(), "inner", "act"),
            ("out", nn.ReLU()),
        ),
        (2, 6, 7),
    ),
    "shortcut-of-zeros": (
        headed(
            7,
            ("normalise", Normalise(0.0, 0.5)),
            ("stem", nn.Conv2d(2, 3, 3, padding=1)),
            ("act", nn.ReLU()),
            ("down", nn.Conv2d(3, 7, 3, stride=2, padding=1)),
            ("relu", nn.ReLU()),
            ("inner", nn.Conv2d(7, 7, 3, padding=1)),
            ("fewer", Subsample(2), "act"),
            ("more", PadChannels(1, 3)),
            ("sum", Add(), "inner", "more"),
            ("out", nn.ReLU()),
        ),
        (2, 6, 7),
    ),
    "concat": (
        headed(
            9,
            ("a", nn.Conv2d(2, 3, 1)),
            ("b", nn.Conv2d(2, 4, 3, padding=1), INPUT),
            ("act", nn.ReLU()),
            ("together", Concat(), "act", INPUT, "a"),
        ),
        (2, 4, 5),
    ),
    "squeeze-and-excite": (
        headed(
            6,
            ("expand", nn.Conv2d(2, 6, 1)),
            ("swish", nn.Hardswish()),
            ("depthwise", nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False)),
            ("relu", nn.ReLU()),
            ("squeeze", GlobalMean(True)),
            ("reduce", nn.Conv2d(6, 2, 1)),
            ("relu6", nn.ReLU6()),
            ("excite", nn.Conv2d(2, 6, 1)),
            ("gate", nn.Hardsigmoid()),
            ("scaled", Multiply(), "gate", "relu"),
        ),
        (2, 5, 5),
    ),
    "grouped": (
        headed(
            6,
            ("first", nn.Conv2d(4, 6, 3, padding="same", groups=2)),
            ("act", nn.SiLU()),
            ("second", nn.Conv2d(6, 6, 2, stride=(2, 1), dilation=(1, 2), padding=(1, 0), groups=3)),
        ),
        (4, 6, 7),
    ),
    "sound": (
        headed(
            4,
            ("first", nn.Conv1d(2, 3, 3, padding=1)),
            ("largest", nn.MaxPool1d(3, 2, 1)),
            ("second", nn.Conv1d(3, 4, 2, dilation=2)),
            ("average", nn.AvgPool1d(2, 1, 1)),
            ("scaled", Affine(4)),
        ),
        (2, 17),
    ),
    "grown picture": (
        headed(
            4,
            ("first", nn.Conv2d(2, 3, 2)),
            ("grown", TransposedConvolution(3, 4, (3, 2), (2, 1), (1, 0), (1, 0), (1, 2))),
        ),
        (2, 4, 5),
    ),
    "volume": (
        headed(
            4,
            ("first", nn.Conv3d(1, 2, (1, 2, 3), padding=(0, 1, 1))),
            ("largest", nn.MaxPool3d((1, 2, 2), stride=1)),
            ("second", nn.Conv3d(2, 4, 2, groups=2)),
            ("fewer", Subsample(2)),
            ("average", nn.AvgPool3d(2, stride=1, padding=1)),
        ),
        (1, 4, 5, 5),
    ),
    "affine": (
        wired(
            ("scaled", Affine(2)),
            ("conv", nn.Conv2d(2, 3, 3)),
            ("again", Affine(3)),
            ("act", nn.ReLU()),
            ("sum", Add(), "again", "act"),
            ("mean", GlobalMean(False)),
            ("flat_ones", Affine(3)),
            ("fc", nn.Linear(3, 4)),
        ),
        (2, 4, 5),
    ),
    "tokens": (
        wired(
            ("patches", nn.Conv2d(2, 6, 2, 2)),
            ("tokens", FlattenPlaces()),
            ("place", Shift((6, 6))),
            ("norm", ChannelNorm(6, 1e-5)),
            ("mix", SelfAttention(6, 3)),
            ("stream", Add(), "place", "mix"),
            ("again", ChannelNorm(6, 0.25)),
            ("wide", nn.Conv1d(6, 9, 1)),
            ("act", nn.GELU()),
            ("narrow", nn.Conv1d(9, 6, 1)),
            ("sum", Add(), "stream", "narrow"),
            ("mean", GlobalMean(False)),
            ("fc", nn.Linear(6, 4)),
        ),
        (2, 4, 6),
    ),
    "some-of-a-stream": (
        wired(
            ("stem", nn.Conv2d(2, 5, 3, padding=1)),
            ("act", nn.ReLU()),
            ("branch", nn.Conv2d(5, 2, 3, padding=1)),
            ("put", ScatterChannels(torch.tensor([0, 3]), 5)),
            ("sum", Add(), "act", "put"),
            ("mean", GlobalMean(False)),
            ("fewer", nn.Linear(5, 1)),
            ("put_flat", ScatterChannels(torch.tensor([2]), 3)),
            ("fc", nn.Linear(3, 4)),
        ),
        (2, 4, 5),
    ),
    "sequences": (
        wired(
            ("long", nn.Linear(3, 20)),
            ("lstm", Recurrence("lstm", 5, bias=False)),
            ("gates", nn.Linear(5, 9)),
            ("gru", Recurrence("gru", 3, reverse=True)),
            ("drive", nn.Linear(3, 4, bias=False)),
            ("rnn", Recurrence("tanh", 4)),
            ("steeper", nn.Linear(4, 2)),
            ("rising", Recurrence("relu", 2, reverse=True, bias=False)),
            ("flat", nn.Flatten()),
            ("fc", nn.Linear(12, 4)),
        ),
        (6, 3),
    ),
    "a-drive-that-others-read": (
        wired(
            ("before", Recurrence("tanh", 3), INPUT),
            ("drive", nn.Linear(3, 3)),
            ("rnn", Recurrence("tanh", 3, bias=False)),
            ("sum", Add(), "drive", "rnn"),
            ("flat", nn.Flatten()),
            ("fc", nn.Linear(12, 4)),
        ),
        (4, 3),
    ),
    "normalise-by-channel": (
        headed(
            4,
            ("normalise", Normalise([0.5, -0.25, 2.0], [0.25, 3.0, 1.5])),
            ("conv", nn.Conv2d(3, 4, 3, padding=1)),
            ("act", nn.ReLU()),
        ),
        (3, 5, 4),
    ),
    "input-read-late": (
        wired(
            ("normalise", Normalise(0.5, 2.0)),
            ("flatten", nn.Flatten()),
            ("fc1", nn.Linear(12, 5)),
            ("act", nn.ReLU()),
            ("raw", nn.Flatten(), INPUT),
            ("pick", Select(torch.tensor([0, 3, 4, 11]))),
            ("both", Concat(), "act", "pick"),
            ("fc2", nn.Linear(9, 3)),
        ),
        (3, 2, 2),
    ),
    "a-value-met-by-itself": (
        wired(("fc1", nn.Linear(5, 4)), ("square", Multiply(), "fc1", "fc1"), ("fc2", nn.Linear(4, 3))),
        (5,),
    ),
    "two-readers-of-the-normalised-input": (
        headed(
            3,
            ("normalise", Normalise(0.5, 2.0)),
            ("left", nn.Conv2d(2, 3, 3, padding=1)),
            ("right", nn.Conv2d(2, 3, 1), "normalise"),
            ("sum", Add(), "left", "right"),
        ),
        (2, 4, 4),
    ),
    "normalised-before-it-branches": (
        headed(
            3,
            ("normalise", Normalise(0.5, 2.0)),
            ("stem", nn.Conv2d(2, 3, 3)),
            ("act", nn.ReLU()),
            ("inner", nn.Conv2d(3, 3, 1)),
            ("sum", Add(), "act", "inner"),
        ),
        (2, 5, 4),
    ),
    "pooled-in-a-branch": (
        headed(
            5,
            ("conv", nn.Conv2d(2, 3, 3, padding=1)),
            ("act", nn.ReLU()),
            ("pool", nn.MaxPool2d(2)),
            ("fewer", Subsample(2), INPUT),
            ("both", Concat(), "fewer", "pool"),
        ),
        (2, 6, 6),
    ),
    "pooled-value-read-twice": (
        headed(
            3,
            ("conv", nn.Conv2d(2, 3, 3, padding=1)),
            ("act", nn.ReLU()),
            ("pool", nn.MaxPool2d(2)),
            ("inner", nn.Conv2d(3, 3, 1)),
            ("sum", Add(), "pool", "inner"),
        ),
        (2, 6, 6),
    ),
    "read-before-the-pool": (
        headed(
            6,
            ("conv", nn.Conv2d(2, 3, 3, padding=1)),
            ("act", nn.ReLU()),
            ("pool", nn.MaxPool2d(2)),
            ("fewer", Subsample(2), "act"),
            ("both", Concat(), "pool", "fewer"),
        ),
        (2, 6, 6),
    ),
    "names-that-formats-use-in-branches": (
        wired(
            ("input", nn.Linear(5, 4)),
            ("x", nn.ReLU()),
            ("logits", nn.Linear(4, 4)),
            ("output", Add(), "x", "logits"),
            ("a*/é", nn.Linear(4, 3)),
        ),
        (5,),
    ),
}  # fmt: skip
