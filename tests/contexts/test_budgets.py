import math

import pytest
import torch

from bhc.contexts import BinaryBudget, Budgets, ClassSubsets, Context, ContextBatch, Joint, from_dict
from bhc.errors import BhcError

KINDS = pytest.mark.parametrize("kind", [Budgets, BinaryBudget])


def sample(space, count=4000):
    return space.sample(count, 10, rng=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("budget", [0, 1, 0.0, 1.0, 0.5, 1e-9, 1 / 3])
def test_a_budget_is_any_number_from_zero_to_one(budget):
    context = Budgets().resolve({"budget": budget})
    assert context.budget == budget
    assert isinstance(context.budget, float)


@pytest.mark.parametrize("budget", [-1, -1e-9, 1 + 1e-9, 2, "1", "0.5", True, float("nan"), float("inf"), [1], 1j])
def test_any_other_budget_is_refused(budget):
    with pytest.raises(BhcError) as caught:
        Budgets().resolve({"budget": budget})
    assert caught.value.problem == f"budget {budget!r} is outside what this model takes: 0 to 1"
    assert "0 is accuracy first" in caught.value.hint


@pytest.mark.parametrize("budget", [0, 1, 0.0, 1.0])
def test_a_binary_budget_is_zero_or_one(budget):
    assert BinaryBudget().resolve({"budget": budget}).budget == budget


@pytest.mark.parametrize("budget", [0.5, -1, 2, "1", float("nan"), [1]])
def test_any_other_binary_budget_is_refused(budget):
    with pytest.raises(BhcError) as caught:
        BinaryBudget().resolve({"budget": budget})
    assert caught.value.problem == f"budget {budget!r} is outside what this model takes: 0 or 1"
    assert "0 is accuracy first" in caught.value.hint


@KINDS
def test_the_weight_of_the_divergence_at_both_ends_and_between(kind):
    weights = kind((0.1, 10.0)).kl_weight(torch.tensor([[0.0], [0.5], [1.0]]))
    torch.testing.assert_close(weights, torch.tensor([[0.1], [1.0], [10.0]]))


@KINDS
def test_the_ends_are_exact_at_the_paper_s_weights(kind):
    low, high = kind().kl_weight(torch.tensor([0.0, 1.0])).tolist()
    assert (low, high) == (pytest.approx(0.1), pytest.approx(1.0))


@KINDS
def test_the_weight_of_the_divergence_rises_with_the_budget(kind):
    weights = kind().kl_weight(torch.linspace(0, 1, 50))
    assert (weights.diff() > 0).all()


@KINDS
@pytest.mark.parametrize(
    "weights", [(0.0, 1.0), (-0.1, 1.0), (1.0, 0.1), (1.0, 1.0), (float("nan"), 1.0), (0.1, float("inf"))]
)
def test_weights_must_be_positive_and_ascending(kind, weights):
    with pytest.raises(BhcError, match="kl_weights must be positive and ascending"):
        kind(weights)


@pytest.mark.parametrize("weights", [(0.1, 1.0), (0.1, 10.0), (0.01, 10.0), (0.5, 3.0)])
def test_the_budget_that_stands_for_none_leaves_the_stage_s_weight_as_it_is(weights):
    space = Budgets(weights)
    torch.testing.assert_close(space.kl_weight(torch.tensor(space.default_budget)), torch.tensor(1.0))


@pytest.mark.parametrize(("weights", "nearest"), [((0.01, 0.1), 1.0), ((2.0, 3.0), 0.0)])
def test_where_no_budget_has_a_weight_of_one_the_nearest_stands_for_none(weights, nearest):
    assert Budgets(weights).default_budget == nearest


def test_training_draws_budgets_evenly_and_leaves_classes_alone():
    batch = sample(Budgets())
    assert batch.budget.shape == (4000, 1)
    assert ((batch.budget >= 0) & (batch.budget <= 1)).all()
    tenths = torch.histc(batch.budget, 10, 0, 1)
    assert ((tenths - 400).abs() < 5 * math.sqrt(400)).all()
    assert batch.outputs.all()
    torch.testing.assert_close(batch.class_rates, torch.full((4000, 10), 0.1))


def test_training_goes_beyond_both_ends_by_a_margin():
    budgets = Budgets((0.1, 1.0), margin=0.5)
    batch = budgets.sample(4000, 10, rng=torch.Generator().manual_seed(0))
    assert ((batch.budget >= -0.5) & (batch.budget <= 1.5)).all()
    tenths = torch.histc(batch.budget, 10, -0.5, 1.5)
    assert (tenths - 400).abs().max() < 5 * math.sqrt(400)
    weights = budgets.kl_weight(torch.tensor([-0.5, 0.0, 1.0, 1.5]))
    torch.testing.assert_close(weights, torch.tensor([0.1 / math.sqrt(10), 0.1, 1.0, math.sqrt(10)]))


def test_use_does_not_go_beyond():
    with pytest.raises(BhcError, match="outside what this model takes: 0 to 1"):
        Budgets(margin=0.5).resolve({"budget": 1.2})


def test_a_margin_is_kept_with_the_run():
    assert from_dict(Budgets(margin=0.5).to_dict()) == Budgets(margin=0.5)
    assert "margin" not in Budgets().to_dict()  # as runs from before there was one have it


@pytest.mark.parametrize("margin", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_margin_is_no_longer_than_the_way(margin):
    with pytest.raises(BhcError, match="margin is how far training goes beyond budgets 0 and 1, from 0 to 1, given"):
        Budgets(margin=margin)


def test_training_a_binary_budget_throws_a_fair_coin_and_leaves_classes_alone():
    batch = sample(BinaryBudget())
    assert batch.budget.shape == (4000, 1)
    assert batch.budget.unique().tolist() == [0, 1]
    assert abs(batch.budget.mean().item() - 0.5) < 5 * 0.5 / math.sqrt(4000)
    assert batch.outputs.all()
    torch.testing.assert_close(batch.class_rates, torch.full((4000, 10), 0.1))


@KINDS
def test_a_budget_is_encoded_as_it_is(kind):
    space = kind()
    batch = ContextBatch.of([space.resolve({"budget": budget}) for budget in (1, 0)], 10)
    (encoded,) = space.encode(batch)
    assert encoded.tolist() == [[1.0], [0.0]]


def test_where_none_is_said_the_one_that_stands_for_it_is_encoded():
    space = Budgets((0.1, 10.0))
    (encoded,) = space.encode(ContextBatch.of([Context()], 10))
    torch.testing.assert_close(encoded, torch.tensor([[0.5]]))


def test_what_is_forgotten_becomes_the_budget_that_stands_for_none():
    space = Budgets((0.1, 10.0))
    batch = sample(space, 4)
    told = torch.tensor([True, False, True, False])
    forgotten = space.forget(batch, told)
    assert torch.equal(forgotten.budget[told], batch.budget[told])
    torch.testing.assert_close(forgotten.budget[~told], torch.full((2, 1), 0.5))


def test_only_numbers_between_zero_and_one_are_ordered():
    assert Budgets().rises_with_budget
    assert not BinaryBudget().rises_with_budget


def test_a_run_of_before_has_the_binary_budget():
    assert from_dict({"kind": "budget", "kl_weights": [0.1, 1.0]}) == BinaryBudget()
    assert from_dict({"kind": "budgets", "kl_weights": [0.1, 1.0]}) == Budgets()
    assert BinaryBudget() != Budgets()


def test_a_joint_run_of_before_needs_all_of_its_parts():
    parts = [ClassSubsets(10).to_dict(), {"kind": "budget", "kl_weights": [0.1, 1.0]}]
    space = from_dict({"kind": "joint", "spaces": parts})
    assert isinstance(space, Joint)
    assert not space.optional
    with pytest.raises(BhcError, match="the context lacks budget"):
        space.resolve({"classes": [1, 2]})


def test_a_binary_budget_that_is_left_out_is_one_of_the_two():
    assert Budgets((0.5, 2.0)).default_budget == pytest.approx(0.5)
    assert BinaryBudget((0.4, 2.0)).default_budget == 1.0
    assert BinaryBudget((0.1, 1.0)).default_budget == 1.0
