"""Networks to start from: small, well known, plain ``nn.Module``s."""

from collections.abc import Callable

from torch import nn

from bhc.errors import BhcError
from bhc.models.lenet import lenet_5_caffe, lenet_300_100
from bhc.models.normalise import Normalise

BUILDERS: dict[str, Callable[..., nn.Sequential]] = {
    "lenet-300-100": lenet_300_100,
    "lenet-5-caffe": lenet_5_caffe,
}
NAMES = tuple(BUILDERS)


def build(name: str, *, image_shape: tuple[int, int, int], num_classes: int) -> nn.Sequential:
    """A fresh network by its name on the command line."""
    if name not in BUILDERS:
        raise BhcError(f"unknown model {name!r}", hint=f"choose one of: {', '.join(NAMES)}")
    return BUILDERS[name](image_shape=image_shape, num_classes=num_classes)


__all__ = ["BUILDERS", "NAMES", "Normalise", "build", "lenet_5_caffe", "lenet_300_100"]
