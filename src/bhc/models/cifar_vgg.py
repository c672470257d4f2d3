"""The VGG of the compression literature. Pixels go in as they are stored, 0 to ``full_scale``."""

from collections.abc import Iterator

from torch import nn

from bhc.errors import BhcError
from bhc.models.named import named
from bhc.models.photographs import CIFAR10

# Maps and convolutions of each stage; a pool that halves the image ends it.
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
HIDDEN = 512
SMALLEST = 2 ** len(STAGES)

# The paper clips the standard deviation of the layers with few maps.
_STD_BY_MAPS = {64: 0.1, 128: 0.1, 256: 0.2}
STD_LIMITS = {
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
    if min(height, width) < SMALLEST:
        raise BhcError(
            f"vgg needs images of at least {SMALLEST} x {SMALLEST} pixels, these have {height} x {width}",
            hint="use lenet-300-100 or resnet-20 for smaller images",
        )
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
