"""Input normalisation as the network's own first step, so that raw pixels go in."""

from torch import Tensor, nn, tensor


class Normalise(nn.Module):
    """``(x - mean) / std`` with one number each for all inputs; integers are welcome.

    One number, not one a pixel: it then commutes with dropping pixels. A mean of zero keeps a black
    background at exactly zero, where it neither feeds a unit nor adds noise to it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        self.register_buffer("mean", tensor(float(mean)))
        self.register_buffer("std", tensor(float(std)))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.mean.dtype) - self.mean) / self.std
