import warnings
from math import log

import pytest
import torch

import bhc
from bhc.contexts import Context
from bhc.data import DataSet
from bhc.training import CollapseWarning, Silent
from bhc.training.evaluation import Probe
from bhc.training.safeguards import LOOKS, CollapseWatch


def watch(*sizes: int) -> CollapseWatch:
    """Contexts of so many classes each."""
    return CollapseWatch([Probe(Context(classes=tuple(range(size))), tuple(range(size))) for size in sizes])


def test_chance_is_the_mean_over_the_contexts() -> None:
    assert watch(2, 8).chance == pytest.approx((log(2) + log(8)) / 2)


def test_a_cross_entropy_that_stays_at_chance_is_told_once_with_the_remedy() -> None:
    looking = watch(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(LOOKS - 1):
            looking.look(log(2))
    with pytest.warns(CollapseWarning, match=r"guessing \(0\.69\).*smaller kl_weight"):
        looking.look(log(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        looking.look(log(2))


def test_one_look_below_chance_starts_the_count_anew() -> None:
    looking = watch(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            for _ in range(LOOKS - 1):
                looking.look(0.75)
            looking.look(0.3)


def test_one_class_has_no_chance_to_compare_with() -> None:
    looking = watch(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2 * LOOKS):
            looking.look(0.0)


def test_a_run_that_collapses_says_so(digits: DataSet, pretrained: torch.nn.Sequential) -> None:
    model = bhc.wrap(pretrained, bhc.ClassSubsets(10), example_input=digits.train.inputs[:1])
    crushed = (bhc.Learn(steps=600, kl_weight=500.0, warm_up=0.0, contexts=4, examples=8),)
    with pytest.warns(CollapseWarning):
        bhc.fit(model, digits.train, digits.validation, recipe=crushed, progress=Silent())
