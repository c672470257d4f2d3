"""Studies: read from a file, asked about the right images, chosen on validation data, counted as promised."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from experiments.report.load import METHODS as TABLE_METHODS
from scipy.sparse import csc_matrix
from study import choosing, sparse
from study.choosing import CURVE_POINTS, choose, curve, emit, largest, rounded_error, thresholds_of
from study.config import Choice, Study
from study.measuring import measure
from study.methods import METHODS, MIXED_BATCHES, Case, Sample, class_pairs, request
from study.training import Member

import bhc
from bhc.contexts import Budgets, Context
from bhc.data import DataSet, Split
from bhc.emission.precision import SCALES
from bhc.hypernet import LowRank
from bhc.training import FreezeOffsets, Point, Probe, TrainedModel, trade_off
from tests.experiments.toys import (
    EXPERIMENTS,
    fitted,
    garbage,
    numbered_data,
    numbers_of,
    settings,
    write_study,
)
from tests.hypernet.toys import PAIRS, conditional, images, perturb_

CONFIGS = sorted((EXPERIMENTS / "configs").glob("*.toml"))
NINE = [(first, first + 1) for first in range(9)]
ALONE = (bhc.Learn(steps=40, kl_weight=1.0, contexts=1, examples=32),)


def read(folder: Path, method: str, **changes: Any) -> Study:
    return Study.read(write_study(folder, method, **changes))


def few(member: Member, count: int = 3) -> Member:
    return replace(member, cases=member.cases[:count])


def asked_of(member: Member) -> list[tuple[Member, Case]]:
    return [(member, case) for case in member.cases]


def member_of(model: bhc.Compressor, cases: Sequence[Case]) -> Member:
    model.model.training |= {"seconds": 12.5, "device": "cpu, 1 threads"}
    return Member(model, tuple(cases))


@pytest.fixture(scope="module")
def pairs_member(digits: DataSet, quick_model: bhc.Compressor) -> Member:
    return member_of(quick_model, class_pairs(digits))


@pytest.fixture(scope="module")
def sparse_member(digits: DataSet, pretrained: torch.nn.Module) -> Member:
    model = fitted(pretrained, digits, bhc.SingleContext(), ALONE, family="sparse-vd")
    return member_of(model, METHODS["sparsevd"].cases(digits))


# Configuration files


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_is_a_study_that_can_be_trained(path: Path, digits: DataSet) -> None:
    study = Study.read(path)
    assert study.name == path.stem == f"{study.model}-{study.method.name}"
    assert study.model in bhc.models.NAMES
    assert study.settings == tomllib.loads(path.read_text())
    assert study.data == "mnist"
    space, learned = study.method.space(digits), study.recipe[0]
    for stage in study.recipe:
        stage.check(space)
    assert (learned.contexts, learned.examples) == (study.method.contexts, study.method.examples)
    assert learned.steps == study.settings["learn"]["steps"]
    groups = len({case.group for case in study.method.cases(digits)})
    assert len(study.choice.bits_error) == groups == study.method.groups
    assert len(study.choice.error) == (groups if study.choice.threshold is None else 0)


def test_every_method_has_a_configuration_for_both_networks_and_a_place_in_the_tables() -> None:
    studies = [Study.read(path) for path in CONFIGS]
    assert {(study.model, study.method.name) for study in studies} == {
        (model, method) for model in ("lenet-300-100", "lenet-5-caffe") for method in TABLE_METHODS
    }
    assert set(METHODS) == set(TABLE_METHODS)


def test_rows_of_one_hypernetwork_have_three_seeds_and_the_others_one() -> None:
    for study in map(Study.read, CONFIGS):
        wanted = 3 if study.method.name.startswith("bhc-") else 1
        assert len(set(study.seeds)) == len(study.seeds) == wanted


@pytest.mark.parametrize("key", ["experiment", "model", "data", "method", "seeds", "learn", "choose"])
def test_a_missing_key_is_named_with_the_file(tmp_path: Path, key: str) -> None:
    with pytest.raises(bhc.BhcError, match=rf"half\.toml lacks '{key}'"):
        Study.read(write_study(tmp_path, "bhc-cy", "half", **{key: None}))


def test_a_study_must_say_how_steps_are_chosen(tmp_path: Path) -> None:
    with pytest.raises(bhc.BhcError, match=r"half\.toml .*'bits_error'"):
        Study.read(write_study(tmp_path, "bhc-cy", "half", choose={"error": 1.0}))


@pytest.mark.parametrize(
    ("method", "choices", "words"),
    [
        ("bhc-cy", {"bits_error": 1.0}, "0 limits for error"),
        ("bhc-cy", {"error": [1.0, 2.0], "bits_error": 1.0}, "2 limits for error"),
        ("bhc-cw", {"error": [1.0, 2.0], "bits_error": 1.0}, "1 limits for bits_error"),
        ("sparsevd", {"threshold": 3.0, "bits_error": []}, "0 limits for bits_error"),
        ("sparsevd", {"threshold": 3.0, "error": 1.0, "bits_error": 1.0}, "exclude each other"),
    ],
)
def test_every_group_of_contexts_needs_its_limits(
    tmp_path: Path, method: str, choices: dict[str, Any], words: str
) -> None:
    with pytest.raises(bhc.BhcError, match=rf"{method}\.toml .*{words}"):
        read(tmp_path, method, choose=choices)


@pytest.mark.parametrize("table", ["learn", "consolidate", "choose", "generator"])
def test_a_setting_that_nobody_knows_is_named_with_the_file(tmp_path: Path, table: str) -> None:
    known = {"kind": "full"} if table == "generator" else settings("bhc-cy")[table]
    with pytest.raises(bhc.BhcError, match=r"bhc-cy\.toml .*'magic'"):
        read(tmp_path, "bhc-cy", **{table: known | {"magic": 1}})


def test_a_method_that_does_not_exist_is_named_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(bhc.BhcError, match=r"magic\.toml lacks 'magic', or names what does not exist"):
        Study.read(write_study(tmp_path, "magic"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "magic"}, "unknown model 'magic'"),
        ({"generator": {"kind": "magic"}}, "unknown generator 'magic'"),
        ({"learn": {"warm_up": 2.0}}, "warm_up is a fraction"),
        ({"consolidate": {"steps": -1}}, "steps must be a number of at least 0"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_the_file(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(bhc.BhcError, match=rf"bhc-cy\.toml .*{words}"):
        read(tmp_path, "bhc-cy", **changes)


def test_a_file_that_is_no_toml_and_one_that_is_not_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("seeds = [0")
    with pytest.raises(bhc.BhcError, match=r"broken\.toml cannot be read as a study"):
        Study.read(tmp_path / "broken.toml")
    with pytest.raises(bhc.BhcError, match=r"missing\.toml cannot be read as a study"):
        Study.read(tmp_path / "missing.toml")


def test_what_is_left_out_of_a_file_has_a_default(tmp_path: Path) -> None:
    study = read(tmp_path, "bc-gnj", consolidate=None, choose={"error": 1.5, "bits_error": 2})
    assert study.generator == bhc.ScalesOnly()
    assert study.recipe == (bhc.Learn(steps=20, kl_weight=0.3, logvar_rate=0.2, contexts=1, examples=256),)
    assert study.choice == Choice(error=(1.5,), threshold=None, bits_error=(2,))


def test_generator_and_options_of_the_stages_come_from_the_file(tmp_path: Path) -> None:
    study = read(
        tmp_path,
        "bhc-cy",
        generator={"kind": "low-rank", "rank": 3},
        learn={"steps": 7, "rate": 0.25, "warm_up": 0.125},
        consolidate={"steps": 5, "thresholds": [-3, 0.5], "teacher_weight": 0.5},
    )
    assert study.generator == LowRank(3)
    assert study.recipe == (
        bhc.Learn(steps=7, rate=0.25, warm_up=0.125, contexts=16, examples=16),
        bhc.Consolidate(steps=5, thresholds=(-3.0, 0.5), teacher_weight=0.5, contexts=16, examples=16),
    )


def test_a_budget_learns_in_two_stages_and_consolidates_the_second_network_only(tmp_path: Path) -> None:
    study = read(tmp_path, "bhc-cw", learn_high={"steps": 30}, choose={"error": [1.0, 2.0], "bits_error": [1.0, 2.0]})
    low, freeze, high, consolidation = study.recipe
    assert (low.steps, low.budget, low.kl_weight) == (20, 0.0, 0.3)
    assert isinstance(freeze, FreezeOffsets)
    assert (high.steps, high.budget, high.kl_weight) == (30, 1.0, 0.3)
    assert (consolidation.steps, consolidation.budget) == (10, 1.0)
    assert read(tmp_path, "bhc-cy").recipe[1].budget is None


def test_the_rule_in_words_says_what_was_fixed_and_what_was_chosen() -> None:
    assert Choice(error=(0.65,), bits_error=(0.8,)).rule == (
        "the largest mean ratio with at most 0.65 % error on validation data;"
        " the coarsest steps with at most 0.8 % there"
    )
    assert Choice(error=(1.2, 1.5), bits_error=(1.3, 1.6)).rule == (
        "the largest mean ratio with at most 1.2 and 1.5 % error on validation data;"
        " the coarsest steps with at most 1.3 and 1.6 % there"
    )
    assert Choice(threshold=3.0, bits_error=(1.65,)).rule == (
        "threshold 3, as published; the coarsest steps with at most 1.65 % there"
    )


# What each method is asked


def test_every_method_sees_as_many_images_a_step() -> None:
    assert {method.contexts * method.examples for method in METHODS.values()} == {256}


@pytest.mark.parametrize("method", ["bhc-cy", "per-context", "bhc-cx-domain"])
def test_the_contexts_are_nine_pairs_with_all_images_of_their_classes(digits: DataSet, method: str) -> None:
    cases = METHODS[method].cases(digits)
    assert [case.label for case in cases] == [f"{one}, {two}" for one, two in NINE]
    assert {case.group for case in cases} == {"all contexts"}
    for case, pair in zip(cases, NINE, strict=True):
        for sample, split in ((case.validation, digits.validation), (case.test, digits.test)):
            wanted = torch.isin(split.labels, torch.tensor(pair))
            assert torch.equal(sample.examples.labels, split.labels[wanted])
            assert torch.equal(sample.examples.images, split.images[wanted])


def test_a_model_of_subsets_is_told_classes_and_one_of_a_single_context_nothing(digits: DataSet) -> None:
    sample = METHODS["bhc-cy"].cases(digits)[3].test
    assert request(bhc.ClassSubsets(10), sample) == {"classes": [3, 4]}
    assert request(bhc.SingleContext((3, 4)), sample) == {}


def test_a_domain_is_told_by_training_images_and_nothing_else(digits: DataSet) -> None:
    other = replace(digits, validation=garbage(digits.validation), test=garbage(digits.test))
    for data in (digits, other):
        for case, pair in zip(METHODS["bhc-cx-domain"].cases(data), NINE, strict=True):
            own = digits.train.images[torch.isin(digits.train.labels, torch.tensor(pair))]
            for sample in (case.validation, case.test):
                assert sample.conditions.keys() == {"domain"}
                assert torch.equal(sample.conditions["domain"], own)


def test_the_space_of_domains_scales_as_the_images_do(digits: DataSet) -> None:
    for method in ("bhc-cx-domain", "bhc-cx-mixed"):
        space = METHODS[method].space(digits)
        assert (space.image_shape, space.full_scale) == ((1, 8, 8), 16.0)
        case = METHODS[method].cases(digits)[0]
        mean = case.test.conditions["domain"].float().mean(0)
        torch.testing.assert_close(space.resolve(case.test.conditions).domain, mean)


def test_mixed_batches_are_of_one_size_and_no_image_is_in_two() -> None:
    data = numbered_data()
    cases = METHODS["bhc-cx-mixed"].cases(data)
    assert len(cases) == MIXED_BATCHES == 100
    for part, split in (("validation", data.validation), ("test", data.test)):
        samples = [getattr(case, part) for case in cases]
        assert {len(sample.examples) for sample in samples} == {32}
        seen = [number for sample in samples for number in numbers_of(sample.examples)]
        assert len(set(seen)) == 3200
        assert set(seen) <= set(numbers_of(split))
        assert seen != sorted(seen)
        for sample in samples:
            assert sample.examples.labels.tolist() == [number % 10 for number in numbers_of(sample.examples)]


def test_a_mixed_batch_is_told_by_its_own_images_in_validation_and_in_test() -> None:
    for case in METHODS["bhc-cx-mixed"].cases(numbered_data()):
        for sample in (case.validation, case.test):
            assert torch.equal(sample.conditions["domain"], sample.examples.images)
        assert not set(numbers_of(case.validation.examples)) & set(numbers_of(case.test.examples))


def test_mixed_batches_are_the_same_every_time_and_do_not_touch_the_global_generator() -> None:
    data, before = numbered_data(), torch.get_rng_state()
    first, again = (METHODS["bhc-cx-mixed"].cases(data) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one.label == other.label
        assert numbers_of(one.validation.examples) == numbers_of(other.validation.examples)
        assert numbers_of(one.test.examples) == numbers_of(other.test.examples)
    assert torch.equal(torch.get_rng_state(), before)


def test_two_budgets_are_two_groups_on_all_images(digits: DataSet) -> None:
    cases = METHODS["bhc-cw"].cases(digits)
    assert [(case.label, case.group) for case in cases] == [("c_w = 0", "c_w = 0"), ("c_w = 1", "c_w = 1")]
    assert [case.validation.conditions for case in cases] == [{"budget": 0}, {"budget": 1}]
    assert [case.test.conditions for case in cases] == [{"budget": 0}, {"budget": 1}]
    assert all(len(case.validation.examples) == len(digits.validation) for case in cases)
    assert all(len(case.test.examples) == len(digits.test) for case in cases)


@pytest.mark.parametrize("method", ["sparsevd", "bc-gnj", "bc-ghs", "bc-io-gnj"])
def test_a_baseline_is_one_context_of_all_images(digits: DataSet, method: str) -> None:
    (case,) = METHODS[method].cases(digits)
    assert isinstance(METHODS[method].space(digits), bhc.SingleContext)
    assert case.validation.conditions == case.test.conditions == {}
    assert torch.equal(case.validation.examples.images, digits.validation.images)
    assert torch.equal(case.test.examples.images, digits.test.images)


# Choosing


def at(threshold: float, ratio: float, error: float) -> Point:
    """A point whose other ratios and errors would choose differently."""
    return Point(threshold, ratio, 1000 / ratio, 1000 / ratio, error, 100 - error)


def test_the_largest_mean_ratio_within_the_error_is_chosen() -> None:
    points = [at(-2, 90, 2.01), at(-1, 50, 2.0), at(0, 60, 1.9), at(1, 20, 0.5)]
    assert largest(points, 2.0).threshold == 0
    assert largest(points, 1.0).threshold == 1
    assert largest(points, 2.01).threshold == -2


def test_where_no_point_is_within_the_error_the_most_accurate_is_chosen() -> None:
    assert largest([at(-2, 90, 5.0), at(-1, 50, 3.0), at(0, 10, 4.0)], 2.0).threshold == -1


def assert_same_curve(found: Sequence[Point], expected: Sequence[Point]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert asdict(one) == pytest.approx(asdict(other))


def test_a_curve_of_slim_networks_is_that_of_masked_ones(pairs_member: Member, digits: DataSet) -> None:
    thresholds = np.linspace(-6, 3, 13).tolist()
    probes = [Probe(Context(classes=pair), pair) for pair in NINE]
    found = {part: curve(asked_of(pairs_member), thresholds, on=part) for part in ("validation", "test")}
    for part, points in found.items():
        assert_same_curve(points, trade_off(pairs_member.model.network, probes, getattr(digits, part), thresholds))
        assert len({point.ratio_mean for point in points}) > 5
        assert len({point.error for point in points}) > 5
    assert found["validation"] != found["test"]


def test_a_curve_of_slim_networks_is_that_of_masked_ones_where_single_weights_go(
    sparse_member: Member, digits: DataSet
) -> None:
    thresholds = np.linspace(-4, 6, 11).tolist()
    points = curve(asked_of(sparse_member), thresholds, on="validation")
    probe = Probe(Context(), tuple(range(10)))
    assert_same_curve(points, trade_off(sparse_member.model.network, [probe], digits.validation, thresholds))
    assert len({point.error for point in points}) > 5


def test_a_curve_of_slim_convolutions_is_that_of_masked_ones_down_to_the_last_unit() -> None:
    network = conditional(LowRank(2), "lenet-5-caffe", space=PAIRS)
    perturb_(network.hypernet, std=0.3)
    x = images("lenet-5-caffe", 60).to(torch.uint8)
    examples = Split(x, torch.arange(60) % 2 + 3)
    sample = Sample({"classes": [3, 4]}, examples)
    member = member_of(bhc.Compressor(TrainedModel(network)), [Case("3, 4", sample, sample)])
    rates = torch.cat([rates for _, rates in choosing.log_dropout(member, member.cases[0])])
    thresholds = torch.linspace(float(rates.min()) - 1, float(rates.max()) + 1, 40).tolist()
    points = curve(asked_of(member), thresholds, on="validation")
    assert_same_curve(points, trade_off(network, [Probe(Context(classes=(3, 4)), (3, 4))], examples, thresholds))
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


def without_test(member: Member) -> list[tuple[Member, Case]]:
    """Whoever looks at a test image gets an error."""
    return [(member, replace(case, test=None)) for case in member.cases]  # type: ignore[arg-type]


def test_choosing_never_looks_at_test_images(pairs_member: Member) -> None:
    blind = without_test(few(pairs_member))
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
            threshold=threshold, precision=bhc.VarianceBits(scale), **case.validation.conditions
        )
        answers += (small.predict(examples.images).labels != examples.labels).tolist()
    return 100 * sum(answers) / len(answers)


def test_the_coarsest_steps_within_the_error_are_chosen(pairs_member: Member) -> None:
    asked, points = asked_of(few(pairs_member)), [at(-0.5, 50, 2.0)]
    errors = {scale: wrong_answers(few(pairs_member), -0.5, scale) for scale in SCALES}
    assert errors == {scale: pytest.approx(rounded_error(asked, -0.5, scale)) for scale in SCALES}
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
    monkeypatch.setattr(choosing, "rounded_error", lambda asked, threshold, scale: errors[scale])

    def scale_within(*limits: float, group: int = 0) -> float:
        choice = Choice(error=(1.0, 1.0), bits_error=limits)
        return choose(asked_of(pairs_member), [at(0, 10, 1.0)], choice, group).scale

    assert scale_within(2.5) == SCALES[4]
    assert scale_within(2.0) == SCALES[1]
    assert scale_within(1.0) == SCALES[1]
    assert scale_within(9.0) == SCALES[-1]
    assert scale_within(2.0, 2.5, group=1) == SCALES[4]


def test_a_published_threshold_is_taken_as_it_is(pairs_member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "rounded_error", lambda asked, threshold, scale: threshold)
    points = [at(-1, 90, 1.0), at(0, 50, 2.0), at(1, 20, 3.0)]
    chosen = choose(asked_of(pairs_member), points, Choice(threshold=0.8, bits_error=(1.0,)), 0)
    assert (chosen.threshold, chosen.validation_error, chosen.validation_error_bits) == (0.8, 3.0, 0.8)


def test_each_group_has_a_limit_of_its_own(pairs_member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "rounded_error", lambda asked, threshold, scale: 0.0)
    points = [at(-1, 90, 3.0), at(0, 50, 2.0), at(1, 20, 1.0)]
    choice = Choice(error=(1.0, 2.5), bits_error=(1.0, 1.0))
    assert [choose(asked_of(pairs_member), points, choice, group).threshold for group in (0, 1)] == [1, 0]


# Counting single weights


def fake(weights_before: int, *layers: tuple[list[list[float]], int]) -> Any:
    """What the counts read of an emitted network."""
    modules = [SimpleNamespace(module=SimpleNamespace(weight=torch.tensor(weight))) for weight, _ in layers]
    report = SimpleNamespace(weights_before=weights_before, bits=tuple(bits for _, bits in layers))
    return SimpleNamespace(network=SimpleNamespace(layers=modules), report=report)


def test_a_sparse_layer_counts_values_rows_and_where_columns_begin() -> None:
    small = fake(1200, ([[0.0, 1.5, 0.0], [2.0, 0.0, 3.0]], 4))
    assert sparse.pruning_ratio(small) == 1200 / (3 + 3 + 4)
    # 3 values of 4 bits, 3 rows out of two (1 bit), 4 places from 0 to 3 (2 bits)
    assert sparse.bits_ratio(small) == 32 * 1200 / (3 * 4 + 3 * 1 + 4 * 2)


def test_a_sparse_layer_of_one_row_or_no_value_still_costs_something() -> None:
    small = fake(100, ([[1.0, 2.0, 3.0, 4.0]], 3), ([[0.0], [0.0]], 1))
    assert sparse.pruning_ratio(small) == 100 / ((4 + 4 + 5) + (0 + 0 + 2))
    assert sparse.bits_ratio(small) == 3200 / ((4 * 3 + 4 * 1 + 5 * 3) + (0 + 0 + 2 * 1))


def test_the_kernel_of_a_convolution_is_part_of_its_columns() -> None:
    small = fake(100, ([[[[1.0, 0.0], [0.0, 0.0]]], [[[0.0, 2.0], [0.0, 3.0]]]], 5))  # type: ignore[list-item]
    assert sparse.pruning_ratio(small) == 100 / (3 + 3 + 5)


@pytest.mark.parametrize("threshold", [-1.0, 1.0, 3.0])
def test_an_emitted_network_counts_as_scipy_stores_it(sparse_member: Member, threshold: float) -> None:
    (case,) = sparse_member.cases
    pruned, small = (
        emit(sparse_member, case.test, threshold, precision) for precision in (bhc.Float32(), bhc.VarianceBits(0.25))
    )
    stored = [csc_matrix(layer.module.weight.detach().numpy()) for layer in pruned.network.layers]
    words = sum(len(matrix.data) + len(matrix.indices) + len(matrix.indptr) for matrix in stored)
    assert sparse.pruning_ratio(pruned) == pytest.approx((64 * 300 + 300 * 100 + 1000) / words)

    bits = 0
    for layer, width in zip(small.network.layers, small.report.bits, strict=True):
        matrix = csc_matrix(layer.module.weight.detach().numpy())
        row_bits = max(1, int(matrix.shape[0] - 1).bit_length())
        place_bits = max(1, int(matrix.indptr[-1]).bit_length())
        bits += len(matrix.data) * width + len(matrix.indices) * row_bits + len(matrix.indptr) * place_bits
    assert sparse.bits_ratio(small) == pytest.approx(32 * (64 * 300 + 300 * 100 + 1000) / bits)


# Measuring

RESULT_KEYS = {
    "experiment", "model", "method", "trained_on", "seed", "config", "commit", "device", "versions", "seconds",
    "original_error", "summary", "contexts", "train_device", "emit_device", "train_seconds", "choice", "trade_offs",
    "per_class", "log_dropout",
}  # fmt: skip
SUMMARY_KEYS = {
    "pruning_ratio_mean", "pruning_ratio_harmonic", "pruning_ratio_min", "pruning_ratio_ten_outputs_mean",
    "pruning_error", "bits_ratio_mean", "bits_ratio_harmonic", "bits_error", "file_bytes_mean", "file_bytes_max",
    "file_ratio_mean", "file_error", "error_max", "emit_ms_median",
}  # fmt: skip
ROW_KEYS = {
    "context", "threshold", "architecture", "bits", "reference_bits", "weights_after", "pruning_ratio",
    "pruning_ratio_ten_outputs", "bits_ratio", "file_bytes", "pruning_error", "bits_error", "file_error",
    "test_images", "label", "scale", "original_error", "file_ratio", "reference_bits_ratio", "emit_ms",
}  # fmt: skip


def measured(study: Study, seed: int, members: Sequence[Member]) -> dict[str, Any]:
    """``measure`` with fewer thresholds and steps to try: they take most of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "CURVE_POINTS", 25)
        patch.setattr(choosing, "SCALES", SCALES[::3])
        return measure(study, seed, members)


