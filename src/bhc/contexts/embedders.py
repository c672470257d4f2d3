"""How an encoded context becomes the embedding that all weight generators read, and how its parts are read back."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

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


class Likelihood(ABC):
    """The distribution of one encoded part, told by ``num_numbers`` numbers a context."""

    @property
    @abstractmethod
    def num_numbers(self) -> int:
        """How many numbers tell the distribution."""

    @abstractmethod
    def nll(self, numbers: Tensor, part: Tensor) -> Tensor:  # (K, num_numbers), (K, ...) -> (K,)
        """``-log p(part)`` of each context, up to a constant."""


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Zeros and ones, each told by its logit; a value between them counts as so much of a one."""

    count: int

    @property
    def num_numbers(self) -> int:
        return self.count

    def nll(self, numbers: Tensor, part: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(numbers, part, reduction="none").sum(1)


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Numbers told by their means, all with one known standard deviation: how closely they are to be read."""

    count: int
    std: float

    @property
    def num_numbers(self) -> int:
        return self.count

    def nll(self, numbers: Tensor, part: Tensor) -> Tensor:
        return 0.5 * ((part.flatten(1) - numbers) / self.std).square().sum(1)


@dataclass(frozen=True)
class PooledGaussian(Likelihood):
    """An image (K, C, H, W) by the means of its ``side`` x ``side`` regions: an embedder sees it no finer."""

    channels: int
    side: int
    std: float

    @property
    def num_numbers(self) -> int:
        return self.channels * self.side**2

    def nll(self, numbers: Tensor, part: Tensor) -> Tensor:
        return Gaussian(self.num_numbers, self.std).nll(numbers, F.adaptive_avg_pool2d(part, self.side))
