"""One answer among several, taught by labels or by the pretrained network alone."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from bhc.errors import BhcError
from bhc.tasks.task import ABSENT, Task, register_task


def softened_divergence(outputs: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:  # (n, ...)
    """``T^2 KL(teacher || outputs)`` over the classes, axis 1, both softened by T; one number a place beyond it."""
    student, wanted = (F.log_softmax(logits / temperature, dim=1) for logits in (outputs, teacher))
    return temperature**2 * F.kl_div(student, wanted, log_target=True, reduction="none").sum(1)


def distillation(
    task: Task,
    outputs: Tensor,  # (n, C), those outside the context absent
    targets: Tensor,  # (n, ...)
    teacher: Tensor,  # (n, C), restricted alike
    *,
    teacher_weight: float,
    temperature: float,
) -> Tensor:  # (n,)
    """``(1 - w) loss + w distance``, the latter from the pretrained network's outputs."""
    loss = task.loss(outputs, targets)
    if teacher_weight == 0:
        return loss
    return (1 - teacher_weight) * loss + teacher_weight * task.distance(outputs, teacher, temperature=temperature)


class Classification(Task):
    """One answer an example: cross-entropy, and the part of wrong answers among the context's classes."""

    name = "classification"
    counts_mistakes = True
    has_answers = True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n, C), (n,) or (n, C) in part -> (n,)
        return F.cross_entropy(outputs, targets, reduction="none")

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) != targets).float()

    def distance(self, outputs: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
        return softened_divergence(outputs, teacher, temperature=temperature)

    def class_outputs(self, num_outputs: int) -> Sequence[Sequence[int]]:
        return [[label] for label in range(num_outputs)]

    def labels(self, targets: Tensor) -> Tensor | None:
        if targets.dim() != 1 or targets.is_floating_point() or targets.is_complex():
            raise BhcError(
                f"targets of a classification are one class number an example, given {tuple(targets.shape)}"
                f" {str(targets.dtype).removeprefix('torch.')}",
                hint="give (N,) whole numbers from 0 on; for other targets task= (--task), an instance of bhc.Task",
            )
        return targets.long()

    def of_kept(self, targets: Tensor, kept: Tensor) -> Tensor:
        return torch.searchsorted(kept, targets)


class Imitation(Classification):
    """No labels are needed: the pretrained network teaches, and an error is to answer otherwise than it does.

    Targets are its logits. An example belongs to the class that it gives.
    """

    name = "imitation"
    error_name = "disagreement"
    from_network = True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n, C), (n, C) -> (n,)
        return F.cross_entropy(outputs, torch.softmax(_restricted_like(outputs, targets), dim=1), reduction="none")

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) != _restricted_like(outputs, targets).argmax(1)).float()

    def labels(self, targets: Tensor) -> Tensor:
        return targets.argmax(1)

    def of_kept(self, targets: Tensor, kept: Tensor) -> Tensor:
        return targets.index_select(1, kept)


def _restricted_like(outputs: Tensor, targets: Tensor) -> Tensor:
    return targets.masked_fill(outputs <= ABSENT / 2, ABSENT)


register_task(Classification())
register_task(Imitation())
