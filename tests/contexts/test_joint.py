import pytest
import torch

from bhc.contexts import (
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
)
from bhc.errors import BhcError

IMAGES = InputDomains((1, 2, 2), ConsecutivePairs())
THREES = ClassSubsets(10, RandomSubsets((3,)))
CORNER = FeatureSubsets((1, 2, 2), ListedFeatures(((0,),)))
WEIGHTS = Budgets((0.1, 10.0))  # 0.5 stands for none


def sample(space, count=40):
    return space.sample(count, 10, rng=torch.Generator().manual_seed(0))


def test_every_part_of_a_request_is_checked_by_its_space():
    space = Joint(ClassSubsets(10), Budgets())
    context = space.resolve({"classes": [4, 3], "budget": 1})
    assert context.classes == (3, 4)
    assert context.budget == 1
    with pytest.raises(BhcError, match="budget 7"):
        space.resolve({"classes": [4, 3], "budget": 7})
    with pytest.raises(BhcError, match="class 12"):
        space.resolve({"classes": [12], "budget": 0})


def test_a_missing_part_is_named_with_all_that_are_needed_where_none_may_be_missing():
    space = Joint(ClassSubsets(10), Budgets(), missing=0)
    assert not space.optional
    with pytest.raises(BhcError, match="lacks budget") as caught:
        space.resolve({"classes": [4, 3]})
    assert caught.value.hint == "this model takes all of: classes, budget"


def test_every_part_is_sampled_and_encoded_in_order_and_none_is_left_out_unless_it_may_be():
    space = Joint(Budgets(), THREES, CORNER, missing=0)
    batch = sample(space, 500)
    budget, classes, features = space.encode(batch)
    assert torch.equal(budget, batch.budget)
    assert torch.equal(classes, batch.outputs.float())
    assert batch.outputs.sum(1).unique().tolist() == [3]
    assert features.tolist() == [[1, 0, 0, 0]] * 500


