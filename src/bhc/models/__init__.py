"""Networks to start from: small, well known, plain ``nn.Module``s."""

from collections.abc import Callable, Mapping

import torch
from torch import Generator, nn

from bhc.errors import BhcError, renamed
from bhc.layers import LogMel, Normalise
from bhc.models.networks import (
    VGG_STD_LIMITS,
    SubsampleAndPad,
    initialise_,
    lenet_5_caffe,
    lenet_300_100,
    load_public_resnet_,
    resnet,
    resnet_20,
    resnet_32,
    resnet_44,
    resnet_56,
    speech_cnn,
    text_cnn,
    vgg,
)

BUILDERS: dict[str, Callable[..., nn.Sequential]] = {
    "lenet-300-100": lenet_300_100,
    "lenet-5-caffe": lenet_5_caffe,
    "vgg": vgg,
    "resnet-20": resnet_20,
    "resnet-32": resnet_32,
    "resnet-44": resnet_44,
    "resnet-56": resnet_56,
    "speech-cnn": speech_cnn,
    "text-cnn": text_cnn,
}
NAMES = tuple(BUILDERS)

WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)

# The paper clips the standard deviation of some layers, by name: these networks learn better so.
STD_LIMITS: dict[str, Mapping[str, float]] = {
    "lenet-300-100": {"fc1": 0.2},
    "lenet-5-caffe": {"conv1": 0.5},
    "vgg": VGG_STD_LIMITS,
    # Of rows that are seldom picked the prior alone would decide, and it is wider than the rows.
    "text-cnn": {"embedding": 0.1, "conv": 0.1},
}


def check(name: str) -> None:
    """Raise if there is no model of that name."""
    if name not in BUILDERS:
        raise BhcError(f"unknown model {name!r}", hint=f"choose one of: {', '.join(NAMES)}")


def outline(name: str) -> nn.Sequential:
    """The layers of a model without memory behind them, to be listed and not to be run."""
    check(name)
    with torch.device("meta"):
        return BUILDERS[name]()


def std_limits(name: str) -> tuple[float | None, ...]:
    """The largest standard deviation of each layer's weights that training usually allows."""
    layers = [layer for layer, module in outline(name).named_modules() if isinstance(module, WEIGHTED)]
    limits = STD_LIMITS.get(name, {})
    return tuple(limits.get(layer) for layer in layers)


@renamed(generator="rng")
def build(
    name: str,
    *,
    image_shape: tuple[int, ...],
    num_classes: int,
    full_scale: float = 255.0,
    rng: Generator | None = None,
) -> nn.Sequential:
    """A fresh network by its name on the command line; with ``rng`` its weights follow from that."""
    check(name)
    net = BUILDERS[name](image_shape=image_shape, num_classes=num_classes, full_scale=full_scale)
    if rng is not None:
        initialise_(net, rng)
    return net
