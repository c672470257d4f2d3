import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bhc
from bhc.emission import expected_calibration_error
from bhc.emission.report import from_card, to_card
from bhc.errors import BhcError

NAMES = ("zero", "one", "two", "drei", "vier", "fünf", "six", "seven", "eight", "nine")
TIMES = ("emit_ms", "latency_ms")  # of the machine, not of the network
MEASURED = ("ece_before", "ece", "outside_auroc", "without_multiples")  # not worth their bytes

pytestmark = pytest.mark.filterwarnings("ignore::bhc.emission.ThresholdWarning")


@pytest.fixture(scope="module")
def report(quick_model: bhc.Compressor) -> bhc.Report:
    return quick_model.compress(classes=[3, 4]).report


def test_a_report_is_plain_data(report: bhc.Report) -> None:
    again = json.loads(json.dumps(report.to_dict()))
    assert bhc.Report.from_dict(again) == report
    assert bhc.Report.from_dict(report.to_dict()) == report
    for field in fields(report):
        assert field.name in again
    for derived in ("pruning_ratio", "bits_ratio", "reference_bits_ratio", "file_ratio", "notes"):
        assert derived in again


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"round_to": 8}, "8 in every layer"),
        ({"round_to": {"fc1": 16, "fc2": 8}, "threshold": -1.1}, "16 in fc1, 8 in fc2"),
        ({"round_to": 5, "quantisation": bhc.Float32(), "flag_outside": 0.2}, "5 in every layer"),
        ({"round_to": 8, "max_error": 20.0}, "8 in every layer"),
    ],
    ids=str,
)
def test_what_multiples_cost_stands_beside_the_same_threshold_without(
    quick_model: bhc.Compressor, asked: dict[str, Any], told: str
) -> None:
    report = quick_model.compress(classes=[3, 8, 9], **asked).report
    quantisation = bhc.Float32() if report.scale is None else bhc.VarianceBits(report.scale)
    flags = {name: asked[name] for name in ("flag_outside",) if name in asked}
    plain = quick_model.compress(
        classes=[3, 8, 9], threshold=report.threshold, quantisation=quantisation, **flags
    ).report
    without = report.without_multiples
    assert without is not None
    assert (without.weights, without.flops, without.file_bytes) == (
        plain.weights_after,
        plain.flops_after,
        plain.file_bytes,
    )
    assert without.weights < report.weights_after
    assert report.round_to == asked["round_to"]
    line = f"of {told}; not rounded, this threshold has {without.weights:,} weights, {without.flops:,} FLOPs,"
    assert f"multiples     {line} {without.file_bytes:,} bytes" in str(report).splitlines()
    again = bhc.Report.from_dict(json.loads(json.dumps(report.to_dict())))
    assert again == report
    assert report.to_dict()["without_multiples"]["file_bytes"] == plain.file_bytes
    assert plain.without_multiples is plain.round_to is None
    assert "multiples" not in str(plain)


def test_ratios_are_those_of_the_counts(report: bhc.Report) -> None:
    assert report.weights_after == sum(report.layer_weights)
    assert report.pruning_ratio == pytest.approx(report.weights_before / report.weights_after)
    bits = sum(width * count for width, count in zip(report.bits, report.layer_weights, strict=True))
    assert report.bits_ratio == pytest.approx(32 * report.weights_before / bits)
    assert report.file_ratio == pytest.approx(report.parameter_bytes_before / report.file_bytes)
    assert replace(report, file_bytes=None).file_ratio is None
    assert replace(report, reference_bits=None).reference_bits_ratio is None


