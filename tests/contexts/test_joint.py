import pytest
import torch

from bhc.contexts import Budgets, ClassSubsets, ConsecutivePairs, ContextBatch, InputDomains, Joint, RandomSubsets
from bhc.errors import BhcError

IMAGES = InputDomains((1, 2, 2), ConsecutivePairs())
THREES = ClassSubsets(10, RandomSubsets((3,)))


def sample(space, count=40):
    return space.sample(count, 10, generator=torch.Generator().manual_seed(0))


def test_every_part_of_a_request_is_checked_by_its_space():
    space = Joint(ClassSubsets(10), Budgets())
    context = space.resolve({"classes": [4, 3], "budget": 1})
    assert context.classes == (3, 4)
    assert context.budget == 1
    with pytest.raises(BhcError, match="budget 7"):
        space.resolve({"classes": [4, 3], "budget": 7})
    with pytest.raises(BhcError, match="class 12"):
        space.resolve({"classes": [12], "budget": 0})


def test_a_missing_part_is_named_with_all_that_are_needed():
    with pytest.raises(BhcError, match="the context lacks budget") as caught:
        Joint(ClassSubsets(10), Budgets()).resolve({"classes": [4, 3]})
    assert caught.value.hint == "this model takes all of: classes, budget"


def test_every_part_is_sampled_and_encoded_in_order():
    space = Joint(Budgets(), THREES)
    batch = sample(space)
    budget, classes = space.encode(batch)
    assert torch.equal(budget, batch.budget)
    assert torch.equal(classes, batch.outputs.float())
    assert batch.outputs.sum(1).unique().tolist() == [3]


@pytest.mark.parametrize("space", [Joint(IMAGES, THREES), Joint(THREES, IMAGES)], ids=["domain first", "classes first"])
def test_with_classes_a_domain_is_made_of_their_images(space):
    batch = sample(space)
    assert batch.outputs.sum(1).unique().tolist() == [3]
    assert torch.equal(batch.class_rates > 0, batch.outputs)
    x = torch.rand(40, 5, 1, 2, 2, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(space.observe(batch, x).domain, x.mean(1))


def test_contexts_that_are_asked_for_become_one_batch():
    space = Joint(ClassSubsets(3), Budgets(), IMAGES)
    requests = [
        {"classes": [0, 2], "budget": 1, "domain": torch.zeros(2, 1, 2, 2)},
        {"classes": [1], "budget": 0, "domain": torch.full((1, 1, 2, 2), 255.0)},
    ]
    batch = ContextBatch.of([space.resolve(request) for request in requests], 3)
    classes, budget, domain = space.encode(batch)
    assert classes.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert budget.tolist() == [[1], [0]]
    assert domain.flatten(1).tolist() == [[0, 0, 0, 0], [1, 1, 1, 1]]


def test_the_network_is_checked_by_every_part():
    with pytest.raises(BhcError, match="10 classes, the network 5 outputs"):
        Joint(Budgets(), ClassSubsets(10)).check_network(5)


@pytest.mark.parametrize("spaces", [(), (Budgets(),)])
def test_fewer_than_two_spaces_are_refused(spaces):
    with pytest.raises(BhcError, match="two or more context spaces"):
        Joint(*spaces)


def test_two_spaces_of_one_kind_are_refused():
    with pytest.raises(BhcError, match="one space of each kind, given classes, budget, classes"):
        Joint(ClassSubsets(10), Budgets(), ClassSubsets(10))
