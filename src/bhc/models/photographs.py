"""How bright photographs are, channel by channel: what networks for them subtract and divide by."""

from collections.abc import Sequence
from dataclasses import dataclass

from bhc.layers import Normalise


@dataclass(frozen=True)
class PixelStatistics:
    """Mean and standard deviation of the red, the green and the blue pixels as parts of full scale."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def normalise(self, *, channels: int, full_scale: float) -> Normalise:
        """The first step of a network; images that are not in three colours get the average of the three."""
        if channels != 3:
            return Normalise(_average(self.mean) * full_scale, _average(self.std) * full_scale)
        return Normalise(
            [mean * full_scale for mean in self.mean],
            [std * full_scale for std in self.std],
        )


CIFAR10 = PixelStatistics(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
IMAGENET = PixelStatistics(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)
