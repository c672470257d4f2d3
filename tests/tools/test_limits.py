"""A short run of ``tools/limits``; the long one is run by hand."""

import pytest
import torch
from tools.limits.checking import check
from tools.limits.models import draw

LONG = pytest.mark.long


@pytest.mark.parametrize("first", [pytest.param(0), *(pytest.param(1000 * n, marks=LONG) for n in range(1, 9))])
def test_no_limit_is_broken_and_every_figure_that_is_named_can_be_had(first: int) -> None:
    tally = check(40, first, latency=first == 1000)
    assert not tally.failures, tally.failures[0]
    assert tally.cases == tally.emitted + tally.refused
    assert min(tally.emitted, tally.refused, tally.named) > 5


def test_models_are_drawn_from_their_seed() -> None:
    one, again, other = (draw(seed).network.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert one.keys() != other.keys() or any(not torch.equal(one[name], other[name]) for name in one)
