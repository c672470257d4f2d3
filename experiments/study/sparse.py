"""How a network with single weights cut is counted: stored sparse, column by column.

Each layer is a matrix of outputs x (inputs x kernel). Its non-zero values are kept with their row, and every column
with the place where it begins. Under "pruning" values, rows and places take 32 bits each; under "pruning and bits" a
value takes its layer's bits, rows and places as many as they need.
"""

from math import ceil, log2

from torch import Tensor

import bhc

WORD = 32


def pruning_ratio(small: bhc.Compressed) -> float:
    """Float weights of the original over the words of the sparse form."""
    words = sum(2 * nonzeros(weight) + columns(weight) + 1 for weight in _weights(small))
    return small.report.weights_before / words


def bits_ratio(small: bhc.Compressed) -> float:
    """Bits of the original over those of the sparse form."""
    total = sum(
        _bits(weight, value_bits) for weight, value_bits in zip(_weights(small), small.report.bits, strict=True)
    )
    return WORD * small.report.weights_before / total


def nonzeros(weight: Tensor) -> int:
    return int((weight != 0).sum())


def columns(weight: Tensor) -> int:
    return weight[0].numel()


def _bits(weight: Tensor, value_bits: int) -> int:
    kept = nonzeros(weight)
    row_bits = max(1, ceil(log2(weight.shape[0])))
    place_bits = max(1, ceil(log2(kept + 1)))
    return kept * (value_bits + row_bits) + (columns(weight) + 1) * place_bits


def _weights(small: bhc.Compressed) -> list[Tensor]:
    return [layer.module.weight.detach() for layer in small.network.layers]
