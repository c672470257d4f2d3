"""Each method is asked about the right images."""

from dataclasses import replace

import pytest
import torch
from study.methods import METHODS, MIXED_BATCHES, request

import bhc
from bhc.data import DataSet
from tests.experiments.toys import NINE, garbage, numbered_data, numbers_of


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
            assert torch.equal(sample.examples.inputs, split.inputs[wanted])


def test_a_model_of_subsets_is_told_classes_and_one_of_a_single_context_nothing(digits: DataSet) -> None:
    sample = METHODS["bhc-cy"].cases(digits)[3].test
    assert request(bhc.ClassSubsets(10), sample) == {"classes": [3, 4]}
    assert request(bhc.SingleContext((3, 4)), sample) == {}


def test_a_domain_is_told_by_training_images_and_nothing_else(digits: DataSet) -> None:
    other = replace(digits, validation=garbage(digits.validation), test=garbage(digits.test))
    for data in (digits, other):
        for case, pair in zip(METHODS["bhc-cx-domain"].cases(data), NINE, strict=True):
            own = digits.train.inputs[torch.isin(digits.train.labels, torch.tensor(pair))]
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


def test_mixed_batches_are_of_one_size_told_by_their_own_images_and_no_image_is_in_two() -> None:
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
            assert torch.equal(sample.conditions["domain"], sample.examples.inputs)


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
    assert torch.equal(case.validation.examples.inputs, digits.validation.inputs)
    assert torch.equal(case.test.examples.inputs, digits.test.inputs)
