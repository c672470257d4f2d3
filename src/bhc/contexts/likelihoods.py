"""How the parts of a context are distributed, for a model that reads them back."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F


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
