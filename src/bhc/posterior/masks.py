"""From log dropout rates and a threshold to the units that stay."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bhc.graph import Layer
from bhc.posterior.beliefs import LayerDropout


@dataclass(frozen=True)
class LayerMask:
    """What stays of one layer in K contexts."""

    keep_in: Tensor  # (K, I) bool
    keep_out: Tensor  # (K, O) bool
    rescued: Tensor  # (K,) bool: no unit had writer and reader under the threshold; the least noisy was kept
    keep_weight: Tensor | None = None  # (K or 1, O, I, *kernel) bool, where single weights go too


def find_masks(
    layers: Sequence[Layer],
    dropouts: Sequence[LayerDropout],
    threshold: Tensor,  # (K, 1)
    outputs: Tensor,  # (K, C) bool, the classes of each context
) -> tuple[LayerMask, ...]:
    """``m_z = [log alpha < tau]``, ``m_s = [log beta < tau]``, made to agree between layers.

    A unit lives if the scale that writes it and at least one that reads it are under the threshold; a reader
    whose own scale is over it skips the unit. After a flatten each position has a reader of its own. The one
    input scale of a convolution covers all of its input and therefore decides nothing. At least one unit is
    kept everywhere, and the last layer keeps just the context's classes. Where single weights have rates, a unit's
    writer and reader are the least noisy weights that lead to it and from it.
    """
    contexts = outputs.shape[0]
    keep_in: list[Tensor] = []
    rescued: list[Tensor] = []
    keep_out: list[Tensor] = []
    for index, (layer, dropout) in enumerate(zip(layers, dropouts, strict=True)):
        units = layer.num_inputs // layer.positions
        read = _or_kept(_of_readers(layer, dropout, first=index == 0), contexts, layer.num_inputs, outputs)
        written = _or_kept(_of_writers(dropouts[index - 1]) if index else None, contexts, units, outputs)
        reads, alive, forced = _agree(read.reshape(contexts, units, layer.positions), written, threshold)
        keep_in.append(reads.flatten(1))
        rescued.append(forced)
        if index:
            keep_out.append(alive)
    keep_out.append(outputs)
    keep_weight = [_under(dropout.weights, threshold) for dropout in dropouts]
    return tuple(LayerMask(*mask) for mask in zip(keep_in, keep_out, rescued, keep_weight, strict=True))


def _of_readers(layer: Layer, dropout: LayerDropout, *, first: bool) -> Tensor | None:  # (K, I)
    if first and layer.is_convolution:
        return None  # it reads images, and all of their channels arrive
    if dropout.weights is not None:
        return dropout.weights.flatten(3).amin((1, 3)) if layer.is_convolution else dropout.weights.amin(1)
    return None if layer.is_convolution else dropout.in_log_dropout


def _of_writers(dropout: LayerDropout) -> Tensor | None:  # (K, O)
    return dropout.out_log_dropout if dropout.weights is None else dropout.weights.flatten(2).amin(2)


def _under(rates: Tensor | None, threshold: Tensor) -> Tensor | None:
    """Single weights under the threshold, (K, O, I, *kernel)."""
    return None if rates is None else rates < threshold.reshape(-1, *[1] * (rates.dim() - 1))


def _agree(
    read: Tensor,  # (K, U, P) log dropout of each position's reader
    written: Tensor,  # (K, U) log dropout of each unit's writer
    threshold: Tensor,  # (K, 1)
) -> tuple[Tensor, Tensor, Tensor]:
    """Positions read (K, U, P), units alive (K, U) and where one had to be rescued (K,)."""
    reads = read < threshold[..., None]
    alive = (written < threshold) & reads.any(2)
    forced = ~alive.any(1)
    noisiest_link = torch.maximum(written, read.amin(2))
    quietest = F.one_hot(noisiest_link.argmin(1), alive.shape[1]).bool()
    alive = alive | (forced[:, None] & quietest)
    # A rescued unit that nobody reads is read at its least noisy position.
    unread = ~reads.any(2, keepdim=True)
    reads = reads | (unread & F.one_hot(read.argmin(2), read.shape[2]).bool())
    return reads & alive[..., None], alive, forced


def _or_kept(log_dropout: Tensor | None, contexts: int, count: int, like: Tensor) -> Tensor:
    """The rates, or minus infinity (always kept) where the layer has no such scale."""
    if log_dropout is None:
        return torch.full((contexts, count), -torch.inf, device=like.device)
    return log_dropout.expand(contexts, count)
