import math
from dataclasses import replace

import pytest
import torch

from bhc.contexts import BinaryBudget, Budgets, ClassSubsets, ContextBatch, Joint, from_dict
from bhc.errors import BhcError


def weights_at(space, *budgets):
    batch = ContextBatch.unconditioned(len(budgets), 10)
    return space.divergence_weights(replace(batch, budget=torch.tensor(budgets)[:, None]))


@pytest.mark.parametrize(
    ("space", "budget"),
    [
        *((Budgets(), budget) for budget in (0, 1, 0.0, 1.0, 0.5, 1e-9, 1 / 3)),
        *((BinaryBudget(), budget) for budget in (0, 1, 0.0, 1.0)),
    ],
)
def test_a_budget_is_a_number_of_those_that_were_trained_and_is_encoded_as_it_is(space, budget):
    context = space.resolve({"budget": budget})
    assert context.budget == budget
    assert isinstance(context.budget, float)
    (encoded,) = space.encode(ContextBatch.of([context], 10))
    torch.testing.assert_close(encoded, torch.tensor([[float(budget)]]))


@pytest.mark.parametrize(
    ("space", "allowed", "budget"),
    [
        *((Budgets(), "0 to 1", budget) for budget in (-1, -1e-9, 1 + 1e-9, 2, "1", "0.5", True, [1], 1j)),
        *((Budgets(), "0 to 1", budget) for budget in (math.nan, math.inf)),
        (Budgets(margin=0.5), "0 to 1", 1.2),  # training goes beyond, use does not
        *((BinaryBudget(), "0 or 1", budget) for budget in (0.5, -1, 2, "1", math.nan, [1])),
    ],
)
def test_any_other_budget_is_refused(space, allowed, budget):
    with pytest.raises(BhcError) as caught:
        space.resolve({"budget": budget})
    assert caught.value.problem == f"budget {budget!r} is outside what this model takes: {allowed}"
    assert "0 is accuracy first" in caught.value.hint


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_training_draws_budgets_evenly_and_beyond_both_ends_by_the_margin(margin):
    budget = Budgets(margin=margin).sample(4000, 10, rng=torch.Generator().manual_seed(0)).budget
    assert budget.shape == (4000, 1)
    assert ((budget >= -margin) & (budget <= 1 + margin)).all()
    tenths = torch.histc(budget, 10, -margin, 1 + margin)
    assert ((tenths - 400).abs() < 5 * math.sqrt(400)).all()


def test_training_a_binary_budget_throws_a_fair_coin():
    budget = BinaryBudget().sample(4000, 10, rng=torch.Generator().manual_seed(0)).budget
    assert budget.shape == (4000, 1)
    assert budget.unique().tolist() == [0, 1]
    assert abs(budget.mean().item() - 0.5) < 5 * 0.5 / math.sqrt(4000)


@pytest.mark.parametrize("kind", [Budgets, BinaryBudget])
def test_the_weight_of_the_divergence_at_both_ends_between_and_beyond(kind):
    weights = weights_at(kind((0.1, 10.0)), -0.5, 0.0, 0.5, 1.0, 1.5)
    torch.testing.assert_close(weights, torch.tensor([0.01, 0.1, 1.0, 10.0, 100.0]))


@pytest.mark.parametrize("weights", [(0.1, 1.0), (0.1, 10.0), (0.01, 10.0), (0.5, 3.0)])
def test_the_budget_that_stands_for_none_leaves_the_stage_s_weight_as_it_is(weights):
    space = Budgets(weights)
    torch.testing.assert_close(weights_at(space, space.default_budget), torch.ones(1))
    assert torch.equal(space.divergence_weights(ContextBatch.unconditioned(2, 10)), torch.ones(2))


@pytest.mark.parametrize(
    ("kind", "weights", "nearest"),
    [
        (Budgets, (0.01, 0.1), 1.0),
        (Budgets, (2.0, 3.0), 0.0),
        *((BinaryBudget, weights, 1.0) for weights in ((0.4, 2.0), (0.1, 1.0))),  # one of the two that there are
    ],
)
def test_where_no_budget_has_a_weight_of_one_the_nearest_stands_for_none(kind, weights, nearest):
    assert kind(weights).default_budget == nearest


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
    with pytest.raises(BhcError, match="lacks budget"):
        space.resolve({"classes": [1, 2]})
