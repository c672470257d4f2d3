"""Against a slow twin of the published formula, written as its authors write it: a loop over weights and bits."""

from dataclasses import replace
from math import ceil, exp, log, log2, sqrt

import numpy as np
import pytest
import torch

import bhc
from bhc.contexts import Context
from bhc.data import DataSet
from bhc.emission import FINER_SCALES, SCALES, Cutter, SlimLayer, Slimmer, scales_for
from bhc.emission.weights import exponent_bits, quantise, reference_bits, significant_bits, step_of
from bhc.formats import LARGEST_BIAS_CODE, Codes, round_step
from bhc.posterior import FAMILIES


@pytest.fixture(scope="module")
def layers(quick_model: bhc.Compressor) -> tuple[SlimLayer, ...]:
    """What stays for two classes, before it is rounded."""
    cutter = Cutter(quick_model.network, Context(classes=(3, 4)))
    return Slimmer(cutter.scales).layers(cutter.cut(-1.0))


@pytest.mark.parametrize("scale", [1e-3, 0.25, 4.0])
def test_the_step_is_the_root_of_twelve_scales_of_the_typical_variance(
    layers: tuple[SlimLayer, ...], scale: float
) -> None:
    weights, _ = quantise(layers, scale)
    for layer in layers:
        logs = [log(variance) for variance in layer.variance.flatten().tolist()]
        expected = sqrt(12 * scale * exp(sum(logs) / len(logs)))
        assert step_of(layer, scale) == pytest.approx(expected, rel=1e-4)
        assert weights[layer.cut.layer.name].step == round_step(step_of(layer, scale))


def test_rounding_adds_the_asked_part_of_the_variance(layers: tuple[SlimLayer, ...]) -> None:
    """Where steps are small against the weights, errors spread evenly over a step: their variance is step^2 / 12."""
    layer = max(layers, key=lambda layer: layer.weight.numel())
    codes = Codes.of(layer.weight, step_of(layer, SCALES[0]))
    added = (codes.values() - layer.weight).double().square().mean().item()
    assert added / layer.typical_variance == pytest.approx(SCALES[0], rel=0.05)


def test_a_coarser_scale_never_gives_a_finer_step(layers: tuple[SlimLayer, ...]) -> None:
    tried = [quantise(layers, scale)[0] for scale in (*SCALES, 1e3, 1e6)]
    for layer in layers:
        codes = [weights[layer.cut.layer.name] for weights in tried]
        steps, bits = [code.step for code in codes], [code.bits for code in codes]
        assert steps == sorted(steps)
        assert bits == sorted(bits, reverse=True)
        assert bits[-1] == 1


def test_a_layer_without_variance_still_has_a_step(layers: tuple[SlimLayer, ...]) -> None:
    layer = layers[0]
    for variance in (torch.zeros_like(layer.variance), -1e-9 * torch.ones_like(layer.variance)):
        certain = SlimLayer(layer.cut, layer.weight, layer.bias, lambda variance=variance: variance)
        codes = quantise([certain], 0.1)[0][layer.cut.layer.name]
        torch.testing.assert_close(codes.values(), layer.weight, rtol=0, atol=layer.weight.abs().max().item() / 2**15)


def test_biases_are_bytes(layers: tuple[SlimLayer, ...]) -> None:
    _, biases = quantise(layers, 1.0)
    for layer in layers:
        codes = biases[layer.cut.layer.name]
        assert np.abs(codes.codes).max() <= LARGEST_BIAS_CODE
        torch.testing.assert_close(codes.values(), layer.bias, rtol=0, atol=codes.step / 2 + 1e-6)
        assert quantise(layers, 1e-3)[1][layer.cut.layer.name] is codes


def test_layers_without_a_bias_or_with_one_of_zeros_are_rounded_too(layers: tuple[SlimLayer, ...]) -> None:
    layer = layers[0]
    none = SlimLayer(layer.cut, layer.weight, None, lambda: layer.variance)
    zeros = SlimLayer(layer.cut, layer.weight, torch.zeros_like(layer.bias), lambda: layer.variance)
    assert quantise([none], 1.0)[1] == {}
    assert torch.equal(quantise([zeros], 1.0)[1][layer.cut.layer.name].values(), zeros.bias)


