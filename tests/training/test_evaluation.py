"""A curve is measured on a bounded number of examples, and computes what one context alone would."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import bhc
from bhc.data import DataSet, Split
from bhc.hypernet import ConditionalNetwork
from bhc.training import Panel, Probe, Silent, try_thresholds
from bhc.training import evaluation as measuring
from bhc.training.evaluation import looks_for, spread, trade_off, try_contexts

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
