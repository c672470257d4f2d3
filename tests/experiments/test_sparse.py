"""Single weights are counted as they are stored."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.sparse import csc_matrix
from study import sparse
from study.choosing import emit
from study.training import Member

import bhc


def fake(weights_before: int, *layers: tuple[list[list[float]], int]) -> Any:
    """What the counts read of an emitted network."""
    modules = [SimpleNamespace(module=SimpleNamespace(weight=torch.tensor(weight))) for weight, _ in layers]
    report = SimpleNamespace(weights_before=weights_before, bits=tuple(bits for _, bits in layers))
    return SimpleNamespace(network=SimpleNamespace(layers=modules), report=report)


def test_a_sparse_layer_counts_values_rows_and_where_columns_begin() -> None:
    small = fake(1200, ([[0.0, 1.5, 0.0], [2.0, 0.0, 3.0]], 4))
    assert sparse.pruning_ratio(small) == 1200 / (3 + 3 + 4)
    # 3 values of 4 bits, 3 rows out of two (1 bit), 4 places from 0 to 3 (2 bits)
    assert sparse.bits_ratio(small) == 32 * 1200 / (3 * 4 + 3 * 1 + 4 * 2)


def test_a_sparse_layer_of_one_row_or_no_value_still_costs_something() -> None:
    small = fake(100, ([[1.0, 2.0, 3.0, 4.0]], 3), ([[0.0], [0.0]], 1))
    assert sparse.pruning_ratio(small) == 100 / ((4 + 4 + 5) + (0 + 0 + 2))
    assert sparse.bits_ratio(small) == 3200 / ((4 * 3 + 4 * 1 + 5 * 3) + (0 + 0 + 2 * 1))


def test_the_kernel_of_a_convolution_is_part_of_its_columns() -> None:
    small = fake(100, ([[[[1.0, 0.0], [0.0, 0.0]]], [[[0.0, 2.0], [0.0, 3.0]]]], 5))  # type: ignore[list-item]
    assert sparse.pruning_ratio(small) == 100 / (3 + 3 + 5)


@pytest.mark.parametrize("threshold", [-1.0, 1.0, 3.0])
def test_an_emitted_network_counts_as_scipy_stores_it(sparse_member: Member, threshold: float) -> None:
    (case,) = sparse_member.cases
    pruned, small = (
        emit(sparse_member, case.test, threshold, precision) for precision in (bhc.Float32(), bhc.VarianceBits(0.25))
    )
    stored = [csc_matrix(layer.module.weight.detach().numpy()) for layer in pruned.network.layers]
    words = sum(len(matrix.data) + len(matrix.indices) + len(matrix.indptr) for matrix in stored)
    assert sparse.pruning_ratio(pruned) == pytest.approx((64 * 300 + 300 * 100 + 1000) / words)

    bits = 0
    for layer, width in zip(small.network.layers, small.report.bits, strict=True):
        matrix = csc_matrix(layer.module.weight.detach().numpy())
        row_bits = max(1, int(matrix.shape[0] - 1).bit_length())
        place_bits = max(1, int(matrix.indptr[-1]).bit_length())
        bits += len(matrix.data) * width + len(matrix.indices) * row_bits + len(matrix.indptr) * place_bits
    assert sparse.bits_ratio(small) == pytest.approx(32 * (64 * 300 + 300 * 100 + 1000) / bits)
