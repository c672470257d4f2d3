"""Ways to alter examples at random, so that more is learned from them."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bhc.errors import BhcError, renamed
from bhc.examples.vocabulary import PADDING, UNKNOWN


class Augmentation(Protocol):
    """A way to alter a batch at random."""

    def __call__(self, images: Tensor, *, rng: Generator) -> Tensor:
        """Altered images, or sounds or texts, of the same shape and type, on the same device as the generator is."""


@dataclass(frozen=True)
class Shift:
    """Each image moved by up to ``padding`` pixels down and across, zeros moving in: for digits, which no mirror keeps.

    The numbers drawn stay on the device of the images, so that nothing waits for them.
    """

    padding: int = 1

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise BhcError(f"images cannot be padded by {self.padding} pixels", hint="use 0 to leave them in place")

    @renamed(generator="rng")
    def __call__(self, images: Tensor, *, rng: Generator) -> Tensor:  # (N, C, H, W)
        count, channels, height, width = images.shape
        device = images.device
        top, left = torch.randint(0, 2 * self.padding + 1, (2, count, 1), generator=rng, device=device)
        rows = top + torch.arange(height, device=device)  # (N, H)
        columns = left + self._across(count, width, rng)  # (N, W)
        padded = F.pad(images, (self.padding,) * 4)
        taken = padded.gather(2, rows[:, None, :, None].expand(-1, channels, -1, padded.shape[3]))
        return taken.gather(3, columns[:, None, None, :].expand(-1, channels, height, -1))

    def _across(self, count: int, width: int, rng: Generator) -> Tensor:  # (N or 1, W)
        """Where the columns of each image come from before it is moved."""
        return torch.arange(width, device=rng.device)[None]


@dataclass(frozen=True)
class CropAndFlip(Shift):
    """Each image moved by up to ``padding`` pixels down and across, zeros moving in, and every other one mirrored."""

    padding: int = 4

    def _across(self, count: int, width: int, rng: Generator) -> Tensor:
        device = rng.device
        across = torch.arange(width, device=device)
        mirrored = torch.randint(0, 2, (count, 1), generator=rng, device=device, dtype=torch.bool)
        return torch.where(mirrored, across.flip(0), across)


@dataclass(frozen=True)
class ShiftAndNoise:
    """Each recording earlier or later, louder or softer, and under noise as loud as a part of it.

    Up to ``shift`` samples of zeros move in. The factor of its loudness lies between one over ``gain`` and ``gain``.
    The noise is white, and its part of the recording's own size is drawn between 0 and ``noise``.
    """

    shift: int = 800
    gain: float = 2.0
    noise: float = 0.05

    def __post_init__(self) -> None:
        if self.shift < 0 or self.gain < 1 or self.noise < 0:
            raise BhcError(
                f"sounds shifted by {self.shift} samples, {self.gain:g} times as loud, with {self.noise:g} of noise",
                hint="a shift and a noise of 0 or more, and a gain of 1 or more",
            )

    @renamed(generator="rng")
    def __call__(self, images: Tensor, *, rng: Generator) -> Tensor:  # (N, C, T) int16
        count, channels, samples = images.shape
        device = images.device
        start = torch.randint(0, 2 * self.shift + 1, (count, 1, 1), generator=rng, device=device)
        places = start + torch.arange(samples, device=device)
        moved = F.pad(images, (self.shift, self.shift)).gather(2, places.expand(-1, channels, -1)).float()
        loud, noisy = torch.rand(2, count, 1, 1, generator=rng, device=device)
        size = moved.square().mean(2, keepdim=True).sqrt()
        hiss = torch.randn(moved.shape, generator=rng, device=device) * size * self.noise * noisy
        louder = (moved + hiss) * self.gain ** (2 * loud - 1)
        return louder.round().clamp(-32_768, 32_767).to(images.dtype)


@dataclass(frozen=True)
class DropWords:
    """Such a part of the words of each text replaced by the unknown word."""

    part: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.part <= 1:
            raise BhcError(f"the part of the words that is dropped lies between 0 and 1, given {self.part}")

    @renamed(generator="rng")
    def __call__(self, images: Tensor, *, rng: Generator) -> Tensor:  # (N, T) int32
        drawn = torch.rand(images.shape, generator=rng, device=images.device)
        return images.masked_fill((drawn < self.part) & (images != PADDING), UNKNOWN)


def augmentation_for(images: Tensor) -> Augmentation:
    """What suits examples as they are stored: pixels, samples of sound, or words."""
    suits: dict[torch.dtype, Augmentation] = {torch.int16: ShiftAndNoise(), torch.int32: DropWords()}
    return suits.get(images.dtype, CropAndFlip())
