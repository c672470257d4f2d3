"""What counts. A task says what outputs are for: the loss that is learned from, the error that networks are chosen and
reported by, and which outputs belong to a class."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bhc.errors import BhcError, NotRegisteredError
from bhc.plugins import found_anywhere, made_by

# What stands in the place of an output that a context takes away. Far below any logit, and finite: the masked entries
# must not turn a gradient into NaN.
ABSENT = -1e9
OUTPUTS = 1  # their axis
VARIABLE = "BHC_TASK"  # names the function of a task; processes that we start read it too


class Task(ABC):
    """What a network is for. One of your own is a class with a name, a loss and an error.

    Outputs are ``(n, outputs, ...)`` as the wrapped network gives them; those that a context takes away are ``ABSENT``,
    so that their numbering is always the original's. Targets are what the data set gives, of the same n examples.

    >>> class Regression(bhc.Task):
    ...     name = "regression"
    ...     error_name = "absolute error"
    ...
    ...     def loss(self, outputs, targets):
    ...         return (outputs - targets).square().mean(1)
    ...
    ...     def error(self, outputs, targets):
    ...         return (outputs - targets).abs().mean(1).clamp(max=1)
    """

    name: ClassVar[str]  # by which a run knows it
    error_name: ClassVar[str] = "error"
    higher_is_better: ClassVar[bool] = False  # then 1 - error is what goes by that name, such as an overlap
    counts_mistakes: ClassVar[bool] = False  # whether the error of an example is 0 or 1
    has_answers: ClassVar[bool] = False  # whether an output a class is there to be chosen: probabilities, flags
    from_network: ClassVar[bool] = False  # whether targets are what the pretrained network says, and not the data set's

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n,)
        """What is learned from, of each example: any finite number, smaller is better."""

    @abstractmethod
    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n,)
        """What is reported and limited, of each example: from 0, all right, to 1."""

    def distance(self, outputs: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:  # (n,)
        """How far outputs are from those of the pretrained network, which teaches; by default squared, their mean."""
        apart = (outputs - teacher).square().masked_fill(outputs <= ABSENT / 2, 0.0)
        there = (outputs > ABSENT / 2).flatten(1).sum(1).clamp(min=1)
        return apart.flatten(1).sum(1) / there

    def class_outputs(self, num_outputs: int) -> Sequence[Sequence[int]] | None:
        """The outputs that belong to each class; those of no class always stay. None: there are no classes."""
        return None

    def labels(self, targets: Tensor) -> Tensor | None:  # (n,) int64
        """The class of each example, by which contexts of classes draw; None where targets do not say."""
        return None

    def of_kept(self, targets: Tensor, kept: Tensor) -> Tensor | None:
        """Targets for outputs of which only some are there, ascending; None: outputs are widened instead."""
        return None

    def membership(self, num_outputs: int) -> Tensor | None:  # (C, O) bool
        """Which outputs each class has, those of no class with every one; None where there are no classes."""
        by_class = self.class_outputs(num_outputs)
        if by_class is None:
            return None
        table = torch.zeros(len(by_class), num_outputs, dtype=torch.bool)
        for label, own in enumerate(by_class):
            if not own or not all(isinstance(place, int) and 0 <= place < num_outputs for place in own):
                raise BhcError(
                    f"task {self.name!r}: class {label} has the outputs {list(own)}, and the network"
                    f" {num_outputs} outputs",
                    hint="class_outputs gives the numbers of one or more outputs for each class",
                )
            table[label, list(own)] = True
        return table | ~table.any(0)

    def shown(self, error: float) -> float:
        """An error in percent as it goes by its name."""
        return 100 - error if self.higher_is_better else error

    def describe(self) -> dict[str, Any]:
        """What a run and a file say of it."""
        return {"name": self.name, "error_name": self.error_name, "higher_is_better": self.higher_is_better}


def widened(outputs: Tensor, kept: Sequence[int], num_outputs: int) -> Tensor:
    """Outputs of which only some are there, in the original's numbering."""
    if len(kept) == num_outputs:
        return outputs
    wide = outputs.new_full((outputs.shape[0], num_outputs, *outputs.shape[2:]), ABSENT)
    wide[:, list(kept)] = outputs
    return wide


def checked_loss(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:  # (n,)
    """The loss of each example, if that is what the task gives."""
    return _one_each(task, "loss", task.loss(outputs, targets), len(outputs))


def checked_errors(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:  # (n,)
    """The error of each example, if it is a number from 0 to 1."""
    errors = _one_each(task, "error", task.error(outputs, targets), len(outputs))
    if not task.counts_mistakes and len(errors):
        low, high = float(errors.min()), float(errors.max())
        if not 0 <= low <= high <= 1:
            raise BhcError(
                f"task {task.name!r}: error gives numbers from {low:g} to {high:g}",
                hint="the error of an example lies between 0, all right, and 1; divide by the most there can be",
            )
    return errors


def _one_each(task: Task, question: str, given: Any, count: int) -> Tensor:
    if isinstance(given, Tensor) and given.shape == (count,):
        return given
    what = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
    raise BhcError(
        f"task {task.name!r}: {question} gives {what} for {count} examples",
        hint="one number an example: use reduction='none', and the mean over all other axes",
    )


_TASKS: dict[str, Task] = {}


def checked_task(task: Any) -> Task:
    """What is given as a task, if it is one."""
    if not isinstance(task, Task):
        raise BhcError(f"a task is an instance of a subclass of bhc.Task, given {task!r}", hint="MyTask(), not MyTask")
    name = getattr(task, "name", "")
    if not isinstance(name, str) or not name:
        raise BhcError(f"{type(task).__name__} has no name", hint="set name = '...' in the class")
    return task


def register_task(task: Task) -> Task:
    """Make a task known by its name, so that runs which were trained for it can be loaded."""
    name = checked_task(task).name
    known = _TASKS.get(name)
    if known is not None and type(known) is not type(task):
        raise BhcError(f"there is a task {name!r} already: {type(known).__name__}", hint="give yours another name")
    _TASKS[name] = task
    return task


def load_task(where: str) -> Task:
    """The task that a user's function gives, ``package.module:function`` or ``file.py:function``; or an own class.

    It is known by its name from now on, also in processes that are started later.
    """
    made = made_by(where)
    if not isinstance(made, Task):
        raise BhcError(
            f"{where} gives a value of type {type(made).__name__}, and no task",
            hint="name a subclass of bhc.Task, or a function that returns an instance of one",
        )
    register_task(made)
    os.environ[VARIABLE] = found_anywhere(where)
    return made


def task_named(name: str) -> Task:
    """The registered task of a name, or the one that the environment names."""
    if name not in _TASKS and os.environ.get(VARIABLE):
        load_task(os.environ[VARIABLE])
    if name not in _TASKS:
        raise NotRegisteredError(
            f"the run was trained for the task {name!r}, which is not known here",
            "register_task",
            instead="give it: --task FILE.py:FUNCTION, in Python bhc.load(path, task=...)",
        )
    return _TASKS[name]


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
