from itertools import product

import pytest
import torch

from bhc.emission import auroc


@pytest.mark.parametrize(
    ("inside", "outside", "area"),
    [
        ([1.0, 2.0], [3.0, 4.0], 1.0),
        ([3.0, 4.0], [1.0, 2.0], 0.0),
        ([1.0, 3.0], [2.0], 0.5),
        ([1.0, 2.0, 3.0], [2.0, 2.0], 0.5),  # each outside: over one, level with one, under one
        ([1.0, 1.0, 2.0], [1.0, 3.0], (1 + 3) / 6),  # two ties make one; 3 is over all
        ([7.0, 7.0], [7.0], 0.5),
        ([-float("inf"), 0.0], [0.0, float("inf")], (1.5 + 2) / 4),
    ],
)
def test_pairs_in_order_count_one_and_ties_half(inside: list[float], outside: list[float], area: float) -> None:
    assert auroc(torch.tensor(inside), torch.tensor(outside)) == area


def test_it_is_that_of_all_pairs() -> None:
    rng = torch.Generator().manual_seed(1)
    inside, outside = (torch.randint(0, 20, (size,), generator=rng) for size in (83, 131))
    wins = sum((b > a) + 0.5 * (b == a) for a, b in product(inside.tolist(), outside.tolist()))
    assert auroc(inside, outside) == wins / (83 * 131)
    assert auroc(outside, inside) == pytest.approx(1 - wins / (83 * 131))
