"""Networks that flag inputs outside their context, from ``compress`` to the file that is read."""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bhc
from bhc.contexts import Context
from bhc.data import DataSet, Split
from bhc.emission import Alarm, AlarmSamples, auroc, outside_score
from bhc.errors import BhcError
from bhc.formats import open_deployed
from bhc.training import TrainedModel

LOGITS = torch.tensor([[1.0, 5.0, 3.0], [-2.0, -4.0, -8.0]])


@pytest.mark.parametrize(
    ("quarters", "scores"), [(0, [-5.0, 2.0]), (1, [-4.25, 1.0]), (2, [-3.5, 0.0]), (4, [-2.0, -2.0])]
)
def test_the_score_is_a_part_of_the_second_logit_less_the_first(quarters: int, scores: list[float]) -> None:
    assert outside_score(LOGITS, quarters).tolist() == scores
    assert outside_score(torch.tensor([[3.0], [-1.0]]), quarters).tolist() == [-3.0, 1.0]  # one class has its logit


@pytest.mark.parametrize(
    ("count", "rate", "place"),
    [
        (19, 0.05, 19),  # the first that can keep 5 %: nothing above the largest
        (20, 0.05, 20),
        (39, 0.05, 38),  # ceil(40 * 0.95)
        (99, 0.05, 95),
        (100, 0.05, 96),
        (9, 0.1, 9),
        (99, 0.1, 90),  # 100 * 0.9 in binary fractions is not quite 90
        (9, 0.7, 3),
    ],
)
def test_the_threshold_is_the_conformal_quantile(count: int, rate: float, place: int) -> None:
    assert place == math.ceil(round((count + 1) * (1 - rate), 9))
    scores = torch.arange(1.0, count + 1)[torch.randperm(count, generator=torch.Generator().manual_seed(count))]
    assert Alarm.set_by(scores, 2, rate).threshold == place


def test_fresh_inputs_are_flagged_no_more_often_than_allowed() -> None:
    """Over many draws of a small sample; a plain quantile of 19 scores would flag nearly twice as many."""
    rng = torch.Generator().manual_seed(0)
    rates = []
    for _ in range(2000):
        logits = torch.randn(59, 2, generator=rng)
        fresh = torch.randn(50, 2, generator=rng)
        rates.append(Alarm.set_by(outside_score(logits), 2, 0.05).flags(fresh).float().mean().item())
    assert 0.045 < np.mean(rates) < 0.0525


@pytest.mark.parametrize("score", [-3.14159, 1 / 3, -1e-9, 2049.0, -70000.0, 70001.0, 1e6 / 3])
def test_the_threshold_is_rounded_up_to_few_bits(score: float) -> None:
    threshold = Alarm.set_by(torch.full((9,), score, dtype=torch.double), 0, 0.1).threshold
    assert score <= threshold <= score + abs(score) / 1000 + 1e-7 or (score < -65504 and threshold == -65504)
    assert float(np.float32(threshold)) == threshold
    if abs(score) < 65504:
        assert float(np.float16(threshold)) == threshold


@pytest.mark.parametrize("rate", [0.05, 0.001, 0.01, 0.123, 0.5, 0.999])
def test_a_card_keeps_it(rate: float) -> None:
    alarm = Alarm(3, -2.5, rate)
    assert Alarm.of({"alarm": alarm.to_card()}) == alarm
    assert Alarm.of({}) is None


@pytest.mark.parametrize(
    "stored",
    [5, [], [2, -1.0], [5, -1.0, 0.05], [-1, -1.0, 0.05], [2, 1, 0.05], [2, float("nan"), 0.05], [2, -1.0, 0.0],
     [2, -1.0, 2.0], [2, -1.0, "0.05"], [2.0, -1.0, 0.05]],
    ids=str,
)  # fmt: skip
def test_a_damaged_card_is_an_error(stored: object) -> None:
    with pytest.raises(ValueError, match="alarm"):
        Alarm.of({"alarm": stored})


