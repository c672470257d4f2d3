from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.emission import ThresholdWarning
from bhc.errors import BhcError


def test_the_report_counts_what_the_module_has(quick_model: bhc.Compressor, digits: DataSet) -> None:
    small = quick_model.compress(classes=[3, 4])
    report = small.report
    weights = [module.weight for module in small.module if isinstance(module, torch.nn.Linear)]
    assert report.weights_after == sum(weight.numel() for weight in weights)
    assert report.architecture == tuple(weight.shape[1] for weight in weights)
    assert report.architecture_before == (64, 300, 100)
    assert report.weights_before == 64 * 300 + 300 * 100 + 100 * 10
    assert report.flops_after == 2 * report.weights_after
    assert report.parameter_bytes_before == 4 * (report.weights_before + 410)
    assert report.context == {"classes": [3, 4]}
    assert report.classes == (3, 4)


def test_calibration_lowers_the_cross_entropy(quick_model: bhc.Compressor) -> None:
    small = quick_model.compress(classes=[3, 8, 9])
    validation = quick_model.model.validation
    assert validation is not None
    examples = validation.restricted_to([3, 8, 9])
    labels = torch.searchsorted(torch.tensor([3, 8, 9]), examples.labels)
    with torch.no_grad():
        logits = small.module(examples.inputs)
    losses = [torch.nn.functional.cross_entropy(logits / t, labels) for t in (small.temperature, 1.0)]
    assert losses[0] < losses[1] - 1e-3


def test_a_threshold_outside_the_consolidated_range_warns_and_is_noted_as_are_rescued_layers(
    quick_model: bhc.Compressor,
) -> None:
    with pytest.warns(ThresholdWarning, match="-2 to 1"):
        small = quick_model.compress(classes=[1, 2], threshold=-1e5)
    assert small.report.architecture == (1, 1, 1)
    for words in ("outside -2 to 1", "least noisy was kept"):
        assert any(words in note for note in small.report.notes)


@pytest.mark.parametrize(
    ("threshold", "noun"),
    [(float("nan"), "nan"), (float("inf"), "inf"), (-1e39, "1,000,000"), (10**400, "1,000,000")],
    ids=["nan", "inf", "large", "huge"],
)
def test_a_threshold_that_makes_no_sense_is_refused(quick_model: bhc.Compressor, threshold: float, noun: str) -> None:
    with pytest.raises(BhcError, match=noun):
        quick_model.compress(classes=[1, 2], threshold=threshold)


def test_an_untrained_model_emits_the_pretrained_network(digits: DataSet, pretrained: torch.nn.Module) -> None:
    model = bhc.wrap(pretrained, bhc.ClassSubsets(10), example_input=digits.train.inputs[:1])
    small = model.compress(classes=list(range(10)), quantisation=bhc.Float32())
    torch.testing.assert_close(small.module(digits.test.inputs), pretrained(digits.test.inputs), rtol=1e-5, atol=1e-5)
    assert small.report.error is None
    assert small.report.pruning_ratio == 1
    assert small.report.bits == (32, 32, 32)
    assert small.report.scale is None
    rounded = model.compress(classes=list(range(10)))  # without labelled data, by a usual step
    assert rounded.report.scale == 2**-6
    assert rounded.temperature == 1
    full = pretrained(digits.test.inputs).argmax(1)
    assert (rounded.predict(digits.test.inputs).labels == full).float().mean() > 0.98


def test_the_weights_are_rounded_unless_told_otherwise(quick_model: bhc.Compressor, digits: DataSet) -> None:
    rounded = quick_model.compress(classes=[3, 4])
    plain = quick_model.compress(classes=[3, 4], quantisation=bhc.Float32())
    assert plain.report.architecture == rounded.report.architecture
    assert max(rounded.report.bits) <= 8 < min(plain.report.bits)
    assert rounded.report.file_bytes < plain.report.file_bytes / 3
    assert not torch.equal(rounded.module(digits.test.inputs), plain.module(digits.test.inputs))
    assert plain.report.bits_ratio == pytest.approx(plain.report.pruning_ratio)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-9, 1e9, float("nan"), float("inf")])
def test_a_scale_of_steps_that_makes_no_sense_is_refused(scale: float) -> None:
    with pytest.raises(BhcError, match="between 1e-6 and 1e6"):
        bhc.VarianceBits(scale)


def test_a_domain_is_answered_without_an_error(digits: DataSet, pretrained: torch.nn.Module) -> None:
    model = bhc.wrap(pretrained, bhc.InputDomains((1, 8, 8)), example_input=digits.train.inputs[:1])
    recipe = (bhc.Learn(steps=2), bhc.Consolidate(steps=2))
    bhc.fit(model, digits.train, digits.validation, recipe=recipe, progress=bhc.training.Silent())
    report = model.compress(domain=digits.train.inputs[:50]).report
    assert report.error is report.error_before is None
    assert report.validation_images == 0
    assert any("not limited to this domain" in note for note in report.notes)


def test_the_text_of_a_report_says_what_matters(quick_model: bhc.Compressor) -> None:
    text = str(quick_model.compress(classes=[3, 4], max_latency_ms=1000).report)
    for word in ("classes 3, 4", "64-300-100 -> ", "x smaller", "file", "bytes", "in C", "validation", "scale", "ms"):
        assert word in text
    assert "onnxruntime" in text


def test_a_layer_without_a_rule_of_ours_is_emitted_all_the_same(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 5), torch.nn.PReLU(5), torch.nn.Linear(5, 10))
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=torch.zeros(1, 1, 8, 8))
    small, x = model.compress(classes=[3, 4], threshold=1e6, quantisation=bhc.Float32()), torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(small.module(x), net(x)[:, [3, 4]], rtol=1e-4, atol=1e-5)
    small.save(tmp_path / "small.bhc")
    torch.testing.assert_close(bhc.read(tmp_path / "small.bhc").module(x), small.module(x))
