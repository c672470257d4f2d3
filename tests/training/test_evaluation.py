"""Contexts that a run is judged on, on a bounded number of examples; each gets what it alone would get."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import bhc
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
from bhc.data import DataSet, Split
from bhc.hypernet import ConditionalNetwork
from bhc.training import Panel, Probe, Silent, try_thresholds
from bhc.training import evaluation as measuring
from bhc.training.evaluation import find_probes, looks_for, spread, trade_off, try_contexts

SUBSETS = ((0, 1), (3, 4), (3, 8, 9), (2, 5, 7))
THRESHOLDS = [1.0, 0.9999, 0.0, -1.5]


def probes_of(model: bhc.Compressor) -> list[Probe]:
    return [Probe(model.space.resolve({"classes": subset}), subset) for subset in SUBSETS]


@contextmanager
def passes(network: ConditionalNetwork) -> Iterator[list[int]]:
    """How many examples each masked pass has."""
    seen: list[int] = []
    masked = network.bayesian.masked

    def watched(x: torch.Tensor, *given: object) -> torch.Tensor:
        seen.append(len(x))
        return masked(x, *given)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network.bayesian, "masked", watched)
        yield seen


def test_several_contexts_together_are_what_each_is_alone(quick_model: bhc.Compressor, digits: DataSet) -> None:
    probes = probes_of(quick_model)
    examples = [probe.examples(digits.validation) for probe in probes]
    assert len({len(own) for own in examples}) > 1  # so that some are filled up
    together = try_contexts(quick_model.network, [probe.context for probe in probes], examples, THRESHOLDS)
    for probe, own, trials in zip(probes, examples, together, strict=True):
        alone = try_thresholds(quick_model.network, probe.context, own, THRESHOLDS)
        for one, other in zip(alone, trials, strict=True):
            assert one.ratio == pytest.approx(other.ratio)
            assert one.images == other.images == len(own)
            assert abs(one.wrong - other.wrong) <= 1  # sums in another order: an answer at the border may change


def test_a_threshold_that_cuts_nothing_more_is_not_computed_again(quick_model: bhc.Compressor, digits: DataSet) -> None:
    (probe, *_), everything = probes_of(quick_model), [1e6, 2e6, 3e6]
    with passes(quick_model.network) as seen:
        trials = try_thresholds(quick_model.network, probe.context, probe.examples(digits.validation), everything)
    assert len(seen) == 1
    assert trials[0] == trials[1] == trials[2]


@pytest.mark.parametrize("most", [1, 3, 4, 11, 40, None])
def test_a_panel_has_at_most_so_many_examples_spread_evenly_or_all(
    quick_model: bhc.Compressor, digits: DataSet, most: int | None
) -> None:
    whole = [digits.validation.restricted_to(subset).labels for subset in SUBSETS]
    panel = Panel.of(probes_of(quick_model), digits.validation, **({} if most is None else {"most": most}))
    assert len(panel.probes) == min(most or len(SUBSETS), len(SUBSETS))
    assert sum(map(len, panel.examples)) <= (most or sum(map(len, whole)))
    for probe, own in zip(panel.probes, panel.examples, strict=True):
        assert set(own.labels.tolist()) <= set(probe.classes)
    assert most is not None or list(map(len, panel.examples)) == list(map(len, whole))


def test_what_is_spread_keeps_its_order() -> None:
    assert list(spread(range(10), 20)) == list(range(10))
    assert list(spread(range(10), 4)) == [0, 2, 5, 7]


def test_large_networks_look_at_a_few_passes_and_small_ones_at_more(
    quick_model: bhc.Compressor, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, sample = quick_model.network, digits.validation
    assert looks_for(network, sample) > 100 * len(sample)  # next to no time
    monkeypatch.setattr(measuring, "FREE_FLOPS", 0)
    assert looks_for(network, sample) == measuring.PASSES * len(sample)
    monkeypatch.setattr(measuring, "MOST_LOOKS", 100)
    assert looks_for(network, sample) == 100


class Heard(Silent):
    """What a run shows: each title, how much there is to do, and how much was done."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int, int]] = []

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self.shown.append((title, total, done))

    def update(self, done: int, terms: dict[str, float]) -> None:
        self.shown[-1] = (*self.shown[-1][:2], done)


def test_fit_measures_in_a_few_passes_and_shows_it(
    pretrained: torch.nn.Module, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a network that is not small, as far as measuring knows."""
    monkeypatch.setattr(measuring, "FREE_FLOPS", 0)
    model = bhc.wrap(pretrained, bhc.ClassSubsets(10), example_input=digits.train.inputs[:1])
    small = {"steps": 1, "contexts": 2, "examples": 2}
    recipe = (bhc.Learn(**small), bhc.Consolidate(**small, ratios=(1.5, 4.0)))  # type: ignore[arg-type]
    sample, heard = Split(digits.validation.inputs[:60], digits.validation.labels[:60]), Heard()
    with passes(model.network) as seen:
        bhc.fit(model, digits.train, sample, recipe=recipe, progress=heard)
    assert [title for title, _, _ in heard.shown] == ["learning", "measuring", "consolidating", "measuring"]
    assert all(0 < total == done for _, total, done in heard.shown)
    in_a_step = small["contexts"] * small["examples"]
    assert sum(seen) - in_a_step <= 2 * measuring.PASSES * len(sample)


def test_a_curve_tells_of_each_look(quick_model: bhc.Compressor, digits: DataSet) -> None:
    looks = []
    panel = Panel.of(probes_of(quick_model), digits.validation, most=40)
    points = trade_off(quick_model.network, panel, THRESHOLDS, on_look=lambda: looks.append(1))
    assert len(looks) == len(points) == len(THRESHOLDS)
    assert points[0].ratio_harmonic < points[-1].ratio_harmonic


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