@pytest.fixture(scope="module")
def pairs_study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    choices = {"error": 8.0, "bits_error": 10.0}
    return read(tmp_path_factory.mktemp("studies"), "bhc-cy", choose=choices)


@pytest.fixture(scope="module")
def pairs_result(pairs_study: Study, pairs_member: Member) -> dict[str, Any]:
    return measured(pairs_study, 7, [pairs_member])


@pytest.fixture(scope="module")
def sparse_result(tmp_path_factory: pytest.TempPathFactory, sparse_member: Member) -> dict[str, Any]:
    choices = {"threshold": 3.0, "bits_error": 25.0}
    study = read(tmp_path_factory.mktemp("studies"), "sparsevd", consolidate=None, choose=choices)
    return measured(study, 0, [sparse_member])


@pytest.fixture(scope="module", params=["bhc-cy", "sparsevd"])
def result(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.getfixturevalue({"bhc-cy": "pairs_result", "sparsevd": "sparse_result"}[request.param])


def test_a_result_has_every_key_and_is_plain_data(result: dict[str, Any]) -> None:
    assert result.keys() == RESULT_KEYS
    assert result["summary"].keys() == SUMMARY_KEYS
    for row in result["contexts"]:
        assert row.keys() - {"train_seconds"} == ROW_KEYS
        assert len(row["architecture"]) == len(row["bits"]) == len(row["reference_bits"]) == 3
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_result_says_what_was_run_and_how_long_it_took(pairs_result: dict[str, Any], pairs_study: Study) -> None:
    assert [pairs_result[key] for key in ("experiment", "model", "method", "trained_on", "seed")] == [
        "table1", "lenet-300-100", "bhc-cy", "nine consecutive pairs", 7,
    ]  # fmt: skip
    assert pairs_result["config"] == settings("bhc-cy", choose={"error": 8.0, "bits_error": 10.0})
    assert pairs_result["choice"]["rule"] == pairs_study.choice.rule
    assert pairs_result["train_seconds"] == 12.5
    assert 12.5 < pairs_result["seconds"] < 72.5
    assert pairs_result["train_device"] == "cpu, 1 threads"


def mean_of(result: dict[str, Any], key: str) -> float:
    return float(np.mean([row[key] for row in result["contexts"]]))


def pooled_error(result: dict[str, Any], key: str) -> float:
    """Wrong answers, counted again from each context's percentage."""
    rows = result["contexts"]
    wrong = [round(row[key] * row["test_images"] / 100) for row in rows]
    return 100 * sum(wrong) / sum(row["test_images"] for row in rows)


def test_the_summary_is_that_of_the_rows(result: dict[str, Any]) -> None:
    rows, summary = result["contexts"], result["summary"]
    for key in ("pruning_ratio", "bits_ratio"):
        assert summary[f"{key}_mean"] == pytest.approx(mean_of(result, key))
        assert summary[f"{key}_harmonic"] == pytest.approx(1 / np.mean([1 / row[key] for row in rows]))
    for key in ("pruning_ratio_ten_outputs", "file_bytes", "file_ratio"):
        assert summary[f"{key}_mean"] == pytest.approx(mean_of(result, key))
    assert summary["pruning_ratio_min"] == min(row["pruning_ratio"] for row in rows)
    assert summary["file_bytes_max"] == max(row["file_bytes"] for row in rows)
    assert summary["error_max"] == max(row["file_error"] for row in rows)
    assert summary["emit_ms_median"] == pytest.approx(np.median([row["emit_ms"] for row in rows]))
    for key in ("pruning_error", "bits_error", "file_error"):
        assert summary[key] == pytest.approx(pooled_error(result, key))
    assert result["original_error"] == pytest.approx(pooled_error(result, "original_error"))


def test_errors_are_told_apart_and_pooled_over_images_not_over_contexts(pairs_result: dict[str, Any]) -> None:
    assert pairs_result["original_error"] < pairs_result["summary"]["pruning_error"]
    assert pairs_result["summary"]["pruning_error"] != pytest.approx(mean_of(pairs_result, "pruning_error"))


@pytest.mark.filterwarnings("ignore::bhc.emission.emit.ThresholdWarning")
def test_a_row_is_the_network_that_was_chosen(
    pairs_result: dict[str, Any], pairs_member: Member, digits: DataSet, tmp_path: Path
) -> None:
    choice = pairs_result["choice"]
    for first, row in enumerate(pairs_result["contexts"]):
        pair = [first, first + 1]
        assert row["context"] == {"classes": pair}
        assert (row["threshold"], row["scale"]) == (choice["threshold"], choice["scale"])
        options = {"classes": pair, "threshold": row["threshold"]}
        path = tmp_path / f"{first}.bhc"
        pairs_member.model.compress(**options, precision=bhc.VarianceBits(row["scale"])).save(path)
        own = digits.test.restricted_to(pair)
        wrong = int((bhc.read(path).predict(own.images).labels != own.labels).sum())
        assert row["file_error"] == row["bits_error"] == pytest.approx(100 * wrong / len(own))
        assert (row["file_bytes"], row["test_images"]) == (path.stat().st_size, len(own))
        report = pairs_member.model.compress(**options, precision=bhc.Float32()).report
        assert (row["architecture"], row["weights_after"]) == (list(report.architecture), report.weights_after)
        assert row["pruning_ratio"] == pytest.approx(50200 / report.weights_after)
        ten = report.weights_after + 8 * report.architecture[-1]
        assert row["pruning_ratio_ten_outputs"] == pytest.approx(50200 / ten)
        logits = pairs_member.model.network.base_model(own.images)[:, pair]
        wrong_before = int((logits.argmax(1) + first != own.labels).sum())
        assert row["original_error"] == pytest.approx(100 * wrong_before / len(own))


def test_a_file_is_judged_as_it_was_read(
    pairs_study: Study, pairs_member: Member, pairs_result: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful:
        def predict(self, x: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(labels=torch.full((len(x),), -1))

    monkeypatch.setattr(bhc, "read", lambda path: Forgetful())
    case = pairs_member.cases[2]
    alone = replace(pairs_member, cases=(case,))
    result = measured(pairs_study, 0, [alone])
    (row,) = result["contexts"]
    assert row["file_error"] == result["summary"]["file_error"] == result["summary"]["error_max"] == 100.0
    assert row["bits_error"] < 50
    assert row["train_seconds"] == alone.seconds
    assert all("train_seconds" not in other for other in pairs_result["contexts"])


def test_the_choice_is_that_of_the_rule_on_the_validation_curve(pairs_result: dict[str, Any]) -> None:
    (curves,), choice = pairs_result["trade_offs"], pairs_result["choice"]
    assert curves["name"] == choice["group"] == "all contexts"
    within = [point for point in curves["validation"] if point["error"] <= 8.0]
    best = max(within, key=lambda point: point["ratio_mean"])
    assert (choice["threshold"], choice["validation_error"]) == (best["threshold"], best["error"])
    assert choice["validation_error_bits"] <= 10.0
    assert len(within) < len(curves["validation"])
    assert choice["groups"] == [{key: value for key, value in choice.items() if key not in ("rule", "groups")}]


def test_the_chosen_point_of_the_test_curve_is_the_summary(pairs_result: dict[str, Any]) -> None:
    (curves,), summary = pairs_result["trade_offs"], pairs_result["summary"]
    (chosen,) = [p for p in curves["test"] if p["threshold"] == pairs_result["choice"]["threshold"]]
    assert chosen["error"] == pytest.approx(summary["pruning_error"])
    assert chosen["ratio_mean"] == pytest.approx(summary["pruning_ratio_mean"])
    assert chosen["ratio_harmonic"] == pytest.approx(summary["pruning_ratio_harmonic"])


def test_other_test_images_change_what_is_measured_and_nothing_that_is_chosen(
    pairs_study: Study, pairs_member: Member
) -> None:
    member = few(pairs_member, 2)
    cases = [replace(case, test=replace(case.test, examples=garbage(case.test.examples))) for case in member.cases]
    true, false = (measured(pairs_study, 7, [own]) for own in (member, replace(member, cases=tuple(cases))))
    assert false["choice"] == true["choice"]
    assert false["trade_offs"][0]["validation"] == true["trade_offs"][0]["validation"]
    assert false["trade_offs"][0]["test"] != true["trade_offs"][0]["test"]
    assert false["summary"]["pruning_error"] > true["summary"]["pruning_error"]
    for key in ("pruning_ratio_mean", "bits_ratio_mean", "file_bytes_mean"):
        assert false["summary"][key] == true["summary"][key]


def test_errors_of_the_classes_add_up_to_the_pooled_ones(result: dict[str, Any]) -> None:
    classes = result["per_class"]
    assert [entry["class"] for entry in classes] == list(range(10))
    images = np.array([entry["images"] for entry in classes])
    assert images.sum() == sum(row["test_images"] for row in result["contexts"])
    pooled = {"original_error": result["original_error"]} | result["summary"]
    for key in ("original_error", "pruning_error", "file_error"):
        errors = np.array([entry[key] for entry in classes])
        assert (images * errors).sum() / images.sum() == pytest.approx(pooled[key])
        assert len(set(errors)) > 1


def test_a_class_counts_once_for_each_context_it_is_in(pairs_result: dict[str, Any], digits: DataSet) -> None:
    once = digits.test.labels.bincount().tolist()
    expected = [count * (1 if label in (0, 9) else 2) for label, count in enumerate(once)]
    assert [entry["images"] for entry in pairs_result["per_class"]] == expected


def test_rows_of_single_weights_are_counted_as_sparse(sparse_result: dict[str, Any], sparse_member: Member) -> None:
    (row,), (case,) = sparse_result["contexts"], sparse_member.cases
    assert row["threshold"] == 3.0
    pruned = emit(sparse_member, case.test, 3.0, bhc.Float32())
    small = emit(sparse_member, case.test, 3.0, bhc.VarianceBits(row["scale"]))
    assert row["pruning_ratio"] == row["pruning_ratio_ten_outputs"] == sparse.pruning_ratio(pruned)
    assert row["bits_ratio"] == sparse.bits_ratio(small)
    assert row["pruning_ratio"] != pytest.approx(pruned.report.pruning_ratio)
    assert sparse_result["summary"]["pruning_ratio_mean"] == row["pruning_ratio"]


def test_log_dropout_rates_are_kept_for_the_baselines_with_scales(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path, pairs_result: dict[str, Any]
) -> None:
    model = fitted(pretrained, digits, bhc.SingleContext(), ALONE, family="gnj")
    method = METHODS["bc-gnj"]
    result = measured(read(tmp_path, "bc-gnj", consolidate=None), 0, [member_of(model, method.cases(digits))])
    assert {name: len(rates) for name, rates in result["log_dropout"].items()} == {
        "fc1 inputs": 64, "fc2 inputs": 300, "fc3 inputs": 100,
    }  # fmt: skip
    assert len(set(result["log_dropout"]["fc2 inputs"])) > 50
    assert pairs_result["log_dropout"] == {}


def test_two_budgets_are_chosen_and_drawn_apart(digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path) -> None:
    study = read(
        tmp_path,
        "bhc-cw",
        learn_high={"kl_weight": 2.0},
        choose={"error": [10.0, 30.0], "bits_error": [20.0, 40.0]},
    )
    model = fitted(pretrained, digits, Budgets(), study.recipe, generator=study.generator)
    result = measured(study, 0, [member_of(model, study.method.cases(digits))])
    names = ["c_w = 0", "c_w = 1"]
    assert [curves["name"] for curves in result["trade_offs"]] == names
    assert [group["group"] for group in result["choice"]["groups"]] == names
    assert [row["label"] for row in result["contexts"]] == names
    assert [row["context"] for row in result["contexts"]] == [{"budget": 0.0}, {"budget": 1.0}]
    low, high = result["choice"]["groups"]
    assert low["threshold"] != high["threshold"]
    for limit, group, row, curves in zip(
        (10.0, 30.0), (low, high), result["contexts"], result["trade_offs"], strict=True
    ):
        assert (row["threshold"], row["scale"]) == (group["threshold"], group["scale"])
        within = [point for point in curves["validation"] if point["error"] <= limit]
        assert group["threshold"] == max(within, key=lambda point: point["ratio_mean"])["threshold"]
    assert result["contexts"][1]["pruning_ratio"] > result["contexts"][0]["pruning_ratio"]
