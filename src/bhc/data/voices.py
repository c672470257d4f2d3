"""More voices than there are speakers: recordings at other speeds."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor

from bhc.data.dataset import DataSet, Split
from bhc.errors import BhcError


def with_voices(dataset: DataSet, speeds: Sequence[float]) -> DataSet:
    """The data set with all recordings once more at each of these speeds, as sources of their own; test data stays.

    Played faster a voice is higher, and its owner smaller. From a handful of speakers one learns what these sound like;
    from many voices between and beyond them, what voices have in common.
    """
    if not speeds or any(not (isfinite(speed) and speed > 0) or speed == 1 for speed in speeds):
        raise BhcError(f"speeds of {list(speeds)}", hint="give some numbers around 1, such as 0.8 and 1.25, without 1")
    if not dataset.source_names:
        raise BhcError(f"{dataset.name} does not say who speaks", hint="make voices of a data set with sources: fsdd")
    speakers = dataset.source_names
    train, validation = (_more(split, speeds, len(speakers)) for split in (dataset.train, dataset.validation))
    names = [f"{name} at {speed:g}" for speed in speeds for name in speakers]
    return replace(dataset, train=train, validation=validation, source_names=(*speakers, *names))


def _more(split: Split, speeds: Sequence[float], speakers: int) -> Split:
    assert split.sources is not None
    return Split(
        torch.cat([split.images, *(at_speed(split.images, speed) for speed in speeds)]),
        split.labels.repeat(len(speeds) + 1),
        torch.cat([split.sources + speakers * place for place in range(len(speeds) + 1)]),
    )


def at_speed(recordings: Tensor, speed: float) -> Tensor:  # (N, C, T) int16
    """Recordings faster or slower around their middle, between two samples on a straight line; silence moves in."""
    samples = recordings.shape[-1]
    middle = (samples - 1) / 2
    places = middle + (torch.arange(samples, dtype=torch.float64) - middle) * speed
    below = places.floor().long()
    part = (places - below).float()
    padded = torch.nn.functional.pad(recordings.float(), (1, 1))
    left, right = (padded.index_select(-1, (index + 1).clamp(0, samples + 1)) for index in (below, below + 1))
    return torch.lerp(left, right, part).round().to(recordings.dtype)
