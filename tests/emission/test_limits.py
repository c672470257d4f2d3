"""Limits are kept by the real thing: the file on disk, counted FLOPs, errors judged again."""

import re
import warnings
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bhc
from bhc.contexts import Context
from bhc.data import DataSet
from bhc.emission import SCALES, Candidate, CandidateFactory, Cutter, Limits, ThresholdWarning
from bhc.emission.search import STEPS_COMPARED, Thresholds
from bhc.errors import BhcError
from bhc.formats import c_memory, onnx_bytes, onnx_latency_ms
from bhc.posterior import Multiples
from bhc.training import TrainedModel

from .networks import lenet

pytestmark = pytest.mark.filterwarnings("ignore::bhc.emission.ThresholdWarning")

SIZES = ("max_bytes", "max_flops", "max_ram_bytes")
PAIR, TRIPLE = [3, 4], [3, 8, 9]
INSIDE = torch.linspace(1, -2, 13, dtype=torch.float64).tolist()  # the range that the quick model was consolidated for
BELOW = [-2 - far for far in (0.5, 1.0, 2.0, 4.0, 8.0, 1e5)]


def real_flops(small: bhc.Compressed) -> int:
    """Two a multiply-add: in linear layers each weight takes part in one."""
    layers = [step for step in small.network.module() if isinstance(step, nn.Linear)]
    return 2 * sum(layer.weight.numel() for layer in layers)


def real_error(model: bhc.Compressor, small: bhc.Compressed) -> float:
    examples = model.model.validation.restricted_to(small.classes)
    return 100 * int((small.predict(examples.inputs).labels != examples.labels).sum()) / len(examples)


def assert_kept(model: bhc.Compressor, small: bhc.Compressed, limits: dict[str, Any], folder: Path) -> None:
    small.save(folder / "small.bhc", overwrite=True)
    real = {
        "max_bytes": (folder / "small.bhc").stat().st_size,
        "max_flops": real_flops(small),
        "max_error": real_error(model, small),
        "max_ram_bytes": c_memory(small.network).total,
    }
    report = small.report
    told = (report.file_bytes, report.flops_after, report.error, report.ram_bytes)
    assert told == tuple(real.values())
    assert (report.latency_ms is None) == ("max_latency_ms" not in limits)
    for name, limit in limits.items():
        if name == "max_latency_ms":
            assert report.latency_ms <= limit
            assert onnx_latency_ms(onnx_bytes(small.network), small.network.signature) < limit
        elif name in real:
            assert real[name] <= limit, name
    assert bhc.read(folder / "small.bhc").report.file_bytes == real["max_bytes"]


@pytest.mark.parametrize("classes", [PAIR, TRIPLE])
@pytest.mark.parametrize(
    "limits",
    [
        {"max_bytes": 4000},
        {"max_bytes": 800},
        {"max_bytes": 300},
        {"max_flops": 40_000},
        {"max_flops": 2000},
        {"max_ram_bytes": 20_000},
        {"max_ram_bytes": 2000},
        {"max_error": 20.0},
        {"max_latency_ms": 50.0},
        {"max_bytes": 6000, "max_error": 15.0},
        {"max_flops": 60_000, "max_error": 15.0},
        {"max_bytes": 3000, "max_flops": 30_000, "max_ram_bytes": 18_000},
        {"max_bytes": 9000, "max_flops": 80_000, "max_ram_bytes": 50_000, "max_error": 15, "max_latency_ms": 50.0},
        {"threshold": -1.1, "max_bytes": 4000},
        {"threshold": -1.1, "max_bytes": 9000, "max_flops": 80_000, "max_error": 30, "max_latency_ms": 50.0},
        *(
            {"quantisation": each, "max_bytes": 30_000, "max_flops": 50_000, "max_ram_bytes": 60_000, "max_error": 50.0}
            for each in (bhc.Float32(), bhc.VarianceBits(0.3))
        ),
        {"round_to": 8, "max_bytes": 800},
        {"round_to": {"fc1": 16, "fc2": 4}, "max_flops": 20_000, "max_ram_bytes": 20_000},
        {"round_to": 8, "max_error": 20.0},
    ],
    ids=str,
)
def test_limits_are_kept(
    quick_model: bhc.Compressor, classes: list[int], limits: dict[str, Any], tmp_path: Path
) -> None:
    small = quick_model.compress(classes=classes, **limits)
    assert_kept(quick_model, small, limits, tmp_path)
    if "threshold" in limits:
        assert small.report.threshold == limits["threshold"]
    if "quantisation" in limits:
        assert small.report.scale == getattr(limits["quantisation"], "scale", None)
    if "round_to" in limits:
        assert_in_multiples(small, limits["round_to"])