def test_the_bits_of_the_report_are_those_of_the_codes_of_which_the_module_s_numbers_are_made(
    quick_model: bhc.Compressor,
) -> None:
    small = quick_model.compress(classes=[3, 4])
    assert small.report.bits == tuple(codes.bits for codes in small.network.weights.values())
    for layer in small.network.layers:
        module = small.module.get_submodule(layer.name)
        assert torch.equal(module.weight, layer.weight.values())
        assert torch.equal(module.bias, layer.bias.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_single_weights_are_tried_with_finer_steps_than_groups(family: str) -> None:
    finest, coarsest = scales_for(FAMILIES[family])[0], scales_for(FAMILIES[family])[-1]
    assert finest == (2.0**-12 if family == "sparse-vd" else 2.0**-6)
    assert coarsest == SCALES[-1]
    assert list(scales_for(FAMILIES[family])) == sorted(scales_for(FAMILIES[family]))


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_ram_bytes": 100_000},
        {"max_bytes": 20_000},
        {"max_error": 1.0},
        {"max_error": 1.0, "threshold": 0.0},
        {"max_error": 1.0, "max_bytes": 20_000},
        {"max_error": 20.0, "confidence": 0.9},
    ],
    ids=lambda limits: " and ".join(limits) or "none",
)
def test_finer_steps_are_taken_where_the_usual_ones_do_harm(
    quick_model: bhc.Compressor, digits: DataSet, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float]
) -> None:
    """Weights that pass for a thousand times as uncertain as they are."""
    usual, floats = (
        quick_model.compress(classes=[2, 7], quantisation=each).report for each in (bhc.VarianceBits(), bhc.Float32())
    )
    monkeypatch.setattr("bhc.emission.weights.step_of", lambda layer, scale: step_of(layer, 1000 * scale))
    model = bhc.Compressor(replace(quick_model.model, calibration=digits.test))
    report = model.compress(classes=[2, 7], **limits).report
    assert usual.scale in SCALES
    assert report.scale in FINER_SCALES
    assert report.error <= floats.error + 0.1
    assert quick_model.compress(classes=[2, 7], quantisation=bhc.VarianceBits(SCALES[0])).report.error > report.error


def twin_of_significant_bits(variances: list[float]) -> int:
    counts = []
    for variance in variances:
        bits = 0
        for t in range(1, 24):
            unit_round_off = 0.5 * 2.0 ** (1 - t)
            if 2 * variance < unit_round_off:
                bits += 1
        counts.append(bits)
    return ceil(sum(counts) / len(counts))


def twin_of_exponent_bits(largest: float) -> int:
    return ceil(log2(log2(largest) + 1) + 1)


def spread(layer: SlimLayer, times: float, variance_times: float) -> SlimLayer:
    """The layer with larger weights, of which more is unknown."""
    return SlimLayer(layer.cut, times * layer.weight, layer.bias, lambda: variance_times * layer.variance)


def test_bits_are_those_of_the_published_formula(quick_model: bhc.Compressor, layers: tuple[SlimLayer, ...]) -> None:
    louder = [spread(layer, 50.0, 9.0**place) for place, layer in enumerate(layers)]
    exponent = twin_of_exponent_bits(
        max(weight for layer in louder for weight in layer.weight.abs().flatten().tolist())
    )
    expected = [1 + exponent + twin_of_significant_bits(layer.variance.flatten().tolist()) for layer in louder]
    assert reference_bits(louder) == tuple(expected)
    assert len(set(expected)) > 1


def test_the_report_has_them(quick_model: bhc.Compressor, layers: tuple[SlimLayer, ...]) -> None:
    report = quick_model.compress(classes=[3, 4], threshold=-1.0).report
    assert report.reference_bits == reference_bits(layers)
    stored = sum(bits * layer.weight.numel() for bits, layer in zip(report.reference_bits, layers, strict=True))
    assert report.reference_bits_ratio == pytest.approx(32 * report.weights_before / stored)


@pytest.mark.parametrize("exponent", [-30, -25, -24, -23, -12, -3, -2, -1, 0, 4])
def test_a_weight_deserves_more_bits_the_surer_it_is(exponent: int) -> None:
    for nudge in (0.999, 1.0, 1.001):
        variance = 2.0**exponent * nudge
        given = significant_bits(torch.tensor([variance, variance]))
        assert given == twin_of_significant_bits([variance])
        assert given == max(0, min(23, -exponent - 2 + (nudge < 1)))


@pytest.mark.parametrize("largest", [0.0, 1e-45, 0.25, 0.5, 0.50001, 0.71, 0.72, 0.9, 1.0, 1.5, 3.99, 8.0, 1e30])
def test_the_exponent_is_that_of_the_largest_weight_and_of_tiny_ones_a_bit(largest: float) -> None:
    assert exponent_bits(largest) == (1 if largest < 0.715 else twin_of_exponent_bits(largest))


@pytest.mark.parametrize("part", [0.0, 1e-30, 1e-3])
def test_bits_of_tiny_weights_are_whole_positive_numbers(layers: tuple[SlimLayer, ...], part: float) -> None:
    tiny = [spread(layer, part, part**2) for layer in layers]
    bits = reference_bits(tiny)
    assert all(type(width) is int and 2 <= width <= 32 for width in bits)
    noisy = [spread(layer, part, 1e9) for layer in layers]
    assert reference_bits(noisy) == (2, 2, 2)
