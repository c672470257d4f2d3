"""Against a slow twin of the published formula, written as its authors write it: a loop over weights and bits."""

from math import ceil, log2

import pytest
import torch

import bhc
from bhc.contexts import Context
from bhc.emission import Cutter, SlimLayer, Slimmer
from bhc.emission.weights import exponent_bits, reference_bits, significant_bits


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


@pytest.fixture(scope="module")
def layers(quick_model: bhc.Compressor) -> tuple[SlimLayer, ...]:
    cutter = Cutter(quick_model.network, Context(classes=(3, 4)))
    return Slimmer(cutter.scales).layers(cutter.cut(-2.0))


def test_bits_are_those_of_the_published_formula(quick_model: bhc.Compressor, layers: tuple[SlimLayer, ...]) -> None:
    louder = [spread(layer, 50.0, 9.0**place) for place, layer in enumerate(layers)]
    exponent = twin_of_exponent_bits(
        max(weight for layer in louder for weight in layer.weight.abs().flatten().tolist())
    )
    expected = [1 + exponent + twin_of_significant_bits(layer.variance.flatten().tolist()) for layer in louder]
    assert reference_bits(louder) == tuple(expected)
    assert len(set(expected)) > 1


def test_the_report_has_them(quick_model: bhc.Compressor, layers: tuple[SlimLayer, ...]) -> None:
    report = quick_model.compress(classes=[3, 4], threshold=-2.0).report
    assert report.reference_bits == reference_bits(layers)
    stored = sum(bits * layer.weight.numel() for bits, layer in zip(report.reference_bits, layers, strict=True))
    assert report.reference_bits_ratio == pytest.approx(32 * report.weights_before / stored)


@pytest.mark.parametrize("exponent", range(-30, 5))
def test_a_weight_deserves_more_bits_the_surer_it_is(exponent: int) -> None:
    for nudge in (0.999, 1.0, 1.001):
        variance = 2.0**exponent * nudge
        given = significant_bits(torch.tensor([variance, variance]))
        assert given == twin_of_significant_bits([variance])
        assert given == max(0, min(23, -exponent - 2 + (nudge < 1)))


def test_the_mean_over_a_layer_is_rounded_up() -> None:
    assert significant_bits(torch.tensor([2.0**-5.5, 1.0, 1.0])) == 2  # 4, 0 and 0
    assert significant_bits(torch.zeros(2, 3)) == 23


@pytest.mark.parametrize("largest", [0.72, 0.9, 1.0, 1.5, 2.0, 3.99, 8.0, 100.0, 1e30])
def test_the_exponent_is_that_of_the_largest_weight(largest: float) -> None:
    assert exponent_bits(largest) == twin_of_exponent_bits(largest)


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-10, 0.25, 0.4999, 0.5, 0.50001, 0.6, 0.7, 0.71])
def test_tiny_weights_have_an_exponent_of_one_bit(largest: float) -> None:
    assert exponent_bits(largest) == 1


@pytest.mark.parametrize("part", [0.0, 1e-30, 1e-3])
def test_bits_of_tiny_weights_are_whole_positive_numbers(layers: tuple[SlimLayer, ...], part: float) -> None:
    tiny = [spread(layer, part, part**2) for layer in layers]
    bits = reference_bits(tiny)
    assert all(type(width) is int and 2 <= width <= 32 for width in bits)
    noisy = [spread(layer, part, 1e9) for layer in layers]
    assert reference_bits(noisy) == (2, 2, 2)