def assert_in_multiples(small: bhc.Compressed, round_to: int | dict[str, int]) -> None:
    for name, whole in (("fc1", 300), ("fc2", 100)):
        multiple = round_to if isinstance(round_to, int) else round_to.get(name, 1)
        width = len(small.module.get_submodule(name).weight)  # type: ignore[arg-type]
        assert width % multiple == 0 or width == whole


def reachable(caught: pytest.ExceptionInfo[BhcError]) -> float:
    found = re.search(r"can be reached is ([\d.,e+-]+)", str(caught.value))
    assert found, str(caught.value)
    return float(found[1].replace(",", ""))


@pytest.mark.parametrize(
    "at",
    [{}, {"threshold": -0.6}, {"round_to": 8}, {"round_to": {"fc1": 16}, "threshold": -0.6}],
    ids=["any threshold", "one threshold", "multiples", "multiples at a threshold"],
)
@pytest.mark.parametrize("name", SIZES)
def test_an_unreachable_size_names_the_smallest_that_can_be_reached(
    quick_model: bhc.Compressor, name: str, at: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(BhcError, match=r"classes 3, 4.* at most 2 ") as caught:
        quick_model.compress(classes=PAIR, **{name: 2}, **at)
    figure = int(reachable(caught))
    assert caught.value.hint == f"ask for {name}={figure} or more"
    assert ("at threshold -0.6" in str(caught.value)) == ("threshold" in at)
    assert ("multiples of" in str(caught.value)) == ("round_to" in at)
    small = quick_model.compress(classes=PAIR, **{name: figure}, **at)
    assert_kept(quick_model, small, {name: figure}, tmp_path)
    assert_in_multiples(small, at.get("round_to", 1))
    with pytest.raises(BhcError, match=f"reached is {figure:,}"):
        quick_model.compress(classes=PAIR, **{name: figure - 1}, **at)


def test_the_smallest_sizes_can_be_had_together(quick_model: bhc.Compressor, tmp_path: Path) -> None:
    figures = {}
    for name in SIZES:
        with pytest.raises(BhcError) as caught:
            quick_model.compress(classes=PAIR, **{name: 1})
        figures[name] = int(reachable(caught))
    assert_kept(quick_model, quick_model.compress(classes=PAIR, **figures), figures, tmp_path)


@pytest.mark.parametrize("others", [{}, {"threshold": -1.3}, {"threshold": -1.3, "max_bytes": 3000}], ids=str)
def test_an_unreachable_error_names_the_lowest_that_can_be_reached(
    quick_model: bhc.Compressor, others: dict[str, float], tmp_path: Path
) -> None:
    with pytest.raises(BhcError, match=r"at most 0\.001 % error") as caught:
        quick_model.compress(classes=TRIPLE, max_error=0.001, **others)
    assert ("within the other limits" in str(caught.value)) == ("max_bytes" in others)
    assert f"max_error={reachable(caught):g} or more" in caught.value.hint
    limits = {"max_error": reachable(caught), **others}
    assert_kept(quick_model, quick_model.compress(classes=TRIPLE, **limits), limits, tmp_path)


def test_an_unreachable_latency_names_one_that_can_be_reached(quick_model: bhc.Compressor) -> None:
    with pytest.raises(BhcError, match="ms latency") as caught:
        quick_model.compress(classes=PAIR, max_latency_ms=1e-7)
    assert "max_latency_ms=" in caught.value.hint
    quick_model.compress(classes=PAIR, max_latency_ms=20 * reachable(caught))


@pytest.mark.parametrize("others", [{}, {"max_error": 90.0}], ids=str)
def test_a_latency_is_measured_anew_as_the_last_act(
    quick_model: bhc.Compressor, others: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is quick once for each network and slow ever after: nothing is handed out."""
    looked_at: set[bytes] = set()

    def latency(content: bytes, shape: tuple[int, ...]) -> float:
        slow = content in looked_at
        looked_at.add(content)
        return 9.0 if slow else 1.0

    monkeypatch.setattr("bhc.emission.candidate.onnx_latency_ms", latency)
    with pytest.raises(BhcError, match="ms latency") as caught:
        quick_model.compress(classes=PAIR, max_latency_ms=2, **others)
    assert "reached is 13.5, 1.5 times what was measured" in str(caught.value)  # with room for times that vary
    assert quick_model.compress(classes=PAIR, max_latency_ms=13.5, **others).report.latency_ms == 9.0


def test_figures_that_must_be_loosened_together_are_named_together(quick_model: bhc.Compressor, tmp_path: Path) -> None:
    limits = {"max_bytes": 2, "max_flops": 2, "max_ram_bytes": 2}
    with pytest.raises(BhcError, match="the nearest has") as caught:
        quick_model.compress(classes=PAIR, **limits)
    named = {name: int(figure) for name, figure in re.findall(r"(max_\w+)=(\d+)", caught.value.hint)}
    assert named.keys() == limits.keys()
    assert_kept(quick_model, quick_model.compress(classes=PAIR, **named), named, tmp_path)


def test_a_limit_that_fails_beside_others_is_named_with_them_in_force(quick_model: bhc.Compressor) -> None:
    with pytest.raises(BhcError) as caught:
        quick_model.compress(classes=PAIR, max_bytes=1)
    smallest = int(reachable(caught))
    error = quick_model.compress(classes=PAIR, max_bytes=4000).report.error or 0.001
    with pytest.raises(BhcError, match="other limits") as caught:
        quick_model.compress(classes=PAIR, max_bytes=smallest - 1, max_error=error)
    assert reachable(caught) > smallest  # so small a network makes more mistakes
    small = quick_model.compress(classes=PAIR, max_bytes=int(reachable(caught)), max_error=error)
    assert len(small.to_bytes()) <= reachable(caught)


@pytest.mark.parametrize(
    "limits", [{"max_bytes": 400}, {"max_bytes": 900, "max_error": 40.0}, {"max_bytes": 30}], ids=str
)
def test_the_door_holds_whatever_the_search_believes(
    quick_model: bhc.Compressor, limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that takes every network to fit: what is over a limit is still not handed out."""
    monkeypatch.setattr("bhc.emission.search.has_at_most", lambda candidate, size: True)
    try:
        small = quick_model.compress(classes=PAIR, **limits)
    except BhcError:
        assert limits["max_bytes"] == 30
    else:
        assert len(small.to_bytes()) <= limits["max_bytes"]


NAMES = (*SIZES, "max_error", "max_latency_ms")


@pytest.mark.parametrize(
    ("given", "noun", "hint"),
    [
        *(({name: value}, f"{name}.* more than zero", "") for name in NAMES for value in (0, -1, -0.5)),
        *(
            ({name: value}, f"{name} must be a number", "")
            for name in NAMES
            for value in (nan, inf, True, False, "12", [5], 1j)
        ),
        *(({name: 600.5}, rf"{name} is a whole number of \w+", "600") for name in SIZES),
        ({"max_bytes": -(10**400)}, "more than zero", ""),
        ({"max_error": 101}, "percent", "1.5 %"),
        *(
            ({"max_error": 1, "confidence": value}, f"between 0 and 1, given {value:g}", "0.95")
            for value in (0, 1, 95, -0.5)
        ),
        *(({"max_error": 1, "confidence": value}, "confidence must be a number", "") for value in (True, nan, "0.95")),
        ({"max_bytes": 1000, "confidence": 0.95}, "no max_error", "max_error=1"),
    ],
    ids=str,
)
def test_a_limit_that_makes_no_sense_is_refused(given: dict[str, Any], noun: str, hint: str) -> None:
    with pytest.raises(BhcError, match=noun) as caught:
        Limits(**given)
    assert hint in caught.value.hint


def test_a_count_may_be_a_float_that_is_whole_and_larger_than_any_float(quick_model: bhc.Compressor) -> None:
    for name in SIZES:
        assert type(getattr(Limits(**{name: 600.0}), name)) is int
    assert Limits(max_bytes=10**400).searched
    with pytest.raises(BhcError, match="more than zero"):
        quick_model.compress(classes=PAIR, max_bytes=0)


def test_an_error_cannot_be_limited_without_labelled_data(digits: DataSet, pretrained: nn.Module) -> None:
    model = bhc.wrap(pretrained, bhc.ClassSubsets(10), example_input=digits.train.inputs[:1])
    with pytest.raises(BhcError, match="labelled validation data") as caught:
        model.compress(classes=PAIR, max_error=5)
    assert "leave max_error out" in caught.value.hint
    small = model.compress(classes=PAIR, max_bytes=30_000)
    assert small.report.file_bytes == len(small.to_bytes()) <= 30_000


Grid = dict[float, list[Candidate]]


@pytest.fixture(scope="module")
def grid(quick_model: bhc.Compressor) -> Grid:
    """Every threshold with every step, the finest first."""
    factory = CandidateFactory(quick_model.model, Cutter(quick_model.network, Context(classes=tuple(TRIPLE))))
    cuts = {threshold: factory.at(threshold) for threshold in (*INSIDE, *BELOW)}
    return {threshold: [floats.rounded(scale) for scale in SCALES] for threshold, floats in cuts.items()}


def rank(candidate: Candidate) -> tuple[float, float]:
    return candidate.verdict.wrong, candidate.verdict.loss


def test_the_network_chosen_has_the_lowest_error_of_those_that_fit(quick_model: bhc.Compressor, grid: Grid) -> None:
    """At each threshold the two finest steps that fit, found by looking at every one of them."""
    for size in (6000, 1800, 700, 250):
        fitting = {threshold: [t for t in candidates if t.file_bytes <= size] for threshold, candidates in grid.items()}
        finest = [(threshold, each) for threshold, found in fitting.items() for each in found[:STEPS_COMPARED]]
        report = quick_model.compress(classes=TRIPLE, max_bytes=size).report
        # Cuts under the consolidated range are looked at only where those inside it do harm.
        lowest = -inf if report.threshold < -2 else -2
        best = min((candidate for threshold, candidate in finest if threshold >= lowest), key=rank)
        # Thresholds between these are tried too, where they come nearer to the limit.
        assert report.threshold in grid or report.threshold > best.cut.threshold
        assert report.error <= (best.error or 0.0)


@pytest.mark.parametrize("classes", [PAIR, TRIPLE])
def test_with_flops_limited_the_network_chosen_has_the_lowest_error_of_its_thresholds(
    quick_model: bhc.Compressor, classes: list[int]
) -> None:
    limit = 60_000
    reports = [quick_model.compress(classes=classes, threshold=threshold).report for threshold in INSIDE]
    chosen = quick_model.compress(classes=classes, max_flops=limit).report
    assert chosen.error == min(report.error for report in reports if report.flops_after <= limit)


def test_with_the_error_alone_limited_the_network_is_the_smallest(quick_model: bhc.Compressor, grid: Grid) -> None:
    candidates = [candidate for threshold in INSIDE for candidate in grid[threshold]]
    for limit in (8.0, 10.0, 20.0):
        right = [candidate.file_bytes for candidate in candidates if candidate.error <= limit]
        assert quick_model.compress(classes=TRIPLE, max_error=limit).report.file_bytes == min(right)


def test_cuts_of_one_width_differ_in_their_single_weights() -> None:
    """Where all units stay for the sake of a multiple, there is more than one network all the same."""
    network = lenet("lenet-300-100", bhc.ScalesOnly(), family="sparse-vd")
    cutter = Cutter(network, Context(classes=tuple(PAIR)), multiples=Multiples(1000))
    factory = CandidateFactory(TrainedModel(network), cutter)
    cuts = [floats.cut for floats in Thresholds(factory, Limits(), factory.generated).cuts()]
    assert {cut.widths for cut in cuts} == {(64, 300, 300, 100, 100, 2)}
    counts = [sum(int(layer.kept_weights.sum()) for layer in cut.layers) for cut in cuts]
    assert len(counts) == 13
    assert counts == sorted(set(counts), reverse=True)


def test_more_room_is_used(quick_model: bhc.Compressor) -> None:
    factory = CandidateFactory(quick_model.model, Cutter(quick_model.network, Context(classes=tuple(TRIPLE))))
    reports = [quick_model.compress(classes=TRIPLE, max_bytes=size).report for size in (300, 1000, 4000)]
    losses = [rank(factory.at(report.threshold).rounded(report.scale))[1] for report in reports]
    assert losses == sorted(losses, reverse=True)


def test_a_limit_between_two_cuts_is_come_close_to(quick_model: bhc.Compressor) -> None:
    """Of two cuts at neighbouring thresholds of the range: what lies between them is found."""
    flops = [quick_model.compress(classes=TRIPLE, threshold=threshold).report.flops_after for threshold in INSIDE]
    largest, next_one = flops[0], max(count for count in flops if count < flops[0])
    chosen = quick_model.compress(classes=TRIPLE, max_flops=(largest + next_one) // 2, max_error=99).report
    limited = quick_model.compress(classes=TRIPLE, max_flops=next_one, max_error=99).report
    assert chosen.flops_after <= (largest + next_one) // 2
    assert (chosen.error or 0) <= (limited.error or 0)


def test_a_cut_below_the_consolidated_range_warns(quick_model: bhc.Compressor) -> None:
    with pytest.warns(ThresholdWarning, match="outside -2 to 1"):
        quick_model.compress(classes=PAIR, max_bytes=300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick_model.compress(classes=PAIR, max_bytes=4000)
