"""What several networks are made of: chains with names, starting values, shortcuts, the brightness of photographs."""

from collections import OrderedDict
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bhc.layers import Normalise


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
