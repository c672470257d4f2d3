"""What holds for every kind of context, and how contexts are told; what is one kind's own stands in its own file."""

import json
import math
from functools import partial

import pytest
import torch
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Normal

import bhc
from bhc import contexts
from bhc.contexts import (
    Bernoulli,
    BinaryBudget,
    Budgets,
    ClassSubsets,
    ConsecutivePairs,
    Context,
    ContextBatch,
    FeatureSubsets,
    Gaussian,
    InputDomains,
    Joint,
    ListedFeatures,
    ListedSubsets,
    PooledGaussian,
    RandomSubsets,
    ScatteredFeatures,
    SingleContext,
    Spectrum,
    VocabularySubsets,
    WordsOfTexts,
    check_space,
)
from bhc.errors import BhcError

SINGLE = {
    "classes": ClassSubsets(10),
    "named classes": ClassSubsets(3, RandomSubsets((1, 2), held_out=((0, 1),)), ("cat", "dog", "eel"), 0.5),
    "pairs": ClassSubsets(10, ConsecutivePairs()),
    "listed": ClassSubsets(10, ListedSubsets(((1, 2), (3,)), (2, 1))),
    "domain": InputDomains((3, 8, 6), RandomSubsets((2,)), 1.0),
    "spectrum": InputDomains((1, 1_000), RandomSubsets((1, 2)), 32_768.0, summary=Spectrum(), num_sources=5),
    "features": FeatureSubsets((1, 2, 3), ListedFeatures(((1, 2), (0,)))),
    "channels": FeatureSubsets([4], ScatteredFeatures((0.5, 1.0))),
    "vocabulary": VocabularySubsets(50, WordsOfTexts((0.1,) * 50, (1, 5))),
    "budget": BinaryBudget((0.2, 3.0)),
    "budgets": Budgets((0.2, 3.0)),
    "budgets beyond": Budgets(margin=0.5),
}
SPACES = {
    **SINGLE,
    "usual features": FeatureSubsets((3,)),
    "single": SingleContext(),
    "single of classes": SingleContext((4, 2)),
    "joint": Joint(ClassSubsets(10), InputDomains((1, 28, 28)), Budgets()),
    "all at once": Joint(
        ClassSubsets(10), InputDomains((1, 8, 8)), FeatureSubsets((1, 8, 8)), BinaryBudget(), missing=0.3
    ),
    "nothing missing": Joint(ClassSubsets(10), Budgets(), missing=0),
}
EACH = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


@EACH
def test_a_space_comes_back_from_its_description(space):
    restored = contexts.from_dict(json.loads(json.dumps(space.to_dict())))
    assert type(restored) is type(space)
    assert restored.to_dict() == space.to_dict()
    assert restored.conditions == space.conditions
    assert restored.optional == space.optional
    assert space not in SINGLE.values() or restored == space


def test_a_description_says_nothing_of_what_there_was_not_in_runs_of_before():
    assert "margin" not in Budgets().to_dict()
    assert set(InputDomains((1, 28, 28)).to_dict()) == {"kind", "image_shape", "sampler", "full_scale"}


def test_there_is_a_space_of_every_kind():
    assert {space.kind for space in SPACES.values()} >= set(contexts.registry._KINDS)


@EACH
def test_a_space_answers_for_itself_and_describes_every_condition(space):
    num_classes = getattr(space, "num_classes", 10)
    check_space(space, num_classes)
    assert space.probes(num_classes, 5)
    assert {option.name for option in space.options} == set(space.conditions) or isinstance(space, Joint)
    assert set(space.describe()) == set(space.conditions)
    assert all(space.describe().values())


@pytest.mark.parametrize("space", SINGLE.values(), ids=SINGLE)
def test_what_is_forgotten_is_told_as_where_nothing_was_said(space):
    num_classes = getattr(space, "num_classes", 10)
    batch = space.sample(20, num_classes, rng=torch.Generator().manual_seed(0))
    told = torch.tensor([True, False] * 10)
    x = 100 + 30 * torch.randn(20, 5, *getattr(space, "image_shape", (1, 2, 2)))
    forgotten = space.forget(batch, told)
    (before,), (after,) = (space.encode(space.observe(given, x)) for given in (batch, forgotten))
    (unsaid,) = space.encode(ContextBatch.unconditioned(20, num_classes))
    assert torch.equal(after[told], before[told])
    assert torch.equal(after[~told], unsaid[~told])
    assert not torch.equal(before[~told], unsaid[~told])
    assert forgotten.outputs[~told].all()
    assert torch.equal(forgotten.outputs[told], batch.outputs[told])


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (ClassSubsets(5), torch.ones(2, 5)),
        (ClassSubsets(5, concentration=1.0), torch.ones(2, 5)),
        (InputDomains((1, 4, 3)), torch.zeros(2, 1, 4, 3)),  # which no domain has
        (FeatureSubsets((1, 2, 3)), torch.ones(2, 6)),
        (VocabularySubsets(7), torch.ones(2, 7)),
        (Budgets((0.1, 10.0)), torch.full((2, 1), 0.5)),
        (SingleContext(), torch.ones(2, 0)),
    ],
    ids=lambda part: getattr(part, "conditions", None),
)
def test_where_nothing_is_said_everything_is_told_but_a_domain(space, expected):
    for batch in (ContextBatch.unconditioned(2, 5), ContextBatch.of([Context(), Context()], 5)):
        (encoded,) = space.encode(batch)
        torch.testing.assert_close(encoded, expected)


