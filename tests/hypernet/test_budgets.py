"""Rates that rise with the budget, and what they leave of networks."""

from dataclasses import replace

import pytest
import torch

from bhc.contexts import BinaryBudget, Budgets, ClassSubsets, ContextBatch, Joint
from bhc.hypernet import Full, Initial, LowRank, ScalesOnly
from bhc.hypernet.conditional import RUNGS, climb
from bhc.posterior import ChannelRounding, LayerDropout, Multiples
from bhc.training.evaluation import count_weights

from .toys import conditional, contexts, perturb_, seeded


def asked(space, request, values):
    return contexts(space, *(request | {"budget": float(value)} for value in values))


def budgets_of(values):
    return asked(Budgets(), {}, values)


def climbed(rate, values):
    """One rate as a function of the budget, (n,), after climbing."""
    (layer,) = climb(lambda batch: (LayerDropout(rate(batch.budget), None),), budgets_of(values))
    assert layer.out_log_dropout is None
    return layer.in_log_dropout[:, 0]


SPREAD = torch.linspace(0, 1, 101)
RUNG = torch.arange(RUNGS) / (RUNGS - 1)
CURVES = {
    "rising": lambda w: 3 * w - 1,
    "falling": lambda w: -2 * w,
    "hill": lambda w: 4 * w * (1 - w),
    "valley": lambda w: (2 * w - 1) ** 2,
    "waves": lambda w: (13 * w).sin() + w,
    "level": lambda w: torch.zeros_like(w),
}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_rates_never_fall_as_the_budget_rises_and_stay_beyond_the_ends(curve):
    assert (climbed(curve, SPREAD).diff() >= 0).all()
    torch.testing.assert_close(climbed(curve, RUNG), curve(RUNG).cummax(0).values)
    first, last = climbed(curve, [0.0, 1.0])
    assert torch.equal(first, curve(torch.tensor(0.0)))
    beyond = torch.tensor([-1.0, -0.126, -0.01, 1.01, 1.1, 2.0])
    batch = replace(budgets_of(torch.zeros(6)), budget=beyond[:, None])
    (layer,) = climb(lambda batch: (LayerDropout(curve(batch.budget), None),), batch)
    torch.testing.assert_close(layer.in_log_dropout[:, 0], torch.stack([first] * 3 + [last] * 3))


def test_rates_are_linear_between_rungs():
    low, high = climbed(CURVES["hill"], RUNG[2:4])
    between = climbed(CURVES["hill"], [float(RUNG[2] + part / (RUNGS - 1)) for part in (0.25, 0.5, 0.75)])
    torch.testing.assert_close(between, torch.stack([low.lerp(high, part) for part in (0.25, 0.5, 0.75)]))


def test_rates_that_all_contexts_share_are_shared_still():
    shared = torch.randn(1, 7, generator=seeded())
    (layer,) = climb(lambda batch: (LayerDropout(shared, None),), budgets_of([0.1, 0.9]))
    assert torch.equal(layer.in_log_dropout, shared)


def test_single_weights_have_rates_that_rise_too():
    def rates(batch):
        weights = torch.cat([(13 * batch.budget).sin(), -batch.budget], 1).reshape(-1, 2, 1)
        return (LayerDropout(None, None, weights),)

    (layer,) = climb(rates, budgets_of(SPREAD))
    assert layer.weights.shape == (101, 2, 1)
    assert (layer.weights.diff(dim=0) >= 0).all()
    torch.testing.assert_close(layer.weights[:, 1], torch.zeros(101, 1))


def test_every_context_climbs_by_itself():
    slopes = torch.tensor([1.0, -1.0, 2.0])

    def rates(batch):
        return (LayerDropout(batch.class_rates[:, :1] * batch.budget, None),)

    batch = ContextBatch(
        slopes[:, None], torch.ones(3, 1, dtype=torch.bool), budget=torch.tensor([[0.3], [0.7], [1.0]])
    )
    (layer,) = climb(rates, batch)
    torch.testing.assert_close(layer.in_log_dropout[:, 0], torch.tensor([0.3, 0.0, 2.0]))


