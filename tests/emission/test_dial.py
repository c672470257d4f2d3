"""One dial: budgets, limits and margins choose among the networks of both origins."""

from pathlib import Path

import numpy as np
import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.emission import SizeCurve
from bhc.emission.judge import QUANTILE, tango_score
from bhc.errors import BhcError
from bhc.training import Silent
from tests.training.runs import wrapped

RECIPE = (
    bhc.MeasureCurvature(per_class=60, graded=20),
    bhc.Learn(steps=60, kl_weight=0.3, contexts=8, examples=8),
    bhc.Consolidate(steps=40, contexts=8, examples=8),
)
CONTEXTS = ((3, 8), (1, 7), (0, 4, 9))


@pytest.fixture(scope="module")
def run(digits: DataSet, pretrained: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dial") / "run"
    model = wrapped(digits, pretrained)
    bhc.fit(model, digits.train, digits.validation, recipe=RECIPE, run=folder, progress=Silent())
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> bhc.Compressor:
    return bhc.load(run)


@pytest.mark.parametrize("classes", CONTEXTS)
def test_more_room_never_gives_a_worse_network(model: bhc.Compressor, classes: tuple[int, ...]) -> None:
    reports = [model.compress(classes=classes, budget=budget).report for budget in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    rises = np.diff([report.error for report in reports])
    assert rises.min() >= -100.1 / reports[0].validation_images  # what is tried only near a limit may have one less
    assert {report.origin for report in reports} <= {"curvature", "hypernetwork"}
    ratio = max(256.0, *(point["ratio_harmonic"] for point in model.model.training["curves"]["after"]))
    for report, budget in zip(reports, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), strict=True):
        assert report.weights_after <= report.weights_before / ratio**budget


@pytest.mark.filterwarnings("ignore::bhc.emission.emit.ThresholdWarning")
def test_the_same_holds_for_bytes(model: bhc.Compressor) -> None:
    rng = np.random.default_rng(0)
    rises = []
    for classes in CONTEXTS:
        limits = np.sort(np.exp(rng.uniform(np.log(400), np.log(20_000), 12))).astype(int).tolist()
        found = [model.compress(classes=classes, max_bytes=limit).report for limit in limits]
        assert all(report.file_bytes <= limit for report, limit in zip(found, limits, strict=True))
        rises += np.diff([report.error for report in found]).tolist()
    assert max(rises) <= 1.2  # one of some ninety examples
    assert sum(rise > 0 for rise in rises) <= len(rises) / 10


def test_with_room_for_all_it_is_as_good_as_the_original(model: bhc.Compressor) -> None:
    for classes in CONTEXTS:
        report = model.compress(classes=classes, budget=0).report
        assert report.error <= report.error_before


def test_the_default_keeps_a_margin_and_says_so(model: bhc.Compressor, digits: DataSet) -> None:
    classes = (1, 7)
    report = model.compress(classes=classes, margin=8.0).report
    assert report.margin == 8.0
    assert "less than 8 points over the original" in str(report)
    assert model.compress(classes=classes, margin=20.0).report.weights_after <= report.weights_after
    own = digits.validation.restricted_to(classes)
    assert report.validation_images == len(own)


def test_margins_that_make_no_sense(model: bhc.Compressor) -> None:
    for wrong in (0, -1.0, float("nan"), "much"):
        with pytest.raises(BhcError, match="margin"):
            model.compress(classes=(1, 7), margin=wrong)
    with pytest.raises(BhcError, match=r"margin of 0\.01 points cannot be tested"):
        model.compress(classes=(1, 7), margin=0.01)
    with pytest.raises(BhcError, match="margin"):
        model.compress(classes=(1, 7), margin=1.0, max_bytes=1000)


@pytest.mark.parametrize("budget", [-0.1, 1.1, "small", True])
def test_budgets_go_from_0_to_1(model: bhc.Compressor, budget: object) -> None:
    with pytest.raises(BhcError, match="budget"):
        model.compress(classes=(1, 7), budget=budget)


def test_a_run_without_curvature_is_what_it_was(quick_model: bhc.Compressor) -> None:
    with pytest.raises(BhcError, match="budget"):
        quick_model.compress(classes=(1, 7), budget=0.5)
    report = quick_model.compress(classes=(1, 7)).report
    assert report.threshold == quick_model.model.default_threshold
    assert (report.origin, report.margin) == ("hypernetwork", None)


def test_a_threshold_is_the_hypernetworks(model: bhc.Compressor) -> None:
    report = model.compress(classes=(1, 7), threshold=0.5).report
    assert (report.threshold, report.origin) == (0.5, "hypernetwork")


def test_a_file_says_where_its_weights_come_from(model: bhc.Compressor, tmp_path: Path) -> None:
    small = next(
        small
        for ratio in (2, 3, 5, 8)
        if (small := model.compress(classes=(3, 8), max_weights=model.network.num_weights // ratio)).report.origin
        == "curvature"
    )
    read = bhc.read(small.save(tmp_path / "small.bhc") and tmp_path / "small.bhc")
    assert read.report.origin == "curvature"
    assert "curvature" in str(read.report)
    assert read.report.threshold == pytest.approx(small.report.threshold, abs=1e-3)


def test_the_curve_is_part_of_the_run(run: Path, model: bhc.Compressor) -> None:
    curve = SizeCurve.from_dict(model.model.training["size_curve"])
    assert curve.points[0].budget == 0
    assert curve.points[-1].budget == 1
    errors, ratios = ([getattr(point, name) for point in curve.points] for name in ("error", "ratio"))
    assert errors == sorted(errors)
    assert ratios == sorted(ratios)
    assert all(point.lost_least <= point.lost <= point.lost_most for point in curve.points)
    assert "what size costs" in str(curve)


def test_curvature_alone_is_a_model_too(digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path) -> None:
    """Nothing is trained, and there are networks of many sizes all the same."""
    model = wrapped(digits, pretrained)
    recipe = (bhc.MeasureCurvature(per_class=60, graded=20),)
    bhc.fit(model, digits.train, digits.validation, recipe=recipe, run=tmp_path / "run", progress=Silent())
    again = bhc.load(tmp_path / "run")
    small = model.compress(classes=(3, 8), max_weights=model.network.num_weights // 10)
    assert small.report.origin == "curvature"
    assert small.report.error <= small.report.error_before + 3
    assert again.compress(classes=(3, 8), max_weights=model.network.num_weights // 10).to_bytes() == small.to_bytes()


def test_guarantees_are_given_of_either(digits: DataSet, pretrained: torch.nn.Module) -> None:
    model = wrapped(digits, pretrained)
    half = len(digits.train) // 2
    sets = digits.train.at(slice(0, half)), digits.train.at(slice(half, None))
    bhc.fit(model, sets[0], digits.validation, calibration_set=sets[1], recipe=RECIPE, progress=Silent())
    small = model.compress(classes=(0, 1), max_error=12, confidence=0.8)
    assert small.report.guarantee is not None
    assert small.report.guarantee.wrong < small.report.guarantee.images


def test_the_score_is_standard_normal_at_the_margin() -> None:
    """As often as the test says, a network at the margin itself is taken for a better one."""
    rng, margin, count = np.random.default_rng(0), 0.02, 800
    for right in (0.005, 0.02):  # part of the examples that become right
        draws = rng.multinomial(count, [right + margin, right, 1 - 2 * right - margin], size=4000)
        passed = np.mean([tango_score(int(lost), int(won), count, margin) < -QUANTILE for lost, won, _ in draws])
        assert 0.03 < passed < 0.075