@pytest.mark.parametrize(
    "space", [Joint(IMAGES, THREES, missing=0), Joint(THREES, IMAGES, missing=0)], ids=["domain first", "classes first"]
)
def test_with_classes_a_domain_is_made_of_their_images(space):
    batch = sample(space)
    assert batch.outputs.sum(1).unique().tolist() == [3]
    assert torch.equal(batch.class_rates > 0, batch.outputs)
    x = torch.randint(0, 256, (40, 5, 1, 2, 2), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    observed = space.observe(batch, x)
    torch.testing.assert_close(observed.domain, x.float().mean(1))
    assert torch.equal(observed.class_rates, batch.class_rates)


def test_contexts_that_are_asked_for_become_one_batch():
    space = Joint(ClassSubsets(3), Budgets(), IMAGES)
    requests = [
        {"classes": [0, 2], "budget": 1, "domain": torch.zeros(16, 1, 2, 2)},
        {"classes": [1], "budget": 0, "domain": torch.full((16, 1, 2, 2), 255.0)},
    ]
    batch = ContextBatch.of([space.resolve(request) for request in requests], 3)
    classes, budget, domain = space.encode(batch)
    assert classes.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert budget.tolist() == [[1], [0]]
    assert domain.flatten(1).tolist() == [[0, 0, 0, 0], [1, 1, 1, 1]]


def test_joints_within_a_joint_are_one():
    space = Joint(Joint(THREES, CORNER, missing=0), WEIGHTS, missing=0.2)
    assert space.parts == (THREES, CORNER, WEIGHTS)
    assert space.missing == 0.2


EVERYTHING = Joint(THREES, IMAGES, CORNER, WEIGHTS)
SAMPLES = torch.full((16, 1, 2, 2), 51.0)
UNSAID = {"classes": torch.ones(1, 10), "domain": torch.zeros(1, 1, 2, 2), "features": torch.ones(1, 4)}
UNSAID |= {"budget": torch.full((1, 1), 0.5)}


def encoded(request):
    batch = ContextBatch.of([EVERYTHING.resolve(request)], 10)
    return dict(zip(EVERYTHING.conditions, EVERYTHING.encode(batch), strict=True))


@pytest.mark.parametrize("left_out", EVERYTHING.conditions)
def test_a_request_may_leave_out_any_part_and_the_others_are_encoded_as_before(left_out):
    request = {"classes": [2, 7], "domain": _upper(51.0), "features": [0, 1], "budget": 0.25}
    whole, part = encoded(request), encoded(request | {left_out: None})
    for name, numbers in whole.items():
        torch.testing.assert_close(part[name], UNSAID[name] if name == left_out else numbers)
        assert name != left_out or not torch.equal(numbers, UNSAID[name])


def _upper(value):
    """Samples with nothing in their lower row."""
    sample = torch.full((16, 1, 2, 2), value)
    sample[:, :, 1] = 0
    return sample


def test_with_nothing_said_everything_is_as_without_conditions():
    context = EVERYTHING.resolve({})
    assert context == Context(budget=pytest.approx(0.5))
    batch = ContextBatch.of([context], 10)
    assert batch.outputs.all()
    torch.testing.assert_close(batch.class_rates, torch.full((1, 10), 0.1))
    for name, numbers in encoded({}).items():
        torch.testing.assert_close(numbers, UNSAID[name])
    torch.testing.assert_close(EVERYTHING.divergence_weights(batch), torch.ones(1))


def test_requests_that_leave_out_different_parts_make_one_batch():
    requests = [{"classes": [1]}, {"features": [3]}, {"domain": SAMPLES}, {"budget": 0}, {}]
    batch = ContextBatch.of([EVERYTHING.resolve(request) for request in requests], 10)
    classes, domain, features, budget = EVERYTHING.encode(batch)
    assert classes.sum(1).tolist() == [1, 10, 10, 10, 10]
    torch.testing.assert_close(domain.flatten(1), torch.tensor([0.0, 0.0, 0.2, 0.0, 0.0])[:, None].expand(5, 4))
    assert features.sum(1).tolist() == [4, 1, 4, 4, 4]
    torch.testing.assert_close(budget[:, 0], torch.tensor([0.5, 0.5, 0.5, 0.0, 0.5]))


def test_training_leaves_out_each_part_of_as_many_contexts_as_stated():
    batch = sample(Joint(THREES, IMAGES, CORNER, WEIGHTS, missing=0.3), 4000)
    unsaid = {
        "classes": batch.outputs.all(1),
        "domain": ~batch.domain_told,
        "features": batch.inputs.all(1),
        "budget": (batch.budget[:, 0] - 0.5).abs() < 1e-6,
    }
    for part in unsaid.values():
        assert abs(part.float().mean() - 0.3) < 5 * (0.21 / 4000) ** 0.5
    both = (unsaid["classes"] & unsaid["features"]).float().mean()
    assert abs(both - 0.09) < 5 * (0.09 * 0.91 / 4000) ** 0.5


def test_where_classes_are_left_out_all_are_drawn_and_all_outputs_stay():
    batch = sample(Joint(THREES, WEIGHTS, missing=0.5), 400)
    unsaid = batch.outputs.all(1)
    assert 0 < unsaid.sum() < 400
    torch.testing.assert_close(batch.class_rates[unsaid], torch.full((int(unsaid.sum()), 10), 0.1))
    assert torch.equal(batch.appearance[unsaid], torch.ones(int(unsaid.sum()), 10))
    told = ~unsaid
    assert torch.equal(batch.class_rates[told] > 0, batch.outputs[told])
    torch.testing.assert_close(batch.class_rates[told].amax(1), torch.full((int(told.sum()),), 1 / 3))


def test_where_classes_are_left_out_but_a_domain_is_told_its_classes_are_drawn():
    batch = sample(Joint(THREES, IMAGES, missing=0.5), 800)
    unsaid, told = batch.outputs.all(1), batch.domain_told
    seen = unsaid & told
    assert (batch.class_rates[seen] > 0).sum(1).unique().tolist() == [3]
    assert batch.outputs[seen].all()
    torch.testing.assert_close(batch.class_rates[unsaid & ~told], torch.full((int((unsaid & ~told).sum()), 10), 0.1))
    assert torch.equal(batch.class_rates[~unsaid] > 0, batch.outputs[~unsaid])
    assert all((mine & its).any() for mine in (unsaid, ~unsaid) for its in (told, ~told))


def test_where_a_domain_without_classes_is_left_out_all_classes_are_drawn():
    batch = sample(Joint(IMAGES, WEIGHTS, missing=0.5), 400)
    seen = (batch.class_rates > 0).sum(1)
    assert seen[batch.domain_told].unique().tolist() == [2]
    assert seen[~batch.domain_told].unique().tolist() == [10]
    torch.testing.assert_close(batch.class_rates.sum(1), torch.ones(400))


def test_a_training_context_of_which_nothing_is_told_is_the_one_of_an_empty_request():
    space = Joint(THREES, IMAGES, CORNER, WEIGHTS, missing=0.999999)
    drawn, asked = sample(space, 1), ContextBatch.of([space.resolve({})], 10)
    drawn = space.observe(drawn, torch.rand(1, 5, 1, 2, 2))
    torch.testing.assert_close(drawn.class_rates, asked.class_rates)
    assert torch.equal(drawn.outputs, asked.outputs)
    for mine, its in zip(space.encode(drawn), space.encode(asked), strict=True):
        torch.testing.assert_close(mine, its)


def test_a_training_domain_has_nothing_where_features_are_missing():
    space = Joint(IMAGES, FeatureSubsets((1, 2, 2)), missing=0)
    batch = sample(space)
    x = 1 + torch.rand(40, 5, 1, 2, 2, generator=torch.Generator().manual_seed(1))
    observed = space.observe(batch, x)
    there = batch.inputs.reshape(40, 1, 2, 2)
    torch.testing.assert_close(observed.domain, x.mean(1) * there)
    assert not there.all()


def test_a_training_domain_has_nothing_in_missing_channels():
    space = Joint(InputDomains((3, 2, 2)), FeatureSubsets((3,), ListedFeatures(((1,),))), missing=0)
    observed = space.observe(sample(space, 2), torch.ones(2, 5, 3, 2, 2))
    assert observed.domain.amax((2, 3)).tolist() == [[0, 1, 0]] * 2


def test_samples_have_nothing_at_missing_features():
    space = Joint(IMAGES, CORNER)
    context = space.resolve({"domain": _upper(51.0), "features": [0, 1]})
    assert context.features.tolist() == [True, True, False, False]
    assert context.domain.flatten().tolist() == [51, 51, 0, 0]
    with pytest.raises(BhcError, match="values where") as caught:
        space.resolve({"domain": SAMPLES, "features": [0, 1]})
    assert "set them to 0 there" in caught.value.hint
    space = Joint(InputDomains((2, 2, 2)), FeatureSubsets((2,)))
    samples = torch.zeros(16, 2, 2, 2)
    samples[:, 1, 0, 0] = 9.0
    assert space.resolve({"domain": samples, "features": [1]}).features.tolist() == [False, True]
    with pytest.raises(BhcError, match="values where"):
        space.resolve({"domain": samples, "features": [0]})
