"""Gradients that are far larger than usual."""

import torch
from torch import Tensor

LARGEST = 5.0  # norm of a step's gradients, in usual ones
LATEST = 100  # steps that tell what is usual


class SpikeLimit:
    """Cuts gradients down, all by one factor, to ``LARGEST`` times their usual norm.

    Noise that multiplies through the layers has heavy tails: now and then a draw gives gradients thousands of times as
    large as the others. Adam moves no farther for it at once, but its second moments remember such a step for a
    thousand others, in which everything drifts and nothing is learned; the draws get worse, and training is lost.
    """

    def __init__(self, device: torch.device, *, taken: int = 0) -> None:
        """After so many steps. The first ``LATEST`` of all are left as they are: they tell what is usual."""
        self._taken = torch.full((), float(taken), device=device)
        self._usual = torch.zeros((), device=device)  # mean over the latest steps, as they were cut

    def usual(self) -> float:
        """The usual norm; waits for the device."""
        return float(self._usual)

    def expect(self, usual: float) -> None:
        """Go on from what was usual before; where that was not kept, find out anew."""
        self._usual.fill_(usual)
        if usual == 0:
            self._taken.zero_()

    def divisor(self, norm: Tensor) -> Tensor:
        """What to divide gradients of this norm by: 1 for nearly all. Where it is not finite nothing is learned."""
        cut = (norm / (LARGEST * self._usual)).clamp(min=1).nan_to_num(nan=1, posinf=1)
        divisor = 1 + (cut - 1) * (self._taken >= LATEST)
        self._taken.add_(1)
        usual = self._usual.lerp(norm / divisor, 1 / self._taken.clamp(max=LATEST))
        self._usual.copy_(usual.where(norm.isfinite(), self._usual))
        return divisor


def gradient_norm(optimizer: torch.optim.Optimizer) -> Tensor:
    """That of all gradients together, infinite or no number where one is; stays on the device."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return torch.stack(torch._foreach_norm(gradients)).double().norm().float()
