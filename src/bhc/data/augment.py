"""Images shown a little differently each time, so that a network cannot learn them by heart."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bhc.errors import BhcError


class Augmentation(Protocol):
    """A way to alter a batch at random."""

    def __call__(self, images: Tensor, *, generator: Generator) -> Tensor:
        """Altered images (N, C, H, W) of the same type, on the same device; the generator is there too."""


@dataclass(frozen=True)
class CropAndFlip:
    """Each image moved by up to ``padding`` pixels down and across, zeros moving in, and every other one mirrored.

    The numbers drawn stay on the device of the images, so that nothing waits for them.
    """

    padding: int = 4

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise BhcError(f"images cannot be padded by {self.padding} pixels", hint="use 0 to leave them in place")

    def __call__(self, images: Tensor, *, generator: Generator) -> Tensor:  # (N, C, H, W)
        count, channels, height, width = images.shape
        device = images.device
        top, left = torch.randint(0, 2 * self.padding + 1, (2, count, 1), generator=generator, device=device)
        mirrored = torch.randint(0, 2, (count, 1), generator=generator, device=device, dtype=torch.bool)
        rows = top + torch.arange(height, device=device)  # (N, H)
        across = torch.arange(width, device=device)
        columns = left + torch.where(mirrored, across.flip(0), across)  # (N, W)
        padded = F.pad(images, (self.padding,) * 4)
        taken = padded.gather(2, rows[:, None, :, None].expand(-1, channels, -1, padded.shape[3]))
        return taken.gather(3, columns[:, None, None, :].expand(-1, channels, height, -1))
