"""From an encoded context to the embedding that all heads read."""

from collections.abc import Sequence
from math import prod

from torch import Generator, Tensor, nn
from torch.nn import init

from bhc.contexts import (
    BinaryBudget,
    Budgets,
    ClassSubsets,
    ContextSpace,
    FeatureSubsets,
    InputDomains,
    Joint,
    SingleContext,
)
from bhc.errors import BhcError

EMBEDDING_WIDTH = 100
POOLED_SIDE = 4


class VectorEmbedder(nn.Sequential):
    """The paper's for class subsets: two fully connected layers of width 100.

    The second ends in tanh: a ReLU there dies at useful learning rates, and with it the conditioning.
    """

    def __init__(self, num_features: int, width: int) -> None:
        super().__init__(nn.Linear(num_features, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh())


class ImageEmbedder(nn.Sequential):
    """The paper's for input domains: two convolutions of 20 filters; here pooled and projected to the width.

    Unpooled, 20 maps of MNIST's size are 15,680 numbers, and a full generator on them eight billion weights.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__(
            nn.Conv2d(channels, 20, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(20, 20, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(POOLED_SIDE),
            nn.Flatten(),
            nn.Linear(20 * POOLED_SIDE**2, width),
            nn.Tanh(),
        )


class BudgetEmbedder(nn.Linear):
    """A budget beside other conditions. No bias: a budget of 0 adds nothing to what they embed to."""

    def __init__(self, width: int) -> None:
        super().__init__(1, width, bias=False)


class JointEmbedder(nn.Module):
    """Sum of the parts' embeddings, mixed by one more layer so that conditions can act on each other."""

    def __init__(self, parts: Sequence[nn.Module], width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.mix = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.Tanh())

    def forward(self, *encodings: Tensor) -> Tensor:
        total = sum(part(encoding) for part, encoding in zip(self.parts, encodings, strict=True))
        return self.mix(total)


def build_embedder(space: ContextSpace, width: int, *, rng: Generator | None = None) -> tuple[nn.Module, int]:
    """The embedder for a context space, its weights drawn from ``rng``, and the width it embeds to.

    Where there is one context only there is nothing to embed: the offsets of all maps are the parameters. A binary
    budget by itself is one number that the maps can read as it is: a linear embedding would add nothing but width,
    and a budget of 0 leaves the offsets as they are.
    """
    if isinstance(space, SingleContext | BinaryBudget):
        return nn.Identity(), 1 if isinstance(space, BinaryBudget) else 0
    embedder = VectorEmbedder(1, width) if isinstance(space, Budgets) else _embedder(space, width)
    for module in embedder.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            init.kaiming_uniform_(module.weight, nonlinearity="relu", generator=rng)
            if module.bias is not None:
                init.zeros_(module.bias)
    return embedder, width


def _embedder(space: ContextSpace, width: int) -> nn.Module:
    match space:
        case ClassSubsets():
            return VectorEmbedder(space.num_classes, width)
        case InputDomains():
            shape = space.domain_shape
            return ImageEmbedder(shape[0], width) if len(shape) == 3 else VectorEmbedder(prod(shape), width)
        case FeatureSubsets():
            return VectorEmbedder(space.num_features, width)
        case Budgets():
            return BudgetEmbedder(width)
        case Joint():
            return JointEmbedder([_embedder(part, width) for part in space.spaces], width)
    raise BhcError(f"no embedder for contexts of type {type(space).__name__}")
