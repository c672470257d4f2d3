"""The layer types the library knows: one table, read by tracing, by files and by error messages."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from bhc.graph.select import Select
from bhc.models.normalise import Normalise


@dataclass(frozen=True)
class Kind:
    """A layer type: its name in files, and the constructor's arguments as the attributes that hold them."""

    name: str
    module: type[nn.Module]
    arguments: tuple[str, ...] = ()


WEIGHTED = (
    Kind("linear", nn.Linear, ("in_features", "out_features")),
    Kind("conv-2d", nn.Conv2d, ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation")),
)

# Each maps zero to zero, so a unit that is switched off stays off: what output groups rest on.
ACTIVATIONS = (
    Kind("relu", nn.ReLU),
    Kind("relu6", nn.ReLU6),
    Kind("leaky-relu", nn.LeakyReLU, ("negative_slope",)),
    Kind("elu", nn.ELU, ("alpha",)),
    Kind("selu", nn.SELU),
    Kind("gelu", nn.GELU, ("approximate",)),
    Kind("silu", nn.SiLU),
    Kind("tanh", nn.Tanh),
)

SHAPERS = (
    Kind("max-pool-2d", nn.MaxPool2d, ("kernel_size", "stride", "padding", "dilation")),
    Kind("avg-pool-2d", nn.AvgPool2d, ("kernel_size", "stride", "padding")),
    Kind("flatten", nn.Flatten),
    Kind("normalise", Normalise),
    Kind("select", Select),
)

KINDS: dict[type[nn.Module], Kind] = {kind.module: kind for kind in (*WEIGHTED, *ACTIVATIONS, *SHAPERS)}
KINDS_BY_NAME: dict[str, Kind] = {kind.name: kind for kind in KINDS.values()}

# Left out of the traced chain: they do nothing when a network is used.
TRANSPARENT = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.AlphaDropout)

# Functions and tensor methods that stand for a module without arguments of its own.
FUNCTIONS: dict[object, type[nn.Module]] = {
    F.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    torch.tanh: nn.Tanh,
    F.elu: nn.ELU,
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
}


def supported() -> str:
    """The table as one line for error messages."""
    return ", ".join(sorted(kind.module.__name__ for kind in KINDS.values() if kind.module is not Select))
