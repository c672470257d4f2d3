"""Public networks that the coverage benchmark tries, with random weights: one module for each source.

A source's package is imported only when one of its networks is built.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from zoo.inputs import Example, call, several
from zoo.weights import randomise

FAMILIES = (
    "plain CNN",
    "VGG",
    "ResNet",
    "DenseNet",
    "Inception",
    "SqueezeNet",
    "MobileNet",
    "ShuffleNet",
    "EfficientNet",
    "RegNet",
    "ConvNeXt",
    "ViT",
    "Swin",
    "hybrid",
    "mixer",
    "BERT-like",
    "GPT-like",
    "LSTM/GRU",
    "segmentation",
    "hand-written",
)


@dataclass(frozen=True)
class Network:
    """A network that can be built, and what it reads."""

    name: str
    source: str
    family: str
    build: Callable[[], nn.Module]
    example: Callable[[], Example]  # a batch of one
    output: str | int | None = None  # which one, where it returns several

    @property
    def title(self) -> str:
        return f"{self.source}/{self.name}"


def networks() -> tuple[Network, ...]:
    """All of them, by source."""
    from zoo import from_pytorchcv, from_timm, from_torchvision, from_transformers, from_vit_pytorch, handwritten

    sources = (from_pytorchcv, from_timm, from_transformers, from_torchvision, from_vit_pytorch, handwritten)
    return tuple(network for source in sources for network in source.networks())


def chosen(outputs: Any, output: str | int | None) -> Tensor:
    """The one output that is asked for."""
    found = outputs if output is None else outputs[output]
    if not isinstance(found, Tensor):
        raise TypeError(f"the output is of type {type(found).__name__}, not a tensor")
    return found


__all__ = ["FAMILIES", "Example", "Network", "call", "chosen", "networks", "randomise", "several"]
