"""What a sample of inputs tells of its domain: one set of numbers an input, of which the mean is taken."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bhc.errors import BhcError
from bhc.layers import LogMel

FULL_SCALE = 32_768.0
SPREAD = 10.0  # logarithms of energies lie this far apart


class Summary(ABC):
    """A way to look at inputs of a shape."""

    full_scale: float  # a hypernetwork is shown what is told over this

    @abstractmethod
    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, ...]:
        """That of what is told of one input."""

    @abstractmethod
    def of(self, x: Tensor) -> Tensor:  # (N, *image shape) -> (N, *shape)
        """What each input tells."""

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Raise if an input tells nothing."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data that describes it."""


@dataclass(frozen=True)
class InputAsItIs(Summary):
    """The input itself, as the paper has it, over the largest value that it can have."""

    full_scale: float = 255.0

    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, ...]:
        return image_shape

    def of(self, x: Tensor) -> Tensor:
        return x.float()

    def check(self, x: Tensor) -> None:
        if self.full_scale > 1 and 0 < x.max() <= 1:
            raise BhcError(
                "the domain sample lies between 0 and 1",
                hint=f"give inputs as the network takes them, here up to {self.full_scale:g}",
            )

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "input", "full_scale": self.full_scale}


@dataclass(frozen=True)
class Spectrum(Summary):
    """Of a recording, the logarithm of its mean energy in each band: how a voice sounds, whatever it says.

    The mean of samples would be zero for everybody.
    """

    rate: int = 8_000
    bands: int = 32
    window: int = 256
    hop: int = 160

    full_scale = 1.0

    @cached_property
    def _log_mel(self) -> LogMel:
        return LogMel(self.rate, self.bands, self.window, self.hop)

    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(image_shape) != 2 or image_shape[0] != 1 or self._log_mel.frames(image_shape[1]) < 1:
            raise BhcError(f"inputs of shape {image_shape} have no spectrum", hint="give recordings of one channel")
        return (self.bands,)

    def of(self, x: Tensor) -> Tensor:
        energies = self._log_mel(x.float() / FULL_SCALE)  # (N, 1, bands, frames)
        frames = energies.shape[-1]
        return (torch.logsumexp(energies[:, 0], dim=2) - torch.tensor(float(frames)).log()) / SPREAD

    def check(self, x: Tensor) -> None:
        flat = x.flatten(1)
        silent = (flat == flat[:, :1]).all(1)
        if silent.any():
            place = int(silent.nonzero()[0])
            raise BhcError(f"recording {place} of the domain sample is silent", hint="leave such recordings out")
        if x.is_floating_point() and float(x.abs().max()) <= 1:
            raise BhcError(
                "the domain sample lies between -1 and 1", hint="give samples as 16-bit numbers, up to 32,767"
            )

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "spectrum", **asdict(self)}


def summary_from_dict(data: dict[str, Any]) -> Summary:
    """The summary that ``to_dict`` described."""
    options = dict(data)
    match options.pop("kind"):
        case "input":
            return InputAsItIs(**options)
        case "spectrum":
            return Spectrum(**options)
        case other:
            raise BhcError(f"unknown kind of summary: {other!r}")
