from math import log

import pytest

import bhc
from bhc.contexts import Context
from bhc.training import CollapseWarning, Probe
from bhc.training.measuring import LOOKS, CollapseWatch
from tests.training.runs import Fit


def watch(*sizes: int) -> CollapseWatch:
    """Contexts of so many classes each."""
    return CollapseWatch([Probe(Context(classes=tuple(range(size))), tuple(range(size))) for size in sizes])


def test_chance_is_the_mean_over_the_contexts() -> None:
    assert watch(2, 8).chance == pytest.approx((log(2) + log(8)) / 2)


def test_a_cross_entropy_that_stays_at_chance_is_told_once_with_the_remedy() -> None:
    looking = watch(2)
    for _ in range(LOOKS - 1):
        looking.look(log(2))  # any warning would be an error
    with pytest.warns(CollapseWarning, match=r"0\.69.*smaller kl_weight"):
        looking.look(log(2))
    looking.look(log(2))


def test_nothing_is_told_after_one_look_below_chance_or_of_one_class() -> None:
    looking, alone = watch(2), watch(1)
    for _ in range(3):
        for _ in range(LOOKS - 1):
            looking.look(0.75)
            alone.look(0.0)
        looking.look(0.3)


def test_a_run_that_collapses_says_so(fit: Fit) -> None:
    crushed = (bhc.Learn(steps=600, kl_weight=500.0, warm_up=0.0, contexts=4, examples=8),)
    with pytest.warns(CollapseWarning):
        fit(recipe=crushed)
