"""The way around a residual block that has no weights of its own."""

from torch import Tensor, nn
from torch.nn import functional as F


class SubsampleAndPad(nn.Module):
    """Every ``stride``-th row and column, with channels of zeros before and after the given ones.

    It is the shortcut "A" of the residual networks for CIFAR: where a stage has smaller images and more
    channels than the one before it, what is carried along is thinned out and widened, never weighted.
    """

    def __init__(self, *, stride: int, before: int, after: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = before
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))

    def extra_repr(self) -> str:
        return f"stride={self.stride}, before={self.before}, after={self.after}"