def test_pairs_in_order_count_one_and_ties_half() -> None:
    rng = torch.Generator().manual_seed(1)
    inside, outside = (torch.randint(0, 20, (size,), generator=rng).float() for size in (83, 131))
    inside[0], outside[0] = -torch.inf, torch.inf
    wins = sum((b > a) + 0.5 * (b == a) for a, b in product(inside.tolist(), outside.tolist()))
    assert auroc(inside, outside) == wins / (83 * 131)
    assert auroc(outside, inside) == pytest.approx(1 - wins / (83 * 131))


CLASSES = [3, 4, 8]
RATE = 0.1


@pytest.fixture(scope="module")
def small(quick_model: bhc.Compressor) -> bhc.Compressed:
    return quick_model.compress(classes=CLASSES, flag_outside=RATE)


@pytest.fixture(scope="module")
def domains(digits: DataSet, pretrained: torch.nn.Module) -> bhc.Compressor:
    return bhc.wrap(pretrained, bhc.InputDomains((1, 8, 8), full_scale=16.0), example_input=digits.train.inputs[:1])


def test_few_of_the_context_s_own_inputs_are_flagged_and_the_report_says_how_well_others_are_told(
    quick_model: bhc.Compressor, small: bhc.Compressed
) -> None:
    split = quick_model.model.validation
    inside = torch.isin(split.labels, torch.tensor(CLASSES))
    own, others = (small.predict(split.inputs[places]) for places in (inside, ~inside))
    assert own.outside.dtype == torch.bool
    assert RATE / 2 < own.outside.float().mean() <= RATE
    assert others.outside.float().mean() > 0.5
    assert small.report.flag_outside == RATE
    area = auroc(own.outside_score, others.outside_score)
    assert small.report.outside_auroc == pytest.approx(area, abs=0.05)  # of an even part of them
    line = f"flags outside at most 10 % false alarms where it was set; AUROC {small.report.outside_auroc:.3f} on"
    assert line in str(small.report)


def test_the_part_of_the_second_logit_is_the_best_one(quick_model: bhc.Compressor, small: bhc.Compressed) -> None:
    samples = AlarmSamples.of(quick_model.model, Context(classes=tuple(CLASSES)), RATE)
    with torch.no_grad():
        inside, outside = (small.network.graph(images) for images in (samples.inside, samples.outside))
    areas = []
    for part in (0, 0.25, 0.5, 0.75, 1):
        scores = [part * x.topk(2).values[:, 1] - x.amax(1) for x in (inside, outside)]
        areas.append(auroc(*scores))
    assert areas[small.alarm.quarters] == max(areas)
    assert small.report.outside_auroc == pytest.approx(max(areas), abs=1e-3)


def test_images_left_out_are_as_many_and_of_all_classes(quick_model: bhc.Compressor) -> None:
    samples = AlarmSamples.of(quick_model.model, Context(classes=(3, 4)), RATE)
    assert len(samples.outside) == len(samples.inside)
    split = quick_model.model.validation
    rows = {image.numpy().tobytes(): label for image, label in zip(split.inputs, split.labels.tolist(), strict=True)}
    labels = [rows[image.numpy().tobytes()] for image in samples.outside]
    assert set(labels) == {0, 1, 2, 5, 6, 7, 8, 9}
    counts = [labels.count(label) for label in set(labels)]
    assert max(counts) - min(counts) <= 3
    everything = quick_model.compress(classes=list(range(10)), flag_outside=RATE)  # nothing is left out
    assert everything.alarm is not None
    assert everything.report.outside_auroc is None


def test_without_it_files_are_as_they_were(quick_model: bhc.Compressor, small: bhc.Compressed, digits: DataSet) -> None:
    plain = quick_model.compress(classes=CLASSES)
    answer = plain.predict(digits.test.inputs)
    assert plain.alarm is None
    assert answer.outside is None
    assert answer.outside_score.shape == (len(digits.test),)
    assert "alarm" not in plain.network.card
    assert "alarm" not in plain.metadata()
    assert "flags outside" not in str(plain.report)
    assert len(small.to_bytes()) - len(plain.to_bytes()) == 9  # a name, a list of three, two 16-bit floats


