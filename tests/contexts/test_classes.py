from dataclasses import replace

import numpy as np
import pytest
import torch

from bhc.contexts import ClassSubsets, Context, ContextBatch, RandomSubsets
from bhc.errors import BhcError

PLAIN = ClassSubsets(10)
NAMED = ClassSubsets(3, class_names=("cat", "dog", "eel"))
UNEQUAL = ClassSubsets(5, concentration=1.0)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("space", "classes", "expected"),
    [
        *(
            (PLAIN, classes, (3, 4))
            for classes in ([3, 4], (4, 3), {3, 4}, range(3, 5), np.array([4, 3]), torch.tensor([3, 4]), ["3", 4])
        ),
        (NAMED, ["eel", "cat"], (0, 2)),
        (NAMED, ["eel", 1], (1, 2)),
        (ClassSubsets(3, class_names=("2", "1", "0")), ["2"], (0,)),  # a name before it is a number
        (ClassSubsets(10, concentration=1.0), {3: 1.0, 4: 1e-50, 5: 0.5}, (3, 5)),  # 4 is nothing beside the others
    ],
)
def test_classes_come_in_any_collection_and_order_by_number_and_by_name(space, classes, expected):
    assert space.resolve({"classes": classes}).classes == expected


NAN, INFINITY = float("nan"), float("inf")
OF_TEN, OF_NAMED = "the classes are 0 to 9", "the classes are 0 to 2 (cat, dog, eel)"
A_LIST, A_RATE = "for example classes=[3, 4]", "for example classes={3: 0.9, 4: 0.1}"


@pytest.mark.parametrize(
    ("space", "classes", "problem", "hint"),
    [
        *((NAMED, [label], "unknown class", OF_NAMED) for label in ("fox", "", None, [1], NAN, 3.0, 3.7)),
        *((PLAIN, [3, label], f"class {label} is out of range", OF_TEN) for label in (-1, 10, 99, "10")),
        *((PLAIN, [label], "unknown class", OF_TEN) for label in (np.float32(3.7), torch.tensor(3.7), INFINITY)),
        (PLAIN, [], "the class subset is empty", "0 to 9"),
        *((PLAIN, classes, "class 3 is named twice", "once") for classes in ([3, 4, 3], ["3", 3])),
        (NAMED, ["dog", 1], "class 1 is named twice", "once"),
        *((PLAIN, given, f"classes must be a list, given {given!r}", A_LIST) for given in (3, "34", "cat", 3.0)),
        *((PLAIN, given, "classes must be a list", A_LIST) for given in ([True, False], np.array([True]))),
        (PLAIN, torch.tensor(3), "classes must be a list", A_LIST),
        (PLAIN, {3: 0.9, 4: 0.1}, "not trained for classes that appear unequally often", "concentration=1.0"),
        *(
            (UNEQUAL, {1: 0.5, 2: rate}, "must lie between 0 and 1", A_RATE)
            for rate in (1.5, -0.1, NAN, INFINITY, "0.5", None, [0.5], 0.5j)
        ),
        (UNEQUAL, torch.tensor([0.5, 0.5, NAN, 0, 0]), "must lie between 0 and 1", A_RATE),
        *(
            (UNEQUAL, given, "no class appears: all probabilities are 0", "at least one")
            for given in ({1: 0.0}, {1: 0, 2: 0.0}, torch.zeros(5), np.zeros(5))
        ),
        *(
            (UNEQUAL, torch.ones(shape), f"probabilities of shape {shape}", "give one for each of 5")
            for shape in ((4,), (6,), (1, 5), ())
        ),
        (UNEQUAL, {}, "the class subset is empty", "0 to 4"),
        (UNEQUAL, {7: 0.5}, "class 7 is out of range", "0 to 4"),
        (UNEQUAL, {"fox": 0.5}, "unknown class", "0 to 4"),
        (UNEQUAL, {"1": 0.5, 1: 0.5}, "class 1 is named twice", "once"),
    ],
    ids=repr,
)
def test_what_names_no_classes_is_refused(space, classes, problem, hint):
    with pytest.raises(BhcError) as caught:
        space.resolve({"classes": classes})
    assert problem in caught.value.problem
    assert hint in caught.value.hint


