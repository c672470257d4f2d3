"""Small networks of every make: branches, gates, groups, one to three directions in space."""

import operator
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.hypernet import ConditionalNetwork, GeneratorSpec
from bhc.posterior import ChannelRounding

CLASSES = 10


class Block(nn.Module):
    """Two convolutions and a shortcut: projected, or padded with zeros (option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, project: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.stride, self.padding = stride, (outputs - inputs) // 2
        self.shortcut: nn.Module | None = None
        if project and stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.shortcut is not None:
            x = self.shortcut(x)
        elif self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        out += x
        return F.relu(out)


class Residual(nn.Module):
    def __init__(self, *, project: bool) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        self.blocks = nn.Sequential(
            Block(4, 4, 1, project=project), Block(4, 8, 2, project=project), Block(8, 8, 1, project=project)
        )
        self.end = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        x = F.avg_pool2d(x, x.size(3))
        return self.end(x.view(x.size(0), -1))


class PreActivation(nn.Module):
    """Batch norms before the convolutions: those of the stream stay as steps."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.n1, self.c1 = nn.BatchNorm2d(6), nn.Conv2d(6, 5, 3, padding=1, bias=False)
        self.n2, self.c2 = nn.BatchNorm2d(5), nn.Conv2d(5, 6, 3, padding=1, bias=False)
        self.n3, self.end = nn.BatchNorm2d(6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.c2(F.relu(self.n2(self.c1(F.relu(self.n1(x))))))
        return self.end(F.relu(self.n3(x)).mean((2, 3)))


class Dense(nn.Module):
    """Values side by side, under activations that do not leave zero at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1), nn.Conv2d(9, 3, 1)
        self.norm, self.soft, self.end = nn.BatchNorm2d(12), nn.Softplus(), nn.Linear(12 * 9, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.a(x).sigmoid(), 2)
        x = torch.cat([x, self.soft(self.b(x))], 1)
        x = torch.cat([x, F.gelu(self.c(x))], 1)
        return self.end(torch.flatten(self.norm(x), 1))


class Mobile(nn.Module):
    """Depthwise and grouped convolutions, and a gate on channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.d, self.p = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Conv2d(6, 8, 1)
        self.n, self.g = nn.BatchNorm2d(6), nn.Conv2d(8, 12, 3, padding=1, groups=4)
        self.narrow, self.wide, self.end = nn.Conv2d(12, 3, 1), nn.Conv2d(3, 12, 1), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.p(F.relu6(self.n(self.d(F.relu(self.a(x)))))))
        x = F.hardswish(self.g(x))
        gate = torch.sigmoid(self.wide(F.relu(self.narrow(F.adaptive_avg_pool2d(x, 1)))))
        return self.end((x * gate).mean((2, 3)))


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv1d(2, 6, 5, stride=2, padding=2), nn.BatchNorm1d(6)
        self.b, self.c = nn.Conv1d(6, 6, 3, padding=2, dilation=2), nn.Conv1d(6, 4, 3, groups=2)
        self.hidden, self.end = nn.Linear(12, 7), nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.a(x)))
        x = F.max_pool1d(x + torch.tanh(self.b(x)), 2)
        x = torch.flatten(F.relu(self.c(x)), 1)
        return self.end(F.elu(self.hidden(x)))


class Volumes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv3d(1, 4, (1, 3, 3), padding=(0, 1, 1), bias=False), nn.Conv3d(4, 5, 2, stride=2)
        self.norm, self.end = nn.BatchNorm3d(4), nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.a(x)))
        x = F.avg_pool3d(F.silu(self.b(x)), (1, 2, 2))
        return self.end(x.flatten(1))


class TwoHeads(nn.Module):
    """Two linear layers whose sums are the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(12, 6), nn.Linear(12, 5)
        self.head, self.other = nn.Linear(6, CLASSES), nn.Linear(5, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.left(x))) + self.other(torch.sigmoid(self.right(x)))


class Halves(nn.Module):
    """Layers that read a part of what another writes, one of them beside a shortcut; of some nobody reads a quarter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(6, 8), nn.Linear(4, 6), nn.Linear(4, 6)
        self.wide, self.low, self.high = nn.Linear(6, 8), nn.Linear(4, 5), nn.Linear(4, 5)
        self.back, self.end = nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        left, right = F.relu(self.first(x)).chunk(2, 1)
        x = self.left(left) * torch.sigmoid(self.right(right))
        wide = F.relu(self.wide(x))
        return self.end(x + self.back(F.relu(self.low(wide[:, :4]) + self.high(wide[:, 2:6]))))


