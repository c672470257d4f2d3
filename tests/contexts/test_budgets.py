import math

import pytest
import torch

from bhc.contexts import Budgets, ContextBatch
from bhc.errors import BhcError


@pytest.mark.parametrize("budget", [0, 1, 0.0, 1.0])
def test_a_budget_is_zero_or_one(budget):
    assert Budgets().resolve({"budget": budget}).budget == budget


@pytest.mark.parametrize("budget", [0.5, -1, 2, "1", float("nan"), [1]])
def test_any_other_budget_is_refused(budget):
    with pytest.raises(BhcError) as caught:
        Budgets().resolve({"budget": budget})
    assert caught.value.problem == f"budget {budget!r} is not supported"
    assert "0 is accuracy first" in caught.value.hint


def test_the_weight_of_the_divergence_at_both_ends_and_between():
    weights = Budgets((0.1, 10.0)).kl_weight(torch.tensor([[0.0], [0.5], [1.0]]))
    torch.testing.assert_close(weights, torch.tensor([[0.1], [1.0], [10.0]]))


def test_the_ends_are_exact_at_the_paper_s_weights():
    low, high = Budgets().kl_weight(torch.tensor([0.0, 1.0])).tolist()
    assert (low, high) == (pytest.approx(0.1), pytest.approx(1.0))


def test_the_weight_of_the_divergence_rises_with_the_budget():
    weights = Budgets().kl_weight(torch.linspace(0, 1, 50))
    assert (weights.diff() > 0).all()


@pytest.mark.parametrize("weights", [(0.0, 1.0), (-0.1, 1.0), (1.0, 0.1), (float("nan"), 1.0)])
def test_weights_must_be_positive_and_ascending(weights):
    with pytest.raises(BhcError, match="kl_weights must be positive and ascending"):
        Budgets(weights)


def test_training_throws_a_fair_coin_and_leaves_classes_alone():
    batch = Budgets().sample(4000, 10, generator=torch.Generator().manual_seed(0))
    assert batch.budget.shape == (4000, 1)
    assert batch.budget.unique().tolist() == [0, 1]
    assert abs(batch.budget.mean().item() - 0.5) < 5 * 0.5 / math.sqrt(4000)
    assert batch.outputs.all()
    torch.testing.assert_close(batch.class_rates, torch.full((4000, 10), 0.1))


def test_a_budget_is_encoded_as_it_is():
    space = Budgets()
    batch = ContextBatch.of([space.resolve({"budget": budget}) for budget in (1, 0)], 10)
    (encoded,) = space.encode(batch)
    assert encoded.tolist() == [[1.0], [0.0]]
