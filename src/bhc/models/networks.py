"""The LeNets, the residual networks and the VGG of the compression literature, weights that others have published,
networks for short recordings and short texts, and the parts they are made of.

Pixels, samples and numbers of words go in as they are stored; pixels are 0 to ``full_scale``. The layers of the
residual networks have the names they have in public checkpoints, and pixels are normalised as those networks learned
them, by ImageNet's statistics.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from statistics import fmean
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bhc.errors import BhcError
from bhc.layers import LogMel, Normalise


def named(**steps: nn.Module) -> nn.Sequential:
    """The steps one after the other, each under its name."""
    return nn.Sequential(OrderedDict(steps))


EMBEDDING_STD = 0.3


def initialise_(net: nn.Module, rng: Generator) -> None:
    """torch's own starting values; for convolutions that batch norm follows, those customary for them."""
    for module in net.modules():
        # A convolution is left without a bias where batch norm adds one.
        if isinstance(module, nn.Conv2d) and module.bias is None:
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=rng)
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            bound = module.weight[0].numel() ** -0.5
            for parameter in module.parameters(recurse=False):
                nn.init.uniform_(parameter, -bound, bound, generator=rng)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=EMBEDDING_STD, generator=rng)
            if module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx] = 0


@dataclass(frozen=True)
class PixelStatistics:
    """Mean and standard deviation of the red, the green and the blue pixels as parts of full scale."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def normalise(self, *, channels: int, full_scale: float) -> Normalise:
        """The first step of a network; images that are not in three colours get the average of the three."""
        if channels != 3:
            return Normalise(fmean(self.mean) * full_scale, fmean(self.std) * full_scale)
        return Normalise([mean * full_scale for mean in self.mean], [std * full_scale for std in self.std])


CIFAR10 = PixelStatistics(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
IMAGENET = PixelStatistics(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class SubsampleAndPad(nn.Module):
    """Every ``stride``-th row and column, with channels of zeros before and after the given ones.

    It is the shortcut "A" of the residual networks for CIFAR: where a stage has smaller images and more
    channels than the one before it, what is carried along is thinned out and widened, never weighted.
    """

    def __init__(self, *, stride: int, before: int, after: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = before
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))

    def extra_repr(self) -> str:
        return f"stride={self.stride}, before={self.before}, after={self.after}"


# The standard deviation of MNIST's pixels as a part of full scale.
PIXEL_STD = 0.3081


def lenet_300_100(
    *, image_shape: tuple[int, int, int] = (1, 28, 28), num_classes: int = 10, full_scale: float = 255.0
) -> nn.Sequential:
    """Three linear layers, 784-300-100-10 on MNIST: 266,200 weights."""
    return named(
        normalise=Normalise(0.0, PIXEL_STD * full_scale),
        flatten=nn.Flatten(),
        fc1=nn.Linear(prod(image_shape), 300),
        relu1=nn.ReLU(),
        fc2=nn.Linear(300, 100),
        relu2=nn.ReLU(),
        fc3=nn.Linear(100, num_classes),
    )


def lenet_5_caffe(
    *, image_shape: tuple[int, int, int] = (1, 28, 28), num_classes: int = 10, full_scale: float = 255.0
) -> nn.Sequential:
    """Two 5 x 5 convolutions and two linear layers, 20-50-800-500 on MNIST: 430,500 weights."""
    channels, height, width = image_shape
    _check_sides("lenet-5-caffe", (height, width), 16)
    layers = _convolutions_then_linear((channels, 20, 50), 500, (height, width), num_classes)
    return named(normalise=Normalise(0.0, PIXEL_STD * full_scale), **layers)


def _check_sides(name: str, sides: tuple[int, int], least: int, *, instead: str = "lenet-300-100") -> None:
    """Raise if images are too small for a network."""
    if min(sides) < least:
        raise BhcError(
            f"{name} needs images of at least {least} x {least} pixels, these have {sides[0]} x {sides[1]}",
            hint=f"use {instead} for smaller images",
        )


def _convolutions_then_linear(
    maps: tuple[int, int, int], hidden: int, sides: tuple[int, int], num_classes: int
) -> dict[str, nn.Module]:
    """Two 5 x 5 convolutions with pools, and two linear layers."""
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in sides)
    return {
        "conv1": nn.Conv2d(maps[0], maps[1], 5),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(maps[1], maps[2], 5),
        "relu2": nn.ReLU(),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(maps[2] * rows * columns, hidden),
        "relu3": nn.ReLU(),
        "fc2": nn.Linear(hidden, num_classes),
    }


WIDTHS = (16, 32, 64)  # maps of the three stages
SMALLEST_SIDE = 8  # pixels a side: two stages halve them, and a 3 x 3 filter should still see a neighbour


class Block(nn.Module):
    """Two convolutions with batch norm, and the input added to what comes out of them."""

    def __init__(self, channels: int, maps: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, maps, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(maps)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(maps, maps, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(maps)
        self.shortcut = _shortcut(channels, maps, stride=stride)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu1(self.bn1(self.conv1(x)))
        result: Tensor = self.relu2(self.bn2(self.conv2(inner)) + self.shortcut(x))
        return result


def resnet(
    depth: int, *, image_shape: tuple[int, int, int] = (3, 32, 32), num_classes: int = 10, full_scale: float = 255.0
) -> nn.Sequential:
    """A residual network of ``depth`` layers, which is six times the blocks a stage and two."""
    blocks, left_over = divmod(depth - 2, 2 * len(WIDTHS))
    if blocks < 1 or left_over:
        raise BhcError(
            f"a residual network for CIFAR cannot have {depth} layers",
            hint="it has 6 n + 2 of them: 20, 32, 44, 56, ...",
        )
    channels, height, width = image_shape
    _check_sides(f"resnet-{depth}", (height, width), SMALLEST_SIDE)
    first, second, third = WIDTHS
    # Both strided stages round up: four pixels make one, five make two.
    rows, columns = (-(-side // 4) for side in (height, width))
    return named(
        normalise=IMAGENET.normalise(channels=channels, full_scale=full_scale),
        conv1=nn.Conv2d(channels, first, 3, padding=1, bias=False),
        bn1=nn.BatchNorm2d(first),
        relu=nn.ReLU(),
        layer1=_stage(first, first, blocks=blocks, stride=1),
        layer2=_stage(first, second, blocks=blocks, stride=2),
        layer3=_stage(second, third, blocks=blocks, stride=2),
        pool=nn.AvgPool2d((rows, columns)),
        flatten=nn.Flatten(),
        linear=nn.Linear(third, num_classes),
    )


resnet_20 = partial(resnet, 20)
resnet_32 = partial(resnet, 32)
resnet_44 = partial(resnet, 44)
resnet_56 = partial(resnet, 56)


def _stage(channels: int, maps: int, *, blocks: int, stride: int) -> nn.Sequential:
    others = [Block(maps, maps, stride=1) for _ in range(blocks - 1)]
    return nn.Sequential(Block(channels, maps, stride=stride), *others)


def _shortcut(channels: int, maps: int, *, stride: int) -> nn.Module:
    if (channels, stride) == (maps, 1):
        return nn.Identity()
    added = maps - channels
    return SubsampleAndPad(stride=stride, before=added // 2, after=added - added // 2)


# Maps and convolutions of each stage; a pool that halves the image ends it.
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
HIDDEN = 512
SMALLEST = 2 ** len(STAGES)

# The paper clips the standard deviation of the layers with few maps.
_STD_BY_MAPS = {64: 0.1, 128: 0.1, 256: 0.2}
VGG_STD_LIMITS = {
    f"conv{stage}_{place}": _STD_BY_MAPS[maps]
    for stage, (maps, convolutions) in enumerate(STAGES, start=1)
    for place in range(1, convolutions + 1)
    if maps in _STD_BY_MAPS
}


def vgg(
    *, image_shape: tuple[int, int, int] = (3, 32, 32), num_classes: int = 10, full_scale: float = 255.0
) -> nn.Sequential:
    """Thirteen 3 x 3 convolutions and three linear layers, 512-512-512-10 on CIFAR-10: 15,239,872 weights.

    Each convolution has batch norm. There is no dropout: it would draw from torch's global state.
    """
    channels, height, width = image_shape
    _check_sides("vgg", (height, width), SMALLEST, instead="lenet-300-100 or resnet-20")
    pixels = (height // SMALLEST) * (width // SMALLEST)
    return named(
        normalise=CIFAR10.normalise(channels=channels, full_scale=full_scale),
        **dict(_convolutions(channels)),
        flatten=nn.Flatten(),
        fc1=nn.Linear(STAGES[-1][0] * pixels, HIDDEN),
        relu_fc1=nn.ReLU(),
        fc2=nn.Linear(HIDDEN, HIDDEN),
        relu_fc2=nn.ReLU(),
        fc3=nn.Linear(HIDDEN, num_classes),
    )


def _convolutions(channels: int) -> Iterator[tuple[str, nn.Module]]:
    for stage, (maps, convolutions) in enumerate(STAGES, start=1):
        for place in range(1, convolutions + 1):
            # Without a bias: the batch norm right behind it has one.
            yield f"conv{stage}_{place}", nn.Conv2d(channels, maps, 3, padding=1, bias=False)
            yield f"norm{stage}_{place}", nn.BatchNorm2d(maps)
            yield f"relu{stage}_{place}", nn.ReLU()
            channels = maps
        yield f"pool{stage}", nn.MaxPool2d(2)


# What wraps a network for several devices puts this in front of every name.
_WRAPPER = "module."
# The last layer has one of two names, depending on whose code it was.
_RENAMED = {"fc.weight": "linear.weight", "fc.bias": "linear.bias"}
# A count of steps that files from before torch 0.4.1 lack; a trained network does not read it.
_COUNTER = "num_batches_tracked"
# Ours alone: public networks expect pixels that were normalised before.
_OWN = ("normalise.mean", "normalise.std")
_SHOWN = 5


def load_public_resnet_(
    net: nn.Module,  # from bhc.models
    checkpoint: Mapping[str, Any],  # as torch.load(path, weights_only=True) gives it
) -> None:
    """Copy the weights of a public checkpoint into ``net``, or raise and leave ``net`` as it is.

    The names are those of the common public networks with shortcuts "A": ``conv1``, ``bn1``,
    ``layer1.0.conv1`` to ``layer3.8.bn2``, and ``linear`` or ``fc``, each with or without ``module.``
    in front. They stand in the checkpoint itself or in its entry ``state_dict``.
    """
    state = checkpoint.get("state_dict", checkpoint)
    plain = {name.removeprefix(_WRAPPER): tensor for name, tensor in state.items()}
    given = {_RENAMED.get(name, name): tensor for name, tensor in plain.items()}
    expected = net.state_dict()
    missing = [name for name in expected if name not in (*given, *_OWN) and not name.endswith(_COUNTER)]
    unexpected = [name for name in given if name not in expected]
    misshapen = [
        f"{name} is {_shape(tensor)} instead of {_shape(expected[name])}"
        for name, tensor in given.items()
        if name in expected and _shape(tensor) != _shape(expected[name])
    ]
    problems = [
        f"{what}: {_listed(names)}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
        if names
    ]
    if problems:
        raise BhcError(
            f"the checkpoint does not fit this network; {'; '.join(problems)}",
            hint="the depth, the number of classes and the kind of shortcuts (without weights) must be the same",
        )
    net.load_state_dict({**expected, **given})


def _shape(value: object) -> tuple[int, ...] | str:
    return tuple(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


RATE = 8_000
BANDS, WINDOW, HOP = 32, 256, 160  # 32 ms, every 20 ms
# Of the log energies of spoken digits.
MEAN, STD = -8.5, 5.4
SHORTEST = WINDOW + 15 * HOP  # of which 16 frames come


def speech_cnn(
    *, image_shape: tuple[int, ...] = (1, 6_400), num_classes: int = 10, full_scale: float = 32_768.0
) -> nn.Sequential:
    """Log-mel energies, two 5 x 5 convolutions and two linear layers, 16-32-960-128: 137,360 weights."""
    if len(image_shape) != 2 or image_shape[0] != 1 or image_shape[1] < SHORTEST:
        raise BhcError(
            f"speech-cnn takes one channel of at least {SHORTEST:,} samples, these are {image_shape}",
            hint="use it for sounds, such as --data fsdd",
        )
    log_mel = LogMel(RATE, BANDS, WINDOW, HOP)
    layers = _convolutions_then_linear((1, 16, 32), 128, (BANDS, log_mel.frames(image_shape[1])), num_classes)
    return named(normalise=Normalise(0.0, full_scale), log_mel=log_mel, scale=Normalise(MEAN, STD), **layers)


WIDTH, FILTERS, WORDS = 64, 128, 3


class WholeNumbers(nn.Module):
    """Numbers of words, of any type, as an embedding takes them."""

    def forward(self, x: Tensor) -> Tensor:
        return x.long()


class ChannelsFirst(nn.Module):
    """(N, T, C) -> (N, C, T), as convolutions take it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def text_cnn(
    *, image_shape: tuple[int, ...] = (40,), num_classes: int = 6, full_scale: float = 3_297.0
) -> nn.Sequential:
    """An embedding of 64 numbers a word, 128 filters over three words, the largest of each, and a linear layer.

    ``full_scale`` is the number of the last word. Number 0 is no word: it has no row, and gives zeros.
    """
    if len(image_shape) != 1 or image_shape[0] < WORDS:
        raise BhcError(
            f"text-cnn takes texts of at least {WORDS} words, these inputs are {image_shape}",
            hint="use it for texts, such as --data trec",
        )
    return named(
        words=WholeNumbers(),
        embedding=nn.Embedding(int(full_scale) + 1, WIDTH, padding_idx=0),
        turn=ChannelsFirst(),
        conv=nn.Conv1d(WIDTH, FILTERS, WORDS, padding=1),
        relu=nn.ReLU(),
        pool=nn.MaxPool1d(image_shape[0]),
        flatten=nn.Flatten(),
        fc=nn.Linear(FILTERS, num_classes),
    )