def convolution_then_linear() -> nn.Module:
    pooled = (nn.Conv2d(1, 5, 3), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*pooled, nn.Flatten(), nn.Linear(20, 7), nn.Tanh(), nn.Linear(7, CLASSES))


def all_convolutional() -> nn.Module:
    first = (nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU())
    second = (nn.Conv2d(6, 5, 3, stride=2), nn.Hardsigmoid())
    return nn.Sequential(*first, *second, nn.Conv2d(5, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Transformer(nn.Module):
    """Patches as tokens with learned places; attention and a small network on each token, both beside a stream."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 2, 2)
        self.places = nn.Parameter(torch.randn(1, 9, width))
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width, bias=False)
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
        self.think = nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, width))
        self.end = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        normal = self.before(x)
        x = x + self.attend(normal, normal, normal, need_weights=False)[0]
        x = x + self.think(self.after(x))
        return self.end(x.mean(1))


# How to build each, and the shape of an example.
NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "residual": (lambda: Residual(project=True), (3, 6, 6)),
    "option-a": (lambda: Residual(project=False), (3, 6, 6)),
    "pre-activation": (PreActivation, (3, 5, 5)),
    "dense": (Dense, (3, 6, 6)),
    "mobile": (Mobile, (3, 6, 6)),
    "sequences": (Sequences, (2, 20)),
    "volumes": (Volumes, (1, 4, 5, 8)),
    "flatten": (convolution_then_linear, (1, 6, 6)),
    "two-heads": (TwoHeads, (12,)),
    "halves": (Halves, (6,)),
    "all-convolutional": (all_convolutional, (3, 8, 8)),
    "transformer": (Transformer, (3, 6, 6)),
}


KINDS = (
    "conv", "conv", "conv", "grouped", "depthwise", "norm", "relu", "sigmoid", "add", "add", "multiply", "gate",
    "beside", "halve", "pad", "pool", "slice",
)  # fmt: skip


class Random(nn.Module):
    """Steps drawn at random, each of values drawn at random; what nobody reads is put side by side at the end."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draws, self.layers = random.Random(seed), nn.ModuleList()
        self.program: list[tuple[Callable[..., Tensor], list[int]]] = []  # what is done, and to which values
        self.shapes = [(3, 6)]  # channels and places in each direction of every value
        self.read: set[int] = set()
        for _ in range(self.draws.randint(4, 12)):
            self._grow()
        last = [value for value in range(len(self.shapes)) if value not in self.read]
        self.ends = [value for value in last if value > 0]
        widths = [self.shapes[value][0] for value in self.ends]
        self.hidden, self.end = nn.Linear(sum(widths), 6), nn.Linear(6, CLASSES)

    def _add(self, step: Callable[..., Tensor], values: list[int], channels: int, size: int) -> None:
        if isinstance(step, nn.Module):
            self.layers.append(step)
        self.program.append((step, values))
        self.shapes.append((channels, size))
        self.read.update(values)

    def _grow(self) -> None:
        value = self.draws.randrange(len(self.shapes))
        channels, size = self.shapes[value]
        alike = [other for other, shape in enumerate(self.shapes) if shape == (channels, size)]
        beside = [other for other, shape in enumerate(self.shapes) if shape[1] == size and other != value]
        kind = self.draws.choice(KINDS)
        match kind:
            case "conv" | "grouped" | "depthwise":
                groups = {"conv": 1, "grouped": 2, "depthwise": channels}[kind]
                if channels % groups:
                    return
                wide = self.draws.choice([2, 4, 6]) if groups < channels or kind == "conv" else channels
                conv = nn.Conv2d(channels, wide, 3, padding=1, groups=groups, bias=self.draws.random() < 0.5)
                self._add(conv, [value], wide, size)
            case "norm":
                self._add(nn.BatchNorm2d(channels), [value], channels, size)
            case "relu" | "sigmoid":
                self._add(getattr(torch, kind), [value], channels, size)
            case "add" | "multiply":
                step = operator.add if kind == "add" else operator.mul
                self._add(step, [value, self.draws.choice(alike)], channels, size)
            case "gate":
                self._add(Gate(channels), [value], channels, size)
            case "beside" if beside:
                other = self.draws.choice(beside)
                self._add(lambda *parts: torch.cat(parts, 1), [value, other], channels + self.shapes[other][0], size)
            case "halve" if size > 2:
                self._add(lambda x: x[:, :, ::2, ::2], [value], channels, (size + 1) // 2)
            case "pad":
                after = self.draws.randrange(3)
                self._add(lambda x: F.pad(x, (0, 0, 0, 0, 1, after)), [value], channels + 1 + after, size)
            case "slice" if channels > 2:
                first = self.draws.randrange(channels - 1)
                self._add(lambda x: x[:, first:], [value], channels - first, size)
            case "pool" if size > 2:
                self._add(lambda x: F.max_pool2d(x, 2), [value], channels, size // 2)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for step, reads in self.program:
            values.append(step(*(values[value] for value in reads)))
        flat = torch.cat([values[value].mean((2, 3)) for value in self.ends], 1)
        return self.end(F.relu(self.hidden(flat)))


class Gate(nn.Module):
    """Channels times what is told of all of them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv(F.adaptive_avg_pool2d(x, 1)))


def build(name: str) -> tuple[nn.Module, Tensor]:
    """The network as training might leave it, and a batch."""
    return used(*NETWORKS[name])


def used(make: Any, shape: tuple[int, ...]) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = make().eval()
        for module in net.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                module.running_mean.normal_()  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
                module.weight.data.uniform_(0.5, 2)
                module.bias.data.normal_()
        return net, torch.randn(4, *shape)


# How far rates lie apart: a log-normal scale's grows with the exponential of its variance.
SPREAD = {"io-gnj": 3.0, "gnj": 3.0, "ghs": 1.0, "sparse-vd": 3.0}


def spread_(network: ConditionalNetwork, family: str) -> ConditionalNetwork:
    """Maps that differ from zero, and dropout rates over a wide range."""
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in network.hypernet.named_parameters():
            centre, spread = (8.0, SPREAD[family]) if _sets_rates(key, family) else (0.0, 0.03)
            parameter += centre + spread * torch.randn(parameter.shape, generator=draws)
    return network


def _sets_rates(key: str, family: str) -> bool:
    """Whether what is cut goes by this parameter: the offsets of the scales' or of the weights' log-variances."""
    if family == "sparse-vd":
        return key.startswith("weights.") and key.endswith(("shared_logvar.offset", "logvar_map.offset"))
    return key == "vectors.logvar_map.offset"


LENETS = {"lenet-300-100": (1, 8, 8), "lenet-5-caffe": (1, 16, 16)}


def lenet(name: str, generator: GeneratorSpec, *, family: str = "io-gnj") -> ConditionalNetwork:
    """One whose rates are spread."""
    torch.manual_seed(0)
    net = bhc.models.build(name, image_shape=LENETS[name], num_classes=CLASSES)
    example = torch.zeros(1, *LENETS[name])
    model = bhc.wrap(net, bhc.ClassSubsets(CLASSES), example_input=example, weight_generator=generator, family=family)
    return spread_(model.network, family)


def masked(
    network: ConditionalNetwork,
    context: Context,
    x: Tensor,
    threshold: float,
    *,
    rounding: ChannelRounding | None = None,
) -> Tensor:
    """What the masked network says of the classes of a context."""
    batch, limit = ContextBatch.of([context], network.num_classes), torch.full((1, 1), threshold)
    if rounding is None:
        logits = network.masked(x, batch, threshold=limit)
    else:
        masks = network.find_masks(network.dropouts(batch), limit, batch.outputs, batch.inputs, rounding=rounding)
        logits = network.bayesian.masked(x, network.hypernet.means(network.space.encode(batch)), masks)
    return logits[:, list(context.classes or range(network.num_classes))]


def assert_equal(given: Tensor, expected: Tensor) -> None:
    """To 1e-4 of the largest logit: single precision sums in another order."""
    assert expected.isfinite().all()
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-4 * max(1.0, expected.abs().max().item()))