@pytest.mark.parametrize(
    "request_",
    [
        {"classes": [3, 4]},
        {"classes": [7]},
        {"classes": {4: 0.4, 3: 0.4}},
        {"classes": {4: 0.1, 3: 0.9}},
        {"classes": {3: 0.1, 8: 0.7, 9: 0.2}, "threshold": -2},
        {"classes": [1, 2], "threshold": -1e5},
        {"classes": [1, 2], "threshold": 0.123456789},
        {"classes": [1, 2], "quantisation": bhc.Float32()},
        {"classes": [1, 2], "quantisation": bhc.VarianceBits(0.3)},
        {"classes": [1, 2], "max_latency_ms": 100.0},
        {"classes": [1, 2], "flag_outside": 0.1},
        {"classes": [1, 2], "round_to": 8},
        {"classes": [1, 2], "round_to": {"fc2": 16, "fc1": 300}, "threshold": -1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("names", [None, NAMES, tuple(map(str, range(10)))], ids=["unnamed", "names", "numbers"])
def test_a_file_keeps_every_field_but_times_and_measurements(
    weighing_model: bhc.Compressor, request_: dict[str, object], names: tuple[str, ...] | None, tmp_path: Path
) -> None:
    model = bhc.Compressor(replace(weighing_model.model, class_names=names))
    written = model.compress(**request_).save(tmp_path / "small.bhc").report
    read = bhc.read(tmp_path / "small.bhc").report
    assert written.emit_ms is not None
    for field in fields(read):
        expected = None if field.name in TIMES + MEASURED else getattr(written, field.name)
        assert getattr(read, field.name) == expected, field.name
    assert read.notes == written.notes


def test_a_weighted_count_of_errors_is_kept_to_the_last_bit(weighing_model: bhc.Compressor) -> None:
    """And is no whole number, or this would show nothing."""
    small = weighing_model.compress(classes={3: 0.1, 8: 0.7, 9: 0.2}, threshold=-2)
    wrong = small.network.card["wrong"]
    assert isinstance(wrong, float)
    assert torch.tensor(wrong, dtype=torch.float32).item() == wrong
    assert 100 * wrong / small.report.validation_images == small.report.error
    equal = weighing_model.compress(classes=[3, 8, 9], threshold=-2)
    assert type(equal.network.card["wrong"]) is int
    assert len(small.network.card) == len(equal.network.card)
    assert small.report.context == {"classes": [3, 8, 9], "appearance": pytest.approx([1 / 7, 1, 2 / 7])}


def test_files_of_unequal_classes_have_no_byte_too_many(weighing_model: bhc.Compressor) -> None:
    """Sizes are foretold before errors are counted, and a weighted count takes more bytes than a whole one."""
    unequal = {3: 0.1, 8: 0.7, 9: 0.2}
    size = len(weighing_model.compress(classes=unequal, threshold=-1.5).to_bytes())
    for limit in range(size - 6, size + 4):
        assert len(weighing_model.compress(classes=unequal, threshold=-1.5, max_bytes=limit).to_bytes()) <= limit


def test_a_model_without_labelled_data_keeps_its_report_too(pretrained: torch.nn.Module, tmp_path: Path) -> None:
    model = bhc.wrap(pretrained, bhc.ClassSubsets(10), example_input=torch.zeros(1, 1, 8, 8))
    written = model.compress(classes=[3, 4]).save(tmp_path / "small.bhc").report
    assert bhc.read(tmp_path / "small.bhc").report == replace(written, emit_ms=None)
    assert written.error is None
    assert "error" not in str(written)


def test_class_names_are_stored_only_where_they_are_not_the_numbers(quick_model: bhc.Compressor) -> None:
    cards = {}
    for names in (None, NAMES, tuple(map(str, range(10)))):
        small = bhc.Compressor(replace(quick_model.model, class_names=names)).compress(classes=[3, 4])
        cards[names] = small.network.card.get("class_names")
        expected = ["3", "4"] if names is not NAMES else ["drei", "vier"]
        assert small.metadata()["class_names"] == expected
    assert list(cards.values()) == [None, ["drei", "vier"], None]


def test_the_card_holds_nothing_that_can_be_counted(quick_model: bhc.Compressor) -> None:
    small = quick_model.compress(classes=[3, 4])
    assert small.network.card == to_card(small.report)
    counted = {"layers", "architecture", "bits", "layer_weights", "weights_after", "flops_after", "ram_bytes"}
    assert not counted & set(small.network.card)
    assert None not in small.network.card.values()
    unknown = dict.fromkeys(("emit_ms", "file_bytes", *MEASURED))
    assert from_card(small.network) == replace(small.report, **unknown)


@pytest.mark.parametrize(
    "change",
    [
        {"architecture_before": [64, 300]},
        {"reference_bits": [1]},
        {"class_names": ["one"]},
        {"class_names": [3, 4]},
        {"wrong": 61},
        {"wrong": -1},
        {"weights_before": 0},
        {"weights_before": 1.5},
        {"flops_before": True},
        {"threshold": "low"},
        {"rescued": [9]},
        {"context": 5},
        {"alarm": [2, -1.0]},
        *({"round_to": entry} for entry in (0, -8, 8.0, True, "8", [8], {"fc1": 0}, {"fc1": "8"})),
        *({"guarantee": entry} for entry in ([20, 95, 100], [0, 95, 100, 3], [20, 100, 100, 3], 5, "abcd")),
        *({"guarantee": entry} for entry in ([20, 95, 0, 0], [20, 95, 9, 9], [20, 95, 9, -1])),
    ],
    ids=str,
)
def test_a_card_that_contradicts_the_network_is_refused(
    quick_model: bhc.Compressor, change: dict[str, object], tmp_path: Path
) -> None:
    small = quick_model.compress(classes=[3, 4])
    odd = replace(small.network, card=dict(small.network.card) | change)
    with pytest.raises((KeyError, TypeError, ValueError, IndexError)):
        from_card(odd)
    bhc.Compressed(odd, small.report).save(tmp_path / "odd.bhc")
    with pytest.raises(BhcError, match="report"):
        bhc.read(tmp_path / "odd.bhc")


def test_calibration_is_that_of_the_answers_to_the_validation_sample(quick_model: bhc.Compressor) -> None:
    classes = [3, 8, 9]
    small = quick_model.compress(classes=classes)
    sample = quick_model.model.validation
    examples = sample.restricted_to(classes)
    places = torch.tensor([classes.index(label) for label in examples.labels.tolist()])
    with torch.no_grad():
        before = quick_model.network.base_model(examples.inputs)[:, classes].softmax(1)
    after = small.predict(examples.inputs).probabilities
    report = small.report
    assert report.ece_before == pytest.approx(expected_calibration_error(before, places), abs=0.01)
    assert report.ece == pytest.approx(expected_calibration_error(after, places), abs=0.01)
    line = f"calibration   {report.ece_before:.2f} % -> {report.ece:.2f} %  (expected calibration error, validation)"
    assert line in str(report).splitlines()
    assert "calibration" not in str(replace(report, ece=None))
    assert "calibration   1.50 %  (" in str(replace(report, ece_before=None, ece=1.5))


def test_notes_follow_from_the_fields(report: bhc.Report) -> None:
    assert report.notes == ()
    assert any("one possible answer" in note for note in replace(report, classes=(3,)).notes)
    assert any("fc2" in note and "kept" in note for note in replace(report, rescued=("fc2",)).notes)
    assert any("outside -2 to 1" in note for note in replace(report, outside=(-2.0, 1.0)).notes)
    domain = replace(report, context={"domain": "mean of a sample"}, error=None)
    assert any("not limited to this domain" in note for note in domain.notes)
    assert "note " in str(domain)
