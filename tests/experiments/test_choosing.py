"""Thresholds and steps are chosen on validation data alone."""

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from study import choosing
from study.choosing import CURVE_POINTS, choose, curve, rounded_errors, thresholds_of
from study.config import Choice
from study.methods import METHODS, Case, Sample
from study.training import Member

import bhc
from bhc.contexts import Context
from bhc.data import DataSet, Split
from bhc.emission import FINER_SCALES, SCALES
from bhc.training import Panel, Point, Probe, TrainedModel, trade_off
from tests.experiments.toys import NINE, asked_of, few, fitted, member_of
from tests.hypernet.toys import PAIRS, conditional, images, perturb_


def at(threshold: float, ratio: float, error: float) -> Point:
    """A point whose other ratios and errors would choose differently."""
    return Point(threshold, ratio, 1000 / ratio, 1000 / ratio, error, 100 - error)


def assert_same_curve(found: Sequence[Point], expected: Sequence[Point]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert asdict(one) == pytest.approx(asdict(other))


def test_a_curve_of_slim_networks_is_that_of_masked_ones(pairs_member: Member, digits: DataSet) -> None:
    thresholds = np.linspace(-6, 3, 13).tolist()
    probes = [Probe(Context(classes=pair), pair) for pair in NINE]
    found = {part: curve(asked_of(pairs_member), thresholds, on=part) for part in ("validation", "test")}
    for part, points in found.items():
        assert_same_curve(
            points, trade_off(pairs_member.model.network, Panel.of(probes, getattr(digits, part)), thresholds)
        )
        assert len({point.ratio_mean for point in points}) > 5
        assert len({point.error for point in points}) > 5
    assert found["validation"] != found["test"]


def test_a_curve_of_slim_networks_is_that_of_masked_ones_where_single_weights_go(
    sparse_member: Member, digits: DataSet
) -> None:
    thresholds = np.linspace(-4, 6, 11).tolist()
    points = curve(asked_of(sparse_member), thresholds, on="validation")
    probe = Probe(Context(), tuple(range(10)))
    assert_same_curve(points, trade_off(sparse_member.model.network, Panel.of([probe], digits.validation), thresholds))
    assert len({point.error for point in points}) > 5


def test_a_curve_of_slim_convolutions_is_that_of_masked_ones_down_to_the_last_unit() -> None:
    network = conditional(bhc.LowRank(2), "lenet-5-caffe", space=PAIRS)
    perturb_(network.hypernet, std=0.3)
    x = images("lenet-5-caffe", 60).to(torch.uint8)
    examples = Split(x, torch.arange(60) % 2 + 3)
    sample = Sample({"classes": [3, 4]}, examples)
    member = member_of(bhc.Compressor(TrainedModel(network)), [Case("3, 4", sample, sample)])
    rates = torch.cat([rates for _, rates in choosing.log_dropout(member, member.cases[0])])
    thresholds = torch.linspace(float(rates.min()) - 1, float(rates.max()) + 1, 40).tolist()
    points = curve(asked_of(member), thresholds, on="validation")
    assert_same_curve(
        points, trade_off(network, Panel.of([Probe(Context(classes=(3, 4)), (3, 4))], examples), thresholds)
    )
    ratios = [point.ratio_mean for point in points]
    assert ratios == sorted(ratios, reverse=True)
    assert len(set(ratios)) > 10


def test_curves_are_drawn_wider_where_single_weights_go(pairs_member: Member, sparse_member: Member) -> None:
    for member, ends in ((pairs_member, choosing.UNITS), (sparse_member, choosing.SINGLE_WEIGHTS)):
        thresholds = thresholds_of(asked_of(member))
        assert len(thresholds) == CURVE_POINTS
        assert (thresholds[0], thresholds[-1]) == ends
        np.testing.assert_allclose(np.diff(thresholds), (ends[1] - ends[0]) / (CURVE_POINTS - 1))
    assert 3.0 in thresholds  # the published threshold of SparseVD is a point of its curve


def test_where_ratios_were_asked_for_the_curve_is_drawn_over_them(digits: DataSet, pretrained: torch.nn.Module) -> None:
    space = bhc.ClassSubsets(10, bhc.ConsecutivePairs())
    recipe = (bhc.Learn(steps=100, kl_weight=0.3), bhc.Consolidate(steps=5, ratios=(2.0, 5.0)))
    model = fitted(pretrained, digits, space, recipe)
    asked = asked_of(Member(model, METHODS["bhc-cy"].cases(digits)))
    thresholds = thresholds_of(asked)
    assert (thresholds[0], thresholds[-1]) == pytest.approx(model.model.thresholds)
    points = curve(asked, [thresholds[0], thresholds[-1]], on="validation")
    assert [point.ratio_harmonic for point in points] == pytest.approx([5, 2], rel=0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_draws_the_same_curve_and_makes_the_same_choice(pairs_member: Member) -> None:
    asked = asked_of(few(pairs_member))
    thresholds = thresholds_of(asked)
    points = {device: curve(asked, thresholds, on="validation", device=device) for device in ("cpu", "cuda")}
    assert_same_curve(points["cuda"], points["cpu"])
    choice = Choice(error=(8.0,), bits_error=(10.0,))
    here, there = (choose(asked, points["cpu"], choice, 0, device=device) for device in ("cpu", "cuda"))
    assert (here.threshold, here.scale) == (there.threshold, there.scale)


def test_choosing_never_looks_at_test_images(pairs_member: Member) -> None:
    """Whoever does gets an error."""
    blind = [(member, replace(case, test=None)) for member, case in asked_of(few(pairs_member))]  # type: ignore[arg-type]
    thresholds = thresholds_of(blind)
    points = curve(blind, thresholds, on="validation")
    inside = [point for point in points if -2 <= point.threshold <= 1]
    choice = Choice(error=(8.0,), bits_error=(10.0,))
    assert choose(blind, inside, choice, 0) == choose(asked_of(few(pairs_member)), inside, choice, 0)
    with pytest.raises(AttributeError):
        curve(blind, thresholds, on="test")


def wrong_answers(member: Member, threshold: float, scale: float) -> float:
    """Percent wrong on validation images, one network after the other."""
    answers = []
    for case in member.cases:
        examples = case.validation.examples
        small = member.model.compress(
            threshold=threshold, quantisation=bhc.VarianceBits(scale), **case.validation.conditions
        )
        answers += (small.predict(examples.inputs).labels != examples.labels).tolist()
    return 100 * sum(answers) / len(answers)


def test_the_coarsest_steps_within_the_error_are_chosen(pairs_member: Member) -> None:
    asked, points = asked_of(few(pairs_member)), [at(-0.5, 50, 2.0)]
    errors = {scale: wrong_answers(few(pairs_member), -0.5, scale) for scale in SCALES}
    assert rounded_errors(asked, -0.5, SCALES, device=torch.device("cpu")) == pytest.approx(errors)
    assert errors[SCALES[-1]] > errors[SCALES[0]]
    limit = (errors[SCALES[0]] + errors[SCALES[-1]]) / 2
    chosen = choose(asked, points, Choice(error=(3.0,), bits_error=(limit,)), 0)
    assert chosen.scale == max(scale for scale, error in errors.items() if error <= limit)
    assert chosen.scale < SCALES[-1]
    assert chosen.threshold == -0.5
    assert chosen.validation_error == 2.0
    assert chosen.validation_error_bits == pytest.approx(errors[chosen.scale])


def test_coarse_steps_that_happen_to_fit_are_taken_and_else_the_most_accurate(
    pairs_member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = dict.fromkeys(SCALES, 9.0) | {SCALES[1]: 2.0, SCALES[2]: 3.0, SCALES[4]: 2.5}
    monkeypatch.setattr(choosing, "rounded_errors", lambda *_, **__: errors)

    def scale_within(*limits: float, group: int = 0) -> float:
        choice = Choice(error=(1.0, 1.0), bits_error=limits)
        return choose(asked_of(pairs_member), [at(0, 10, 1.0)], choice, group).scale

    assert scale_within(2.5) == SCALES[4]
    assert scale_within(2.0) == SCALES[1]
    assert scale_within(1.0) == SCALES[1]
    assert scale_within(9.0) == SCALES[-1]
    assert scale_within(2.0, 2.5, group=1) == SCALES[4]


@pytest.mark.parametrize(("fine", "found"), [(1.0, 2.0**-7), (9.0, SCALES[0])])
def test_finer_steps_are_tried_where_no_usual_ones_will_do(
    pairs_member: Member, monkeypatch: pytest.MonkeyPatch, fine: float, found: float
) -> None:
    errors = dict.fromkeys(FINER_SCALES, fine) | dict.fromkeys(SCALES, 9.0) | {SCALES[0]: 2.5}
    monkeypatch.setattr(
        choosing, "rounded_errors", lambda asked, threshold, scales, device: {scale: errors[scale] for scale in scales}
    )
    choice = Choice(error=(1.0,), bits_error=(2.0,))
    assert choose(asked_of(pairs_member), [at(0, 10, 1.0)], choice, 0).scale == found


def test_a_published_threshold_is_taken_as_it_is(pairs_member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "rounded_errors", lambda asked, threshold, *_, **__: dict.fromkeys(SCALES, threshold))
    points = [at(-1, 90, 1.0), at(0, 50, 2.0), at(1, 20, 3.0)]
    chosen = choose(asked_of(pairs_member), points, Choice(threshold=0.8, bits_error=(1.0,)), 0)
    assert (chosen.threshold, chosen.validation_error, chosen.validation_error_bits) == (0.8, 3.0, 0.8)


def test_each_group_has_a_limit_of_its_own(pairs_member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "rounded_errors", lambda *_, **__: dict.fromkeys(SCALES, 0.0))
    points = [at(-1, 90, 3.0), at(0, 50, 2.0), at(1, 20, 1.0)]
    choice = Choice(error=(1.0, 2.0), bits_error=(1.0, 1.0))
    assert [choose(asked_of(pairs_member), points, choice, group).threshold for group in (0, 1)] == [1, 0]
