import pytest
import torch

from bhc.contexts import (
    BinaryBudget,
    Budgets,
    ClassSubsets,
    ConsecutivePairs,
    Context,
    ContextBatch,
    FeatureSubsets,
    InputDomains,
    Joint,
    ListedFeatures,
    RandomSubsets,
    SingleContext,
)
from bhc.data import Split
from bhc.training.probes import find_probes

SHAPE = (1, 2, 3)
EVERYTHING = tuple(range(10))


def split(num_classes=10, count=200):
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (count, *SHAPE), generator=rng, dtype=torch.uint8)
    return Split(images, torch.arange(count) % num_classes)


def probes(space, num_classes=10, **options):
    return find_probes(space, split(num_classes), num_classes=num_classes, **options)


SPACES = {
    "classes": ClassSubsets(10),
    "pairs": ClassSubsets(10, ConsecutivePairs()),
    "domain": InputDomains(SHAPE),
    "features": FeatureSubsets(SHAPE),
    "budgets": Budgets(),
    "budget": BinaryBudget(),
    "single": SingleContext(),
    "single classes": SingleContext((2, 5)),
    "classes and budgets": Joint(ClassSubsets(10), Budgets()),
    "all parts": Joint(ClassSubsets(10), Budgets(), missing=0),
    "features and budget": Joint(FeatureSubsets(SHAPE), BinaryBudget()),
    "everything": Joint(ClassSubsets(10), InputDomains(SHAPE), FeatureSubsets(SHAPE), Budgets()),
}


@pytest.mark.parametrize("limit", [1, 5, 24])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_there_are_at_most_as_many_as_asked_and_one_that_says_nothing(space, limit):
    found = probes(space, limit=limit)
    assert 0 < len(found) <= limit + space.optional
    assert all(probe.classes for probe in found)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_they_say_every_condition_and_are_encoded_like_requests(space):
    found = probes(space)
    said = found[:-1] if space.optional else found
    for probe in said:
        assert set(space.conditions) <= set(probe.context.to_dict())
    batch = ContextBatch.of([probe.context for probe in found], 10)
    assert all(len(part) == len(found) and part.isfinite().all() for part in space.encode(batch))


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_they_are_the_same_each_time(space):
    first, second = (ContextBatch.of([probe.context for probe in probes(space)], 10) for _ in range(2))
    for mine, its in zip(space.encode(first), space.encode(second), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize("name", ["classes and budgets", "features and budget", "everything"])
def test_where_conditions_may_be_left_out_the_last_leaves_out_all(name):
    last = probes(SPACES[name])[-1]
    assert last.context == SPACES[name].resolve({})
    assert last.classes == EVERYTHING


def test_classes_are_judged_on_their_own_examples():
    found = probes(SPACES["pairs"])
    assert [probe.classes for probe in found] == [(first, first + 1) for first in range(9)]
    assert all(probe.context == Context(classes=probe.classes) for probe in found)


def test_a_single_context_is_one_probe():
    assert [(probe.context, probe.classes) for probe in probes(SPACES["single classes"])] == [
        (Context(classes=(2, 5)), (2, 5))
    ]
    assert [(probe.context, probe.classes) for probe in probes(SPACES["single"])] == [(Context(), EVERYTHING)]


def test_a_domain_is_the_mean_of_the_training_images_of_its_classes():
    data = split()
    for probe in probes(SPACES["domain"]):
        images = data.restricted_to(probe.classes).inputs
        torch.testing.assert_close(probe.context.domain, images.float().mean(0))
        assert probe.context.domain_size == len(images)
        assert probe.context.classes is None


def test_budgets_are_judged_at_both_ends_and_between():
    assert [probe.context.budget for probe in probes(Budgets())] == [0, 0.25, 0.5, 0.75, 1]
    assert [probe.context.budget for probe in probes(BinaryBudget())] == [0, 1]
    assert {probe.context.budget for probe in probes(SPACES["everything"])} >= {0, 1}


def test_masks_are_those_that_training_draws():
    space = FeatureSubsets(SHAPE, ListedFeatures(((0,), (1, 2), (5,))))
    places = {tuple(probe.context.features.nonzero().flatten().tolist()) for probe in probes(space)}
    assert places == {(0,), (1, 2), (5,)}
    assert all(probe.classes == EVERYTHING for probe in probes(space))


def test_a_domain_beside_features_has_nothing_where_they_are_missing():
    for probe in probes(SPACES["everything"])[:-1]:
        there = probe.context.features.reshape(SHAPE)
        assert torch.equal(probe.context.domain > 0, there)


def test_subsets_of_a_hundred_classes_have_many_sizes():
    found = probes(ClassSubsets(100, RandomSubsets(range(1, 101))), 100)
    assert len(found) == 24
    assert len({len(probe.classes) for probe in found}) > 12
