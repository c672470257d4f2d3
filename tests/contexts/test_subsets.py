import math

import pytest
import torch

from bhc.contexts import ConsecutivePairs, RandomSubsets, all_subsets
from bhc.contexts.subsets import sampler_from_dict
from bhc.errors import BhcError


def draw(sampler, count, num_classes, seed=0):
    return sampler.draw(count, num_classes, generator=torch.Generator().manual_seed(seed))


def members(rows):
    return {tuple(row.nonzero().flatten().tolist()) for row in rows}


def assert_frequency(count, total, probability):
    """A count of ``total`` draws is within five standard deviations of its mean."""
    deviation = math.sqrt(total * probability * (1 - probability))
    assert abs(count - total * probability) < 5 * deviation


def test_the_paper_s_pairs_are_all_consecutive_ones():
    assert ConsecutivePairs().subsets(5) == ((0, 1), (1, 2), (2, 3), (3, 4))
    assert members(draw(ConsecutivePairs(), 500, 10)) == {(first, first + 1) for first in range(9)}


def test_all_subsets_come_in_order_and_once():
    expected = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    assert list(all_subsets(3, (2, 1, 2))) == expected


def test_random_subsets_have_the_given_sizes_and_reach_all_of_them():
    drawn = draw(RandomSubsets((1, 3)), 1000, 5)
    assert drawn.dtype == torch.bool
    assert members(drawn) == set(all_subsets(5, (1, 3)))


def test_each_size_is_equally_likely_however_many_subsets_it_has():
    sizes = draw(RandomSubsets((1, 2, 5)), 9000, 10).sum(1)
    for size in (1, 2, 5):
        assert_frequency(int((sizes == size).sum()), 9000, 1 / 3)


def test_subsets_of_one_size_are_equally_likely():
    drawn = draw(RandomSubsets((2,)), 9000, 4)
    for subset in all_subsets(4, (2,)):
        assert_frequency(int(drawn[:, list(subset)].all(1).sum()), 9000, 1 / 6)


def test_a_held_out_subset_is_never_drawn():
    sampler = RandomSubsets((2,), held_out=((3, 1), (0, 2)))
    assert members(draw(sampler, 2000, 5)) == set(all_subsets(5, (2,))) - {(1, 3), (0, 2)}


def test_sizes_stay_equally_likely_with_subsets_held_out():
    sampler = RandomSubsets((1, 2), held_out=((0,), (1,), (2,)))
    sizes = draw(sampler, 9000, 4).sum(1)
    assert_frequency(int((sizes == 1).sum()), 9000, 1 / 2)


def test_too_many_subsets_are_refused():
    with pytest.raises(BhcError, match=r"there are [\d,]+ subsets of sizes \(10,\) among 100 classes") as caught:
        draw(RandomSubsets((10,)), 1, 100)
    assert "200,000" in caught.value.hint


def test_sizes_with_no_subset_are_refused():
    with pytest.raises(BhcError, match="there are 0 subsets"):
        draw(RandomSubsets((7,)), 1, 5)


def test_nothing_but_held_out_subsets_is_refused():
    with pytest.raises(BhcError, match="every subset is held out"):
        draw(RandomSubsets((2,), held_out=((0, 1), (0, 2), (1, 2))), 1, 3)


@pytest.mark.parametrize("sizes", [(), (0, 2), (-1,)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(BhcError, match="subset sizes must be 1 or more"):
        RandomSubsets(sizes)


@pytest.mark.parametrize(
    "sampler", [ConsecutivePairs(), RandomSubsets(), RandomSubsets((1, 4), held_out=((2, 0), (3,)))]
)
def test_a_sampler_comes_back_from_plain_data(sampler):
    assert sampler_from_dict(sampler.to_dict()) == sampler


def test_an_unknown_sampler_is_refused():
    with pytest.raises(BhcError, match="unknown kind of subset sampler: 'dice'"):
        sampler_from_dict({"kind": "dice"})
