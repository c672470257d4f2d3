import json

import pytest

from bhc import contexts
from bhc.contexts import (
    BinaryBudget,
    Budgets,
    ClassSubsets,
    ConsecutivePairs,
    FeatureSubsets,
    InputDomains,
    Joint,
    ListedFeatures,
    ListedSubsets,
    RandomSubsets,
)
from bhc.errors import BhcError

SPACES = {
    "classes": ClassSubsets(10),
    "named classes": ClassSubsets(3, RandomSubsets((1, 2), held_out=((0, 1),)), ("cat", "dog", "eel"), 0.5),
    "pairs": ClassSubsets(10, ConsecutivePairs()),
    "domain": InputDomains((3, 8, 6), RandomSubsets((2,)), 1.0),
    "listed": ClassSubsets(10, ListedSubsets(((1, 2), (3,)), (2, 1))),
    "features": FeatureSubsets((1, 2, 3), ListedFeatures(((1, 2), (0,)))),
    "budget": BinaryBudget((0.2, 3.0)),
    "budgets": Budgets((0.2, 3.0)),
    "joint": Joint(ClassSubsets(10), InputDomains((1, 28, 28)), Budgets()),
    "all at once": Joint(
        ClassSubsets(10), InputDomains((1, 8, 8)), FeatureSubsets((1, 8, 8)), BinaryBudget(), missing=0.3
    ),
    "nothing missing": Joint(ClassSubsets(10), Budgets(), missing=0),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_space_comes_back_from_its_description(space):
    description = json.loads(json.dumps(space.to_dict()))
    restored = contexts.from_dict(description)
    assert type(restored) is type(space)
    assert restored.to_dict() == space.to_dict()
    assert restored.conditions == space.conditions
    assert restored.optional == space.optional


@pytest.mark.parametrize(
    "name", ["classes", "named classes", "pairs", "listed", "domain", "features", "budget", "budgets"]
)
def test_a_single_space_comes_back_equal(name):
    assert contexts.from_dict(json.loads(json.dumps(SPACES[name].to_dict()))) == SPACES[name]


@pytest.mark.parametrize("kind", [None, "weather", 3])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(BhcError, match="unknown kind of context"):
        contexts.from_dict({"kind": kind})


def test_a_condition_that_was_not_trained_for_is_refused():
    with pytest.raises(BhcError, match="not trained for a condition on budget, weather") as caught:
        ClassSubsets(10).resolve({"classes": [3], "budget": 1, "weather": "fair"})
    assert caught.value.hint == "it takes: classes"


@pytest.mark.parametrize("request_", [{}, {"classes": None}])
def test_a_missing_condition_is_refused(request_):
    with pytest.raises(BhcError, match="the context lacks classes"):
        ClassSubsets(10).resolve(request_)


def test_a_condition_that_is_none_was_not_given():
    assert ClassSubsets(10).resolve({"classes": [3], "budget": None}).budget is None


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_every_condition_is_described(space):
    assert set(space.describe()) == set(space.conditions)
    assert all(space.describe().values())


def test_every_network_fits_a_space_without_classes():
    Budgets().check_network(3)
    InputDomains((1, 2, 2)).check_network(3)