def test_it_is_read_back_from_every_file(small: bhc.Compressed, digits: DataSet, tmp_path: Path) -> None:
    small.save(tmp_path / "a.bhc").to_onnx(tmp_path / "a.onnx").to_torch(tmp_path / "a.pt2")
    again = bhc.read(tmp_path / "a.bhc")
    before, after = small.predict(digits.test.inputs), again.predict(digits.test.inputs)
    assert again.alarm == small.alarm
    assert torch.equal(before.outside, after.outside)
    assert torch.equal(before.outside_score, after.outside_score)
    assert again.report.flag_outside == RATE
    assert "at most 10 % false alarms where it was set\n" in str(again.report)
    stored = json.loads(json.dumps(small.metadata()))["alarm"]
    assert stored == [small.alarm.quarters, small.alarm.threshold, float(np.float16(RATE))]
    for suffix in (".bhc", ".onnx", ".pt2"):
        deployed = open_deployed(tmp_path / f"a{suffix}")
        assert deployed.alarm == small.network.card["alarm"]
        assert deployed.temperature == small.temperature


def test_limits_on_the_file_count_it_too(quick_model: bhc.Compressor, small: bhc.Compressed) -> None:
    size = len(small.to_bytes()) - 5
    tighter = quick_model.compress(classes=CLASSES, flag_outside=RATE, max_bytes=size)
    assert tighter.alarm is not None
    assert len(tighter.to_bytes()) <= size


def test_a_domain_s_alarm_is_set_by_its_sample(domains: bhc.Compressor, digits: DataSet) -> None:
    sample = digits.train.restricted_to([3, 4]).inputs
    for given in (sample, sample.numpy(), sample.double()):
        small = domains.compress(domain=given, flag_outside=RATE)
        flags = small.predict(sample).outside
        assert RATE / 2 < flags.float().mean() <= RATE
        assert small.report.flag_outside == RATE
        assert small.report.outside_auroc is None
        assert "false alarms" in str(small.report)


@pytest.mark.parametrize("rate", [0, 1, -0.1, 5, float("nan"), "0.05", True])
def test_a_rate_that_is_none_is_refused(quick_model: bhc.Compressor, rate: Any) -> None:
    with pytest.raises(BhcError, match="between 0 and 1") as caught:
        quick_model.compress(classes=CLASSES, flag_outside=rate)
    assert "0.05 means 5 %" in caught.value.hint


def test_too_few_inputs_for_a_rate_are_refused(
    quick_model: bhc.Compressor, domains: bhc.Compressor, digits: DataSet
) -> None:
    own = len(quick_model.model.validation.restricted_to(CLASSES))
    with pytest.raises(BhcError, match=f"9,999 inputs of the context, there are {own}") as caught:
        quick_model.compress(classes=CLASSES, flag_outside=1e-4)
    named = float(caught.value.hint.split("a rate of ")[1].split(" ")[0])
    assert quick_model.compress(classes=CLASSES, flag_outside=named).alarm is not None
    images = digits.train.inputs
    with pytest.raises(BhcError, match="19 inputs of the context, there are 18") as caught:
        domains.compress(domain=images[:18], flag_outside=0.05)
    assert "a larger sample" in caught.value.hint
    assert domains.compress(domain=images[:19], flag_outside=0.05).alarm is not None


def test_without_data_there_is_nothing_to_set_it_by(quick_model: bhc.Compressor) -> None:
    split = quick_model.model.validation
    some = split.restricted_to([0, 1, 3])
    for sample in (None, Split(some.inputs, some.labels)):
        model = bhc.Compressor(TrainedModel(quick_model.network, validation=sample))
        with pytest.raises(BhcError, match="validation data"):
            model.compress(classes=CLASSES, flag_outside=RATE)