def test_training_contexts_of_equal_appearance_are_encoded_as_those_of_use():
    space = ClassSubsets(10, RandomSubsets((2, 3, 7)))
    batch = space.sample(50, 10, rng=seeded())
    (encoded,) = space.encode(batch)
    assert torch.equal(encoded, batch.outputs.float())
    torch.testing.assert_close(batch.class_rates, encoded / encoded.sum(1, keepdim=True))


def test_unequal_appearances_are_rates_that_sum_to_one_within_the_subset():
    space = ClassSubsets(10, RandomSubsets((3,)), concentration=1.0)
    batch = space.sample(500, 10, rng=seeded())
    torch.testing.assert_close(batch.class_rates.sum(1), torch.ones(500))
    assert torch.equal(batch.class_rates > 0, batch.outputs)
    assert batch.outputs.sum(1).unique().tolist() == [3]
    (encoded,) = space.encode(batch)  # with the most frequent at one
    assert torch.equal(encoded.amax(1), torch.ones(500))
    torch.testing.assert_close(encoded, batch.class_rates / batch.class_rates.amax(1, keepdim=True))
    assert (encoded[batch.outputs] < 0.9).any()


@pytest.mark.parametrize("concentration", [0.5, 5.0])
def test_appearances_have_the_moments_of_a_dirichlet_distribution(concentration):
    space = ClassSubsets(3, RandomSubsets((3,)), concentration=concentration)
    rates = space.sample(20_000, 3, rng=seeded()).class_rates
    mean, variance = rates.mean(0), rates.var(0)
    expected = (1 / 3) * (2 / 3) / (3 * concentration + 1)
    torch.testing.assert_close(mean, torch.full((3,), 1 / 3), atol=5 * (expected / 20_000) ** 0.5, rtol=0)
    torch.testing.assert_close(variance, torch.full((3,), expected), rtol=0.05, atol=0)


def test_equal_seeds_give_equal_contexts():
    space = ClassSubsets(10, concentration=1.0)
    first, second = (space.sample(20, 10, rng=seeded(4)) for _ in range(2))
    assert torch.equal(first.class_rates, second.class_rates)
    other = space.sample(20, 10, rng=seeded(5))
    assert not torch.equal(first.class_rates, other.class_rates)


@pytest.mark.parametrize(
    "given",
    [
        {3: 0.1, 1: 0.4},
        {"3": 0.1, 1: 0.4},
        {3: 0.25, 1: 1},
        {3: 0.1, 1: 0.4, 0: 0.0},
        torch.tensor([0, 0.4, 0, 0.1, 0]),
        np.array([0, 0.4, 0, 0.1, 0]),
        np.array([0, 0.4, 0, 0.1, 0], dtype=np.float32),
        {1: np.float64(0.4), 3: np.float64(0.1)},
    ],
    ids=repr,
)
def test_classes_may_be_given_with_a_probability_each(given):
    context = UNEQUAL.resolve({"classes": given})
    assert context.classes == (1, 3)
    assert context.appearance == pytest.approx((1.0, 0.25))


def test_classes_with_probabilities_may_be_named():
    context = replace(NAMED, concentration=1.0).resolve({"classes": {"eel": 0.5, "Cat": 1.0}})
    assert (context.classes, context.appearance) == ((0, 2), (1.0, 0.5))


def test_probabilities_are_encoded_and_drawn_by():
    batch = ContextBatch.of([UNEQUAL.resolve({"classes": {3: 0.1, 1: 0.4}}), Context(classes=(0, 2))], 5)
    (encoded,) = UNEQUAL.encode(batch)
    torch.testing.assert_close(encoded, torch.tensor([[0, 1, 0, 0.25, 0], [1, 0, 1, 0, 0]]))
    torch.testing.assert_close(batch.class_rates, torch.tensor([[0, 0.8, 0, 0.2, 0], [0.5, 0, 0.5, 0, 0]]))
    assert torch.equal(batch.outputs, encoded > 0)


@pytest.mark.parametrize("given", [{3: 0.3, 1: 0.3}, {1: 1, 3: 1, 4: 0}, torch.tensor([0, 0.3, 0, 0.3, 0])], ids=repr)
@pytest.mark.parametrize("space", [ClassSubsets(5), UNEQUAL], ids=["equal", "unequal"])
def test_equal_probabilities_are_the_classes_alone(space, given):
    assert space.resolve({"classes": given}) == Context(classes=(1, 3))
