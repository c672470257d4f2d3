"""The layer types the library knows: one table, read by tracing, by files and by error messages."""

import operator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from bhc.graph.steps import Add, Affine, Concat, GlobalMean, Multiply, PadChannels, Place, Select, Subsample
from bhc.graph.tokens import ChannelNorm, Embed, FlattenPlaces, SelfAttention, Shift
from bhc.models.log_mel import LogMel
from bhc.models.normalise import Normalise


@dataclass(frozen=True)
class Kind:
    """A layer type: its name in files, and the constructor's arguments as the attributes that hold them."""

    name: str
    module: type[nn.Module]
    arguments: tuple[str, ...] = ()


_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")

WEIGHTED = (
    Kind("linear", nn.Linear, ("in_features", "out_features")),
    Kind("conv-1d", nn.Conv1d, _CONVOLUTION),
    Kind("conv-2d", nn.Conv2d, _CONVOLUTION),
    Kind("conv-3d", nn.Conv3d, _CONVOLUTION),
    Kind("embedding", Embed, ("count", "rows", "channels")),
)

# Applied number by number. Most map zero to zero; what the others make of a unit that is switched off is not read.
ACTIVATIONS = (
    Kind("relu", nn.ReLU),
    Kind("relu6", nn.ReLU6),
    Kind("leaky-relu", nn.LeakyReLU, ("negative_slope",)),
    Kind("elu", nn.ELU, ("alpha",)),
    Kind("selu", nn.SELU),
    Kind("gelu", nn.GELU, ("approximate",)),
    Kind("silu", nn.SiLU),
    Kind("tanh", nn.Tanh),
    Kind("sigmoid", nn.Sigmoid),
    Kind("hard-swish", nn.Hardswish),
    Kind("hard-sigmoid", nn.Hardsigmoid),
    Kind("softplus", nn.Softplus, ("beta", "threshold")),
)

_MAX_POOL = ("kernel_size", "stride", "padding", "dilation")
_AVERAGE_POOL = ("kernel_size", "stride", "padding")

# Places change, channels stay what they are.
POOLS = (
    Kind("max-pool-1d", nn.MaxPool1d, _MAX_POOL),
    Kind("max-pool-2d", nn.MaxPool2d, _MAX_POOL),
    Kind("max-pool-3d", nn.MaxPool3d, _MAX_POOL),
    Kind("avg-pool-1d", nn.AvgPool1d, _AVERAGE_POOL),
    Kind("avg-pool-2d", nn.AvgPool2d, _AVERAGE_POOL),
    Kind("avg-pool-3d", nn.AvgPool3d, _AVERAGE_POOL),
    Kind("global-mean", GlobalMean, ("keep_places",)),
    Kind("subsample", Subsample, ("stride",)),
)

SHAPERS = (
    Kind("flatten", nn.Flatten),
    Kind("normalise", Normalise),
    Kind("log-mel", LogMel, ("rate", "bands", "window", "hop")),
    Kind("select", Select),
    Kind("place", Place, ("width",)),
    Kind("affine", Affine, ("channels",)),
    Kind("pad-channels", PadChannels, ("before", "after")),
)

# What mixes the channels of a token: kept whole.
WHOLE = (
    Kind("channel-norm", ChannelNorm, ("channels", "eps")),
    Kind("self-attention", SelfAttention, ("channels", "heads")),
)

TOKENS = (
    Kind("flatten-places", FlattenPlaces),
    Kind("shift", Shift, ("shape",)),
)

JOINTS = (
    Kind("add", Add),
    Kind("multiply", Multiply),
    Kind("concat", Concat),
)

KINDS: dict[type[nn.Module], Kind] = {
    kind.module: kind for kind in (*WEIGHTED, *ACTIVATIONS, *POOLS, *SHAPERS, *WHOLE, *TOKENS, *JOINTS)
}
KINDS_BY_NAME: dict[str, Kind] = {kind.name: kind for kind in KINDS.values()}

WeightedModule = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | Embed
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
PRODUCTS = (nn.Linear, *CONVOLUTIONS)  # of weights and values
LAYERS = (*PRODUCTS, Embed)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)

# Left out of the traced graph: they do nothing when a network is used.
TRANSPARENT = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
GLOBAL_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)

# Functions and tensor methods that stand for a module without arguments of its own.
FUNCTIONS: dict[object, type[nn.Module]] = {
    F.relu: nn.ReLU,
    F.relu6: nn.ReLU6,
    torch.relu: nn.ReLU,
    torch.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    F.elu: nn.ELU,
    F.selu: nn.SELU,
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    F.sigmoid: nn.Sigmoid,
    F.tanh: nn.Tanh,
    F.hardswish: nn.Hardswish,
    F.hardsigmoid: nn.Hardsigmoid,
    "relu": nn.ReLU,
    "relu_": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}

# Functions of two values.
JOINING: dict[object, type[nn.Module]] = {
    operator.add: Add,
    operator.iadd: Add,
    torch.add: Add,
    "add": Add,
    "add_": Add,
    operator.mul: Multiply,
    operator.imul: Multiply,
    torch.mul: Multiply,
    "mul": Multiply,
    "mul_": Multiply,
}

# Those that write into their first argument, and so change what others read of it.
IN_PLACE = (operator.iadd, operator.imul, "add_", "mul_", "relu_")


def supported() -> str:
    """The table as one line for error messages."""
    own = [kind.module for kind in KINDS.values() if kind.module.__module__.startswith("torch.")]
    layers = sorted(
        module.__name__
        for module in (*own, *BATCH_NORMS, *GLOBAL_POOLS, nn.Embedding, nn.LayerNorm, nn.MultiheadAttention)
    )
    return f"{', '.join(layers)}; sums and products of two values, torch.cat of channels"
