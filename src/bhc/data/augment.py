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
class Shift:
    """Each image moved by up to ``padding`` pixels down and across, zeros moving in: for digits, which no mirror keeps.

    The numbers drawn stay on the device of the images, so that nothing waits for them.
    """

    padding: int = 1

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise BhcError(f"images cannot be padded by {self.padding} pixels", hint="use 0 to leave them in place")

    def __call__(self, images: Tensor, *, generator: Generator) -> Tensor:  # (N, C, H, W)
        count, channels, height, width = images.shape
        device = images.device
        top, left = torch.randint(0, 2 * self.padding + 1, (2, count, 1), generator=generator, device=device)
        rows = top + torch.arange(height, device=device)  # (N, H)
        columns = left + self._across(count, width, generator)  # (N, W)
        padded = F.pad(images, (self.padding,) * 4)
        taken = padded.gather(2, rows[:, None, :, None].expand(-1, channels, -1, padded.shape[3]))
        return taken.gather(3, columns[:, None, None, :].expand(-1, channels, height, -1))

    def _across(self, count: int, width: int, generator: Generator) -> Tensor:  # (N or 1, W)
        """Where the columns of each image come from before it is moved."""
        return torch.arange(width, device=generator.device)[None]


@dataclass(frozen=True)
class CropAndFlip(Shift):
    """Each image moved by up to ``padding`` pixels down and across, zeros moving in, and every other one mirrored."""

    padding: int = 4

    def _across(self, count: int, width: int, generator: Generator) -> Tensor:
        device = generator.device
        across = torch.arange(width, device=device)
        mirrored = torch.randint(0, 2, (count, 1), generator=generator, device=device, dtype=torch.bool)
        return torch.where(mirrored, across.flip(0), across)
