import numpy as np
import pytest
import torch

from bhc.contexts import ClassSubsets, ConsecutivePairs, Context, ContextBatch, RandomSubsets
from bhc.errors import BhcError

NAMED = ClassSubsets(3, class_names=("cat", "dog", "eel"))
UNEQUAL = ClassSubsets(5, concentration=1.0)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def resolve(classes, space=None):
    return (space or ClassSubsets(10)).resolve({"classes": classes}).classes


def refused(classes, space=None):
    with pytest.raises(BhcError) as caught:
        resolve(classes, space)
    return caught.value


@pytest.mark.parametrize(
    "classes", [[3, 4], (4, 3), {3, 4}, range(3, 5), np.array([4, 3]), torch.tensor([3, 4]), ["3", 4]]
)
def test_class_numbers_come_in_any_collection_and_order(classes):
    assert resolve(classes) == (3, 4)


def test_class_names_are_accepted_beside_numbers():
    assert resolve(["eel", "cat"], NAMED) == (0, 2)
    assert resolve(["eel", 1], NAMED) == (1, 2)


def test_names_that_are_numbers_of_other_classes_are_names():
    assert resolve(["2"], ClassSubsets(3, class_names=("2", "1", "0"))) == (0,)


@pytest.mark.parametrize("label", ["fox", "", None, [1], float("nan"), 3.0, 3.7])
def test_an_unknown_class(label):
    error = refused([label], NAMED)
    assert "unknown class" in error.problem
    assert error.hint == "the classes are 0 to 2 (cat, dog, eel)"


@pytest.mark.parametrize("label", [-1, 10, 99, "10"])
def test_a_class_out_of_range(label):
    error = refused([3, label])
    assert error.problem == f"class {label} is out of range"
    assert error.hint == "the classes are 0 to 9"


@pytest.mark.parametrize("label", [np.float32(3.7), torch.tensor(3.7)], ids=["numpy", "torch"])
def test_floats_of_other_libraries_are_refused(label):
    assert refused([label]).problem


def test_an_infinite_class_is_refused():
    assert refused([float("inf")]).problem


def test_no_class_at_all():
    error = refused([])
    assert error.problem == "the class subset is empty"
    assert "0 to 9" in error.hint


@pytest.mark.parametrize("classes", [[3, 4, 3], ["3", 3]])
def test_a_class_named_twice(classes):
    assert refused(classes).problem == "class 3 is named twice"


def test_a_class_named_by_its_name_and_its_number():
    assert refused(["dog", 1], NAMED).problem == "class 1 is named twice"


@pytest.mark.parametrize("classes", [3, "34", "cat", 3.0])
def test_classes_that_are_not_a_list(classes):
    error = refused(classes)
    assert error.problem == f"classes must be a list, given {classes!r}"
    assert "classes=[3, 4]" in error.hint


@pytest.mark.parametrize("count", [1, 0, -3])
def test_a_space_needs_two_classes(count):
    with pytest.raises(BhcError, match=f"at least 2 classes to choose from, given {count}"):
        ClassSubsets(count)


def test_a_space_needs_as_many_names_as_classes():
    with pytest.raises(BhcError, match="2 class names for 3 classes"):
        ClassSubsets(3, class_names=("cat", "dog"))


def test_the_network_has_an_output_for_each_class():
    ClassSubsets(10).check_network(10)
    with pytest.raises(BhcError, match="10 classes, the network 8 outputs") as caught:
        ClassSubsets(10).check_network(8)
    assert "ClassSubsets(8)" in caught.value.hint


def test_a_context_that_is_asked_for_is_encoded_as_a_binary_vector():
    space = ClassSubsets(5)
    contexts = [space.resolve({"classes": classes}) for classes in ([1, 2], [0, 3, 4])]
    (encoded,) = space.encode(ContextBatch.of(contexts, 5))
    assert encoded.tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 1, 1]]


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


def test_unequal_appearances_are_encoded_with_the_most_frequent_at_one():
    space = ClassSubsets(10, RandomSubsets((3,)), concentration=1.0)
    batch = space.sample(500, 10, rng=seeded())
    (encoded,) = space.encode(batch)
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


def test_the_paper_s_pairs_can_be_the_sampler():
    batch = ClassSubsets(10, ConsecutivePairs()).sample(100, 10, rng=seeded())
    first = batch.outputs.float().argmax(1)
    assert batch.outputs[torch.arange(100), first + 1].all()
    assert batch.outputs.sum(1).unique().tolist() == [2]


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
    space = ClassSubsets(3, class_names=("cat", "dog", "eel"), concentration=1.0)
    context = space.resolve({"classes": {"eel": 0.5, "Cat": 1.0}})
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


def test_unequal_probabilities_are_refused_where_training_had_none():
    error = refused({3: 0.9, 4: 0.1})
    assert error.problem == "this model was not trained for classes that appear unequally often"
    assert "concentration=1.0" in error.hint


@pytest.mark.parametrize("rate", [1.5, -0.1, float("nan"), float("inf"), "0.5", None, [0.5], 0.5j], ids=repr)
def test_a_probability_outside_zero_to_one_is_refused(rate):
    error = refused({1: 0.5, 2: rate}, UNEQUAL)
    assert "must lie between 0 and 1" in error.problem
    assert "classes={3: 0.9, 4: 0.1}" in error.hint


def test_an_array_with_a_probability_that_is_not_a_number_is_refused():
    assert "must lie between 0 and 1" in refused(torch.tensor([0.5, 0.5, torch.nan, 0, 0]), UNEQUAL).problem


@pytest.mark.parametrize("given", [{1: 0.0}, {1: 0, 2: 0.0}, torch.zeros(5), np.zeros(5)], ids=repr)
def test_classes_that_never_appear_are_refused(given):
    assert refused(given, UNEQUAL).problem == "no class appears: all probabilities are 0"


@pytest.mark.parametrize("shape", [(4,), (6,), (1, 5), ()])
def test_an_array_needs_a_probability_for_every_class(shape):
    error = refused(torch.ones(shape), UNEQUAL)
    assert error.problem == f"probabilities of shape {shape}"
    assert error.hint == "give one for each of 5 classes"


def test_the_classes_of_probabilities_are_checked_as_others_are():
    assert refused({}, UNEQUAL).problem == "the class subset is empty"
    assert refused({7: 0.5}, UNEQUAL).problem == "class 7 is out of range"
    assert "unknown class" in refused({"fox": 0.5}, UNEQUAL).problem
    assert refused({"1": 0.5, 1: 0.5}, UNEQUAL).problem == "class 1 is named twice"


def test_what_is_forgotten_is_told_as_all_classes_equally_often():
    batch = UNEQUAL.sample(3, 5, rng=seeded())
    told = torch.tensor([True, False, True])
    forgotten = UNEQUAL.forget(batch, told)
    (before,), (after,) = UNEQUAL.encode(batch), UNEQUAL.encode(forgotten)
    assert torch.equal(after[told], before[told])
    assert torch.equal(after[1], torch.ones(5))
    assert forgotten.outputs[1].all()
    assert torch.equal(forgotten.outputs[told], batch.outputs[told])


def test_with_no_classes_said_all_are_encoded():
    (encoded,) = UNEQUAL.encode(ContextBatch.unconditioned(2, 5))
    assert torch.equal(encoded, torch.ones(2, 5))


def test_what_is_nothing_beside_the_others_does_not_appear():
    space = ClassSubsets(10, concentration=1.0)
    assert space.resolve({"classes": {3: 1.0, 4: 1e-50, 5: 0.5}}).classes == (3, 5)