@pytest.mark.parametrize("space", [Budgets(), BinaryBudget(), FeatureSubsets((4,)), InputDomains((1, 2, 2))])
def test_spaces_without_classes_leave_outputs_alone_and_fit_every_network(space):
    space.check_network(3)
    batch = space.sample(20, 10, rng=torch.Generator().manual_seed(0))
    assert batch.outputs.all()
    if "domain" not in space.conditions:
        torch.testing.assert_close(batch.class_rates, torch.full((20, 10), 0.1))


NAN, INFINITY = math.nan, math.inf


@pytest.mark.parametrize(
    ("make", "given", "noun"),
    [
        *((ClassSubsets, (count,), f"given {count}") for count in (1, 0, -3)),
        (ClassSubsets, (3, RandomSubsets(), ("cat", "dog")), "2 class names"),
        *((ClassSubsets, (3, RandomSubsets(), None, value), "concentration") for value in (0.0, -1.0, NAN)),
        *(
            (kind, (weights,), "kl_weights")
            for kind in (Budgets, BinaryBudget)
            for weights in ((0.0, 1.0), (-0.1, 1.0), (1.0, 0.1), (1.0, 1.0), (NAN, 1.0), (0.1, INFINITY))
        ),
        *((Budgets, ((0.1, 1.0), margin), "margin") for margin in (-0.1, 1.1, NAN, INFINITY)),
        *((FeatureSubsets, (shape,), "features of shape") for shape in ((), (1,), (0, 4), (1, 1, 1), (-2, -3))),
        *((VocabularySubsets, (shape,), "vocabulary") for shape in ((2,), (5, 5))),
        (InputDomains, ((1, 28, 28), ConsecutivePairs(), 255.0, Spectrum()), "spectrum"),
        *((SingleContext, (classes,), "numbers") for classes in ("ab", "37", [None], 3, [[1]], [1.5])),
        (Joint, (), "two or more"),
        (Joint, (Budgets(),), "two or more"),
        (Joint, (ClassSubsets(10), Budgets(), ClassSubsets(10)), "classes, budget, classes"),
        (Joint, (ClassSubsets(10), SingleContext()), "nothing to ask"),
        (Joint, (InputDomains((1, 1_000), summary=Spectrum()), FeatureSubsets((1, 1_000))), "spectrum"),
        *((partial(Joint, missing=part), (ClassSubsets(10), Budgets()), "missing") for part in (-0.1, 1.0, 2, NAN)),
    ],
)
def test_a_space_that_cannot_be_is_refused(make, given, noun):
    with pytest.raises(BhcError, match=noun):
        make(*given)


@pytest.mark.parametrize(
    ("space", "outputs", "noun", "hint"),
    [
        (ClassSubsets(10), 8, "8 outputs", "ClassSubsets(8)"),
        (Joint(Budgets(), ClassSubsets(10)), 5, "5 outputs", "ClassSubsets(5)"),
        *((SingleContext(classes), 10, "single context", "0 to 9") for classes in ((), (10,), (-1, 3))),
    ],
)
def test_a_network_with_other_outputs_is_refused(space, outputs, noun, hint):
    with pytest.raises(BhcError, match=noun) as caught:
        check_space(space, outputs)
    assert hint in caught.value.hint
    with pytest.raises(BhcError, match=noun):
        bhc.wrap(torch.nn.Linear(4, outputs), space, example_input=torch.zeros(1, 4))


TASTE = SINGLE["spectrum"].to_dict() | {"summary": {"kind": "taste"}}


@pytest.mark.parametrize(
    ("data", "noun"), [*(({"kind": kind}, "not registered") for kind in (None, "weather", 3)), (TASTE, "taste")]
)
def test_an_unknown_kind_is_refused(data, noun):
    with pytest.raises(BhcError, match=noun):
        contexts.from_dict(data)


