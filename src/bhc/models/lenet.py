"""The two LeNets of the compression literature. Pixels go in as they are stored, 0 to ``full_scale``."""

from math import prod

from torch import nn

from bhc.errors import BhcError
from bhc.layers import Normalise
from bhc.models.parts import named

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
    if min(height, width) < 16:
        raise BhcError(
            f"lenet-5-caffe needs images of at least 16 x 16 pixels, these have {height} x {width}",
            hint="use lenet-300-100 for smaller images",
        )
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return named(
        normalise=Normalise(0.0, PIXEL_STD * full_scale),
        conv1=nn.Conv2d(channels, 20, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(20, 50, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(50 * rows * columns, 500),
        relu3=nn.ReLU(),
        fc2=nn.Linear(500, num_classes),
    )
