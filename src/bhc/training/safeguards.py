"""What keeps a run from being lost: gradients far larger than usual are cut, a network that sees nothing is noticed."""

from collections.abc import Sequence
from math import exp, log

import torch
from torch import Tensor

from bhc.errors import warn
from bhc.training.evaluation import Probe

LARGEST = 5.0  # norm of a step's gradients, in usual ones
LATEST = 100  # steps that tell what is usual
TINY = 1e-30  # what has no gradients has a logarithm too

NEAR_CHANCE = 0.97  # of the cross-entropy of guessing
LOOKS = 5  # in a row


class SpikeLimit:
    """Cuts gradients down, all by one factor, to ``LARGEST`` times their usual norm.

    Noise that multiplies through the layers has heavy tails: now and then a draw gives gradients thousands of times as
    large as the others. Adam moves no farther for it at once, but its second moments remember such a step for a
    thousand others, in which everything drifts and nothing is learned; the draws get worse, and training is lost.

    Usual is the geometric mean over the latest steps, as they were cut: a single spike hardly moves it. The first
    ``LATEST`` steps of a stage tell what is usual and are never cut.
    """

    def __init__(self, device: torch.device) -> None:
        self._seen = torch.zeros((), device=device)  # norms that were finite
        self._log = torch.zeros((), device=device)  # of the usual norm

    @property
    def usual(self) -> float:
        """The usual norm; waits for the device."""
        return exp(float(self._log))

    def state(self) -> tuple[float, float]:
        """What it has to know to go on; waits for the device."""
        return float(self._seen), float(self._log)

    def restore_(self, state: Sequence[float]) -> None:
        seen, logarithm = state
        self._seen.fill_(seen)
        self._log.fill_(logarithm)

    def divisor(self, norm: Tensor, finite: Tensor) -> Tensor:
        """What to divide gradients of this norm by: 1 for nearly all. One that is not ``finite`` tells nothing."""
        limit = (self._log + log(LARGEST)).where(self._seen >= LATEST, torch.inf)  # a logarithm, too
        divisor = (norm / limit.exp()).where(finite, 1.0).clamp(min=1)
        logarithm = norm.clamp(min=TINY).log().minimum(limit).nan_to_num(nan=0, posinf=0)
        self._seen.add_(finite)
        self._log.lerp_(logarithm, finite / self._seen.clamp(1, LATEST))
        return divisor


class NoLimit(SpikeLimit):
    """Gradients as they are. Without noise the large ones are those of examples that are still wrong: most of what is
    left to learn. LeNet-5-Caffe for pairs has five times the usual in one of sixty steps of consolidation.
    """

    def divisor(self, norm: Tensor, finite: Tensor) -> Tensor:
        return torch.ones_like(norm)


def gradient_norm(optimizer: torch.optim.Optimizer) -> Tensor:
    """That of all gradients together, infinite or no number where one of them is; stays on the device."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(gradients))
    return torch.linalg.vector_norm(norms, dtype=torch.float64).float()  # squares can be too large for less


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
            warn(
                f"the cross-entropy stays at that of guessing ({self.chance:.2f}): the divergence outweighs the data."
                " Use a smaller kl_weight or a larger num_data, warm up longer, or lower logvar_rate.",
                CollapseWarning,
            )