def test_a_condition_that_was_not_trained_for_is_refused():
    with pytest.raises(BhcError, match="budget, weather") as caught:
        ClassSubsets(10).resolve({"classes": [3], "budget": 1, "weather": "fair"})
    assert caught.value.hint == "it takes: classes"


@pytest.mark.parametrize("request_", [{}, {"classes": None}])
def test_a_missing_condition_is_refused(request_):
    with pytest.raises(BhcError, match="lacks classes"):
        ClassSubsets(10).resolve(request_)


def test_a_condition_that_is_none_was_not_given():
    assert ClassSubsets(10).resolve({"classes": [3], "budget": None}).budget is None


# A single context: there is nothing to ask.
@pytest.mark.parametrize("classes", [None, (2, 7)])
@pytest.mark.parametrize("request_", [{"classes": [1]}, {"budget": 1}, {"domain": torch.zeros(1)}])
def test_a_condition_is_refused_with_what_the_model_was_made_for(classes, request_):
    (name,) = request_
    with pytest.raises(BhcError, match=f"condition on {name}") as caught:
        SingleContext(classes).resolve(request_)
    assert "it was made for one context" in caught.value.hint


@pytest.mark.parametrize(
    ("space", "classes", "rates"),
    [(SingleContext(), None, [0.25] * 4), (SingleContext([3, 1, 1]), (1, 3), [0.0, 0.5, 0.0, 0.5])],
)
def test_training_draws_the_context_that_a_request_gives_again_and_again(space, classes, rates):
    assert space.conditions == ()
    context = space.resolve({})
    assert context.classes == classes
    for batch in (space.sample(3, 4, rng=torch.Generator()), ContextBatch.of([context] * 3, 4)):
        torch.testing.assert_close(batch.class_rates, torch.tensor([rates] * 3))
        assert torch.equal(batch.outputs, batch.class_rates > 0)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_zeros_and_ones_cost_what_their_probabilities_say():
    logits, part = torch.randn(4, 5, generator=seeded()), (torch.rand(4, 5, generator=seeded(1)) > 0.5).float()
    expected = -TorchBernoulli(logits=logits).log_prob(part).sum(1)
    torch.testing.assert_close(Bernoulli(5).nll(logits, part), expected)


def test_numbers_cost_what_a_normal_density_says_but_for_its_constant():
    means, part = torch.randn(4, 5, generator=seeded()), torch.randn(4, 5, generator=seeded(1))
    constant = 5 * (math.log(0.3) + 0.5 * math.log(2 * math.pi))
    expected = -Normal(means, 0.3).log_prob(part).sum(1) - constant
    torch.testing.assert_close(Gaussian(5, std=0.3).nll(means, part), expected)


def test_an_image_is_told_by_the_means_of_its_regions():
    image = torch.randn(2, 3, 8, 8, generator=seeded())
    regions = image.reshape(2, 3, 4, 2, 4, 2).mean((3, 5)).flatten(1)
    likelihood = PooledGaussian(3, side=4, std=0.1)
    torch.testing.assert_close(likelihood.nll(regions, image), torch.zeros(2))
    torch.testing.assert_close(likelihood.nll(regions + 0.1, image), torch.full((2,), 0.5 * 48))


@pytest.mark.parametrize(
    ("space", "image_shape"),
    [
        (ClassSubsets(10, RandomSubsets((2, 3))), (1, 2, 2)),
        (ClassSubsets(10, RandomSubsets((2, 3)), concentration=1.0), (1, 2, 2)),
        (InputDomains((3, 9, 7)), (3, 9, 7)),
        (Budgets(), (1, 2, 2)),
        (Joint(Budgets(), InputDomains((1, 8, 8)), ClassSubsets(10)), (1, 8, 8)),
    ],
    ids=["classes", "rates", "domain", "budget", "joint"],
)
def test_every_encoded_part_has_a_likelihood_that_prefers_what_is_there(space, image_shape):
    batch = space.sample(6, 10, rng=seeded())
    batch = space.observe(batch, 255 * torch.rand(6, 2, *image_shape, generator=seeded(1)))
    for likelihood, part in zip(space.likelihoods(), space.encode(batch), strict=True):
        numbers = torch.zeros(6, likelihood.num_numbers, requires_grad=True)
        told = likelihood.nll(numbers, part)
        assert told.shape == (6,)
        optimizer = torch.optim.Adam([numbers], lr=0.1)
        for _ in range(100):
            optimizer.zero_grad()
            likelihood.nll(numbers, part).sum().backward()
            optimizer.step()
        learnt = likelihood.nll(numbers, part)
        assert (learnt <= told).all()
        assert learnt.sum() < 0.8 * told.sum()
        assert likelihood.nll(numbers, part.roll(1, 0)).sum() > learnt.sum()
