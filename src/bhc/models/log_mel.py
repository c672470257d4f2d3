"""Loudness by pitch and time as a step of a network, so that samples go in."""

from functools import lru_cache
from math import log10, pi

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.errors import BhcError

LOWEST = 60.0  # Hz, the lower edge of the first band


class LogMel(nn.Module):
    """Logarithms of energies in bands of the mel scale: (N, 1, T) samples up to 1 -> (N, 1, bands, frames).

    A frame is ``window`` samples under a Hann window, ``hop`` after the one before; bands are triangles over its power
    spectrum. There is nothing to learn and nothing to store: four whole numbers tell everything.
    """

    floor = 1e-6  # added to energies: the logarithm of silence

    def __init__(self, rate: int, bands: int, window: int, hop: int) -> None:
        super().__init__()
        if min(rate, bands, window, hop) < 1 or bands > window // 2:
            raise BhcError(
                f"{bands} bands of windows of {window} samples, {hop} apart, {rate} a second",
                hint="whole numbers of 1 or more, and at most half as many bands as samples in a window",
            )
        self.rate, self.bands, self.window, self.hop = rate, bands, window, hop

    def forward(self, x: Tensor) -> Tensor:
        waves, shares = _on(self.rate, self.bands, self.window, x.device)
        spectrum = F.conv1d(x, waves, stride=self.hop)  # cosines, then sines
        return torch.log(F.conv1d(spectrum * spectrum, shares) + self.floor).unsqueeze(1)

    def bank(self) -> tuple[Tensor, Tensor]:
        """Windowed waves (W + 2, 1, W), cosines first, and the part of their power in each band (bands, W + 2, 1)."""
        return _bank(self.rate, self.bands, self.window)

    def frames(self, samples: int) -> int:
        """How many windows fit."""
        return (samples - self.window) // self.hop + 1

    def extra_repr(self) -> str:
        return f"rate={self.rate}, bands={self.bands}, window={self.window}, hop={self.hop}"


@lru_cache(maxsize=8)
def _bank(rate: int, bands: int, window: int) -> tuple[Tensor, Tensor]:
    with torch.device("cpu"):  # also where modules are built without storage
        places = torch.arange(window, dtype=torch.float64)
        frequencies = torch.arange(window // 2 + 1, dtype=torch.float64)
        hann = 0.5 - 0.5 * torch.cos(2 * pi * places / window)
        angles = 2 * pi * frequencies[:, None] * places / window
        waves = torch.cat([torch.cos(angles), torch.sin(angles)]) * hann
        edges = torch.linspace(_to_mel(LOWEST), _to_mel(rate / 2), bands + 2, dtype=torch.float64)
        hertz = 700 * (10 ** (edges / 2595) - 1)
        low, middle, high = hertz[:-2, None], hertz[1:-1, None], hertz[2:, None]
        at = frequencies * rate / window
        triangles = torch.minimum((at - low) / (middle - low), (high - at) / (high - middle)).clamp(min=0)
        return waves[:, None].float(), torch.cat([triangles, triangles], 1)[..., None].float()


@lru_cache(maxsize=8)
def _on(rate: int, bands: int, window: int, device: torch.device) -> tuple[Tensor, Tensor]:
    waves, shares = _bank(rate, bands, window)
    return waves.to(device), shares.to(device)


def _to_mel(hertz: float) -> float:
    return 2595 * log10(1 + hertz / 700)
