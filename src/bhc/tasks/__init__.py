"""What counts: the loss that is learned from, and the error that networks are chosen and reported by."""

from bhc.tasks.classification import Classification, Imitation, distillation, softened_divergence
from bhc.tasks.task import (
    ABSENT,
    Task,
    checked_errors,
    checked_loss,
    checked_task,
    load_task,
    register_task,
    task_named,
    widened,
)
