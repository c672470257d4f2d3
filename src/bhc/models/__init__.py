"""Networks to start from: small, well known, plain ``nn.Module``s."""

from collections.abc import Callable

from torch import Generator, nn

from bhc.errors import BhcError
from bhc.models.lenet import lenet_5_caffe, lenet_300_100
from bhc.models.normalise import Normalise

BUILDERS: dict[str, Callable[..., nn.Sequential]] = {
    "lenet-300-100": lenet_300_100,
    "lenet-5-caffe": lenet_5_caffe,
}
NAMES = tuple(BUILDERS)

# The paper clips the first layer's standard deviation: these networks learn better so.
FIRST_LAYER_STD = {"lenet-300-100": 0.2, "lenet-5-caffe": 0.5}
NUM_LAYERS = {"lenet-300-100": 3, "lenet-5-caffe": 4}


def check(name: str) -> None:
    """Raise if there is no model of that name."""
    if name not in BUILDERS:
        raise BhcError(f"unknown model {name!r}", hint=f"choose one of: {', '.join(NAMES)}")


def std_limits(name: str) -> tuple[float | None, ...]:
    """The largest standard deviation of each layer's weights that training usually allows."""
    return (FIRST_LAYER_STD[name], *[None] * (NUM_LAYERS[name] - 1))


def build(
    name: str,
    *,
    image_shape: tuple[int, int, int],
    num_classes: int,
    full_scale: float = 255.0,
    generator: Generator | None = None,
) -> nn.Sequential:
    """A fresh network by its name on the command line; with ``generator`` its weights follow from that."""
    check(name)
    net = BUILDERS[name](image_shape=image_shape, num_classes=num_classes, full_scale=full_scale)
    if generator is not None:
        _initialise_(net, generator)
    return net


def _initialise_(net: nn.Module, generator: Generator) -> None:
    """torch's own starting values, drawn from a generator instead of the global state."""
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = module.weight[0].numel() ** -0.5
            for parameter in module.parameters(recurse=False):
                nn.init.uniform_(parameter, -bound, bound, generator=generator)


__all__ = ["BUILDERS", "NAMES", "Normalise", "build", "check", "lenet_5_caffe", "lenet_300_100", "std_limits"]