SPACES = {
    "budget": (Budgets(), {}),
    "classes and budget": (Joint(ClassSubsets(10), Budgets()), {"classes": [2, 3, 7]}),
    "no classes said": (Joint(ClassSubsets(10), Budgets()), {}),
}


def random_network(spec, network, space, seed, **design):
    """A hypernetwork that nobody trained: its rates go up and down with the budget."""
    model = conditional(spec, network, space=space, initial=Initial(), **design)
    perturb_(model.hypernet, std=0.5, seed=seed)
    return model


def cuts(network, space, request, round_to):
    """Random networks, each with contexts of ascending budgets and thresholds from below all rates to above them."""
    for seed in range(8):
        model = random_network(ScalesOnly(), network, space, seed)
        multiples, parts = Multiples.of(round_to, model.layers, model.find_masks.outputs), (model.layers, model.units)
        rounding = multiples and ChannelRounding(multiples, *parts, model.base_model, device=model.device)
        batch = asked(space, request, torch.rand(50, generator=seeded(seed)).sort().values)
        dropouts = model.dropouts(batch)
        rates = model.find_masks.noisiest_links(dropouts, batch.outputs)
        finite = rates[rates.isfinite()]
        inside = finite.quantile(torch.tensor([0.01, 0.1, 0.3, 0.5, 0.7, 0.9])).tolist()
        for threshold in [float(finite.min()) - 1, *inside, float(finite.max()) + 1]:
            limit = torch.full((50, 1), threshold)
            masks = model.find_masks(dropouts, limit, batch.outputs, rounding=rounding)
            yield count_weights(model, masks), torch.stack([mask.rescued for mask in masks.layers]).any(0)


@pytest.mark.parametrize("round_to", [None, 2, 3], ids=str)
@pytest.mark.parametrize(("space", "request_"), SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("network", ["lenet-300-100", "tiny"])
def test_a_larger_budget_never_keeps_more_weights(network, space, request_, round_to):
    """Neither of all contexts, nor of those whose every layer has some under the threshold."""
    found = [*cuts(network, space, request_, round_to)]
    for steps in (
        torch.cat([weights.diff() for weights, _ in found]),
        torch.cat([weights[~rescued].diff() for weights, rescued in found]),
    ):
        assert (steps < 0).any()
        assert (steps <= 0).all(), f"up to {steps.max()} weights more"


@pytest.mark.parametrize("family", ["gnj", "io-gnj", "ghs", "sparse-vd"])
@pytest.mark.parametrize("spec", [LowRank(2), Full()], ids=["low-rank", "full"])
def test_rates_rise_with_the_budget_in_every_family_and_with_every_generator(spec, family):
    space = Joint(ClassSubsets(10), Budgets())
    model = random_network(spec, "tiny", space, 1, family=family)
    batch = asked(space, {"classes": [1, 5]}, SPREAD)
    own = model.hypernet.dropouts(space.encode(batch))
    for before, after in zip(own, model.dropouts(batch), strict=True):
        for name in ("in_log_dropout", "out_log_dropout", "weights"):
            rates, risen = getattr(before, name), getattr(after, name)
            assert (rates is None) == (risen is None)
            if risen is not None:
                assert (risen.diff(dim=0) >= 0).all()
                assert risen.shape == rates.shape
    fell = [(x.diff(dim=0) < 0).any() for layer in own for x in vars(layer).values() if x is not None]
    assert any(fell)


def test_a_binary_budget_keeps_the_hypernetwork_s_own_rates():
    space = BinaryBudget()
    model = random_network(ScalesOnly(), "tiny", space, 1)
    batch = asked(space, {}, [0, 1])
    for own, given in zip(model.hypernet.dropouts(space.encode(batch)), model.dropouts(batch), strict=True):
        assert torch.equal(own.out_log_dropout, given.out_log_dropout)


def test_rates_without_a_bound_stay_numbers():
    assert (climbed(lambda budget: torch.full_like(budget, torch.inf), [0.3]) > 1e20).all()
