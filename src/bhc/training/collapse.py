"""Noticing that the divergence has won and the network answers as if it had seen nothing."""

import warnings
from collections.abc import Sequence
from math import log

from bhc.training.evaluation import Probe

NEAR_CHANCE = 0.97  # of the cross-entropy of guessing
LOOKS = 5  # in a row


class CollapseWarning(UserWarning):
    """Learning has come to rest at the prior."""


class CollapseWatch:
    """Looks at the cross-entropy now and then, and warns once it has stayed at chance."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self.chance = sum(log(len(probe.classes)) for probe in probes) / len(probes)
        self._looks = 0

    def look(self, cross_entropy: float) -> None:
        self._looks = self._looks + 1 if self.chance > 0 and cross_entropy > NEAR_CHANCE * self.chance else 0
        if self._looks == LOOKS:
            warnings.warn(
                f"the cross-entropy stays at that of guessing ({self.chance:.2f}): the divergence outweighs the data."
                " Use a smaller kl_weight or a larger num_data, warm up longer, or lower logvar_rate.",
                CollapseWarning,
                stacklevel=2,
            )
