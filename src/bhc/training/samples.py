"""Which part of a data set is looked at, or kept with a run; and what the pretrained network says of it."""

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from bhc.examples import Examples, Inputs, Split, batches, each, several
from bhc.hypernet import ConditionalNetwork
from bhc.training.progress import Progress, Silent

VALIDATION_PER_CLASS = 500
MOST_BYTES = 1 << 26  # of a validation sample: inputs, targets, and what the pretrained network says of them
CHUNK = 1024

Own = TypeVar("Own", bound=Examples)


@torch.no_grad()
def answers_of(network: ConditionalNetwork, inputs: Inputs, progress: Progress | None = None) -> Tensor:  # (n, O, ...)
    """What the pretrained network says of examples, on the CPU."""
    shown, answers = progress or Silent(), list[Tensor]()
    shown.begin("asking the pretrained network", len(several(inputs)[0]))
    for part in batches(inputs, CHUNK):
        answers.append(network.base_model(each(part, lambda tensor: tensor.to(network.device))).cpu())
        shown.update(sum(map(len, answers)), {})
    shown.end()
    return torch.cat(answers)


def looked_at(examples: Examples, *, most: int = 512) -> Tensor:  # (n, ...)
    """What tells of a domain: all that is in memory, or some of what has to be read, evenly spread."""
    if not isinstance(examples, Split):
        count = min(most, len(examples))
        examples = examples.at(torch.arange(count) * len(examples) // count)
    return examples.loaded().tensor


def sample_for(network: ConditionalNetwork, validation: Examples) -> Split:
    """The part of a validation set that a run keeps: the first of each class, no more than a stated size.

    Floats are rounded to 16 bits where the pretrained network then gives every answer that it gave.
    """
    sample = capped(validation, most=_room_for(network, validation.at(slice(0, 1)).loaded())).loaded()
    sample = capped(sample, most=_room_for(network, sample))  # texts are as long as the longest of them by now
    return _in_half(network, with_answers(network, sample))


def _room_for(network: ConditionalNetwork, examples: Split) -> int:
    """How many such examples a run keeps at most."""
    one = examples.at(slice(0, 1))
    parts = [*several(one.inputs), answers_of(network, one.inputs)]
    parts += [own for own in (one.labels, one.targets) if own is not None]
    return max(MOST_BYTES // sum(tensor.nbytes for tensor in parts), 1)


def with_answers(network: ConditionalNetwork, sample: Split) -> Split:
    """With the pretrained network's answers as targets, where these are what its task compares with."""
    if not network.task.from_network:
        return sample
    answers = answers_of(network, sample.inputs)
    return replace(sample, targets=answers, labels=network.task.labels(answers))


def capped(examples: Own, *, limit: int = VALIDATION_PER_CLASS, most: int | None = None) -> Own:
    """The first ``limit`` examples of each class, in their order, and at most so many in all; without classes, as many
    as ten would have, evenly spread."""
    if examples.labels is None:
        count = min(len(examples), 10 * limit, most or len(examples))
        return examples.at(torch.arange(count) * len(examples) // count)
    classes = examples.labels.unique()
    if most is not None:
        limit = max(min(limit, most // len(classes)), 1)
    kept = torch.zeros(len(examples), dtype=torch.bool)
    for label in classes:
        kept[(examples.labels == label).nonzero().flatten()[:limit]] = True
    return examples.at(kept)


def _in_half(network: ConditionalNetwork, sample: Split) -> Split:
    tensors = several(sample.inputs)
    if not network.task.has_answers or not any(tensor.dtype == torch.float32 for tensor in tensors):
        return sample
    rounded = each(sample.inputs, lambda tensor: tensor.half().float() if tensor.is_floating_point() else tensor)
    if not all(tensor.isfinite().all() for tensor in several(rounded) if tensor.is_floating_point()):
        return sample
    same = torch.equal(answers_of(network, rounded).argmax(1), answers_of(network, sample.inputs).argmax(1))
    return replace(sample, inputs=rounded) if same else sample
