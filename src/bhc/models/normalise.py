"""Input normalisation as the network's own first step, so that raw pixels go in."""

from collections.abc import Sequence

from torch import Tensor, nn, tensor

from bhc.errors import BhcError


class Normalise(nn.Module):
    """``(x - mean) / std`` with one number each for all inputs, or one a channel; integers are welcome.

    Never one a pixel: it then commutes with dropping pixels. A mean of zero keeps a black
    background at exactly zero, where it neither feeds a unit nor adds noise to it.
    """

    mean: Tensor  # () or (C, 1, 1)
    std: Tensor  # like the mean

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", _statistic(mean))
        self.register_buffer("std", _statistic(std))
        if self.mean.shape != self.std.shape:
            raise BhcError(
                f"a mean of {_described(self.mean)} does not go with a standard deviation of {_described(self.std)}",
                hint="give one number each, or one a channel each",
            )

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.mean.dtype) - self.mean) / self.std


def _statistic(values: float | Sequence[float]) -> Tensor:
    """A number as it is, a sequence as a column of channels that images (N, C, H, W) broadcast against."""
    if isinstance(values, Sequence):
        return tensor([float(value) for value in values]).view(-1, 1, 1)
    return tensor(float(values))


def _described(statistic: Tensor) -> str:
    return f"{statistic.numel()} channels" if statistic.ndim else "one number"
