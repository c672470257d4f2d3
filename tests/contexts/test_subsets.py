import json
import math

import pytest
import torch

from bhc.contexts import ConsecutivePairs, ListedSubsets, RandomSubsets, all_subsets
from bhc.contexts.subsets import sampler_from_dict
from bhc.errors import BhcError


def draw(sampler, count, num_classes, seed=0):
    return sampler.draw(count, num_classes, rng=torch.Generator().manual_seed(seed))


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


def test_too_many_subsets_to_list_are_refused():
    with pytest.raises(BhcError, match=r"there are 17,310,309,456,440 subsets of sizes \(10,\): too many to list"):
        RandomSubsets((10,)).subsets(100)


@pytest.mark.parametrize("sampler", [RandomSubsets((7,)), RandomSubsets((2, 7))])
def test_subsets_larger_than_the_network_are_refused(sampler):
    with pytest.raises(BhcError, match="subsets of 7 classes, and the network has 5") as caught:
        draw(sampler, 1, 5)
    assert caught.value.hint == "choose sizes from 1 to 5"


def test_nothing_but_held_out_subsets_is_refused():
    with pytest.raises(BhcError, match="every subset is held out"):
        draw(RandomSubsets((2,), held_out=((0, 1), (0, 2), (1, 2))), 1, 3)


@pytest.mark.parametrize("sizes", [(), (0, 2), (-1,), (2, 3, 2)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(BhcError, match="subset sizes must be 1 or more"):
        RandomSubsets(sizes)


@pytest.mark.parametrize(
    "sampler",
    [
        ConsecutivePairs(),
        RandomSubsets(),
        RandomSubsets((1, 4), held_out=((2, 0), (3,))),
        RandomSubsets(range(1, 6), never_together=((0, 1), (2, 3, 4)), shares=(5, 4, 3, 2, 1)),
        ListedSubsets(((3, 1), (2,))),
        ListedSubsets(((3, 1), (2,)), (0.5, 0.25)),
    ],
    ids=repr,
)
def test_a_sampler_comes_back_from_plain_data(sampler):
    assert sampler_from_dict(json.loads(json.dumps(sampler.to_dict()))) == sampler


def test_a_run_of_before_has_all_subsets_equally_likely():
    old = {"kind": "random-subsets", "sizes": [2, 3], "held_out": [[0, 1]]}
    assert sampler_from_dict(old) == RandomSubsets((2, 3), held_out=((0, 1),))


def test_an_unknown_sampler_is_refused():
    with pytest.raises(BhcError, match="unknown kind of subset sampler: 'dice'"):
        sampler_from_dict({"kind": "dice"})


def test_sizes_come_in_proportion_to_their_shares():
    sizes = draw(RandomSubsets((1, 2, 4), shares=(3, 0, 1)), 8000, 6).sum(1)
    assert_frequency(int((sizes == 1).sum()), 8000, 3 / 4)
    assert_frequency(int((sizes == 4).sum()), 8000, 1 / 4)


def test_subsets_with_classes_that_never_meet_are_never_drawn():
    sampler = RandomSubsets((2, 3), never_together=((0, 1), (2, 3, 4)))
    allowed = {s for s in all_subsets(5, (2, 3)) if not {0, 1} <= set(s) and s != (2, 3, 4)}
    assert members(draw(sampler, 3000, 5)) == allowed


@pytest.mark.parametrize("shares", [(1,), (1, 2, 3), (0, 0), (-1, 2), (float("nan"), 1), (float("inf"), 1)])
def test_impossible_shares_are_refused(shares):
    with pytest.raises(BhcError, match="for 2 sizes") as caught:
        RandomSubsets((2, 3), shares=shares)
    assert "one for each" in caught.value.hint
    with pytest.raises(BhcError, match="for 2 subsets"):
        ListedSubsets(((0,), (1,)), shares)


def test_a_single_class_that_never_meets_itself_is_never_drawn():
    assert not draw(RandomSubsets((2,), never_together=((3,),)), 500, 5)[:, 3].any()


def test_nothing_that_never_meets_is_refused():
    with pytest.raises(BhcError, match="leaves nothing to draw"):
        RandomSubsets((2,), never_together=((),))


@pytest.mark.parametrize("subsets", [(3, 4), ("ab",), ((1.5, 2),), 3])
def test_subsets_that_are_no_lists_of_numbers_are_refused(subsets):
    for make in (ListedSubsets, lambda given: RandomSubsets((2,), held_out=given)):
        with pytest.raises(BhcError, match="class subsets are lists of numbers"):
            make(subsets)


@pytest.mark.parametrize(
    "sampler",
    [
        ListedSubsets(((0, 5),)),
        ListedSubsets(((-1, 2),)),
        RandomSubsets((2,), held_out=((1, 5),)),
        RandomSubsets((2,), never_together=((-1, 2),)),
    ],
    ids=repr,
)
def test_classes_that_the_network_lacks_are_refused(sampler):
    with pytest.raises(BhcError, match="of 5 classes") as caught:
        draw(sampler, 1, 5)
    assert caught.value.hint == "classes are 0 to 4"


def test_listed_subsets_are_all_that_is_drawn_equally_often():
    sampler = ListedSubsets([(4, 0), [2], (1, 2, 2, 3)])
    drawn = draw(sampler, 6000, 5)
    assert members(drawn) == {(0, 4), (2,), (1, 2, 3)}
    for size in (1, 2, 3):
        assert_frequency(int((drawn.sum(1) == size).sum()), 6000, 1 / 3)


def test_listed_subsets_come_in_proportion_to_their_shares():
    drawn = draw(ListedSubsets(((0,), (1, 2), (3,)), (1, 3, 0)), 6000, 5)
    assert members(drawn) == {(0,), (1, 2)}
    assert_frequency(int(drawn[:, 0].sum()), 6000, 1 / 4)


@pytest.mark.parametrize("listed", [(), ((),), ((1,), ())])
def test_empty_lists_are_refused(listed):
    with pytest.raises(BhcError, match="no subsets are listed"):
        ListedSubsets(listed)


HUNDRED = RandomSubsets(range(1, 101))


def test_a_hundred_classes_have_subsets_of_every_size_equally_often():
    drawn = draw(HUNDRED, 20_000, 100)
    assert drawn.dtype == torch.bool
    sizes = drawn.sum(1)
    counts = torch.bincount(sizes, minlength=101)
    assert counts[0] == 0
    for size in (1, 2, 50, 99, 100):
        assert_frequency(int(counts[size]), 20_000, 1 / 100)
    assert_frequency(int(drawn[sizes == 2].sum(0)[7]), int(counts[2]), 2 / 100)


def test_every_class_of_a_hundred_is_drawn_as_often_as_any_other():
    drawn = draw(RandomSubsets((30, 60)), 4000, 100)
    expected = 0.5 * (0.3 + 0.6)
    assert ((drawn.float().mean(0) - expected).abs() < 5 * math.sqrt(expected * (1 - expected) / 4000)).all()


def test_sizes_among_a_hundred_classes_come_in_proportion_to_their_shares():
    sizes = draw(RandomSubsets((3, 40, 100), shares=(2, 1, 1)), 8000, 100).sum(1)
    assert_frequency(int((sizes == 3).sum()), 8000, 1 / 2)
    assert_frequency(int((sizes == 40).sum()), 8000, 1 / 4)
    assert_frequency(int((sizes == 100).sum()), 8000, 1 / 4)


def test_held_out_subsets_of_a_hundred_classes_are_never_drawn_however_common():
    singles, everything = tuple((label,) for label in range(1, 100)), tuple(range(100))
    sampler = RandomSubsets((1, 4, 100), held_out=(*singles, everything))
    drawn = members(draw(sampler, 4000, 100))
    assert {subset for subset in drawn if len(subset) == 1} <= {(0,)}
    assert everything not in drawn
    assert len(drawn) > 1000


def test_classes_of_a_hundred_that_never_meet_are_never_drawn_together_however_common():
    drawn = draw(RandomSubsets(range(1, 101), never_together=((0, 1), (5, 6, 7))), 4000, 100)
    assert not drawn[:, [0, 1]].all(1).any()
    assert not drawn[:, [5, 6, 7]].all(1).any()
    assert drawn[:, [0, 2]].all(1).any()
    assert drawn[:, [5, 6]].all(1).any()


def test_a_hundred_classes_of_which_nothing_may_be_drawn_are_refused():
    sampler = RandomSubsets((50, 60), never_together=tuple((label,) for label in range(100)))
    with pytest.raises(BhcError, match="none may be drawn") as caught:
        draw(sampler, 1, 100)
    assert "ListedSubsets" in caught.value.hint


def test_equal_seeds_draw_equal_subsets_of_a_hundred_classes():
    assert torch.equal(draw(HUNDRED, 50, 100, seed=4), draw(HUNDRED, 50, 100, seed=4))
    assert not torch.equal(draw(HUNDRED, 50, 100, seed=4), draw(HUNDRED, 50, 100, seed=5))


@pytest.mark.parametrize(
    "sampler",
    [
        ConsecutivePairs(),
        RandomSubsets(),
        HUNDRED,
        RandomSubsets((2, 50), held_out=((0, 1),), never_together=((2, 3),)),
        ListedSubsets(((3,), (1, 2), (7, 8, 99))),
    ],
    ids=repr,
)
def test_examples_are_subsets_that_can_be_drawn_and_always_the_same(sampler):
    examples = list(sampler.examples(100, 10))
    assert 0 < len(examples) <= 10
    assert examples == list(sampler.examples(100, 10))
    for subset in examples:
        assert subset == tuple(sorted(set(subset)))
        assert 0 <= subset[0] <= subset[-1] < 100
        assert subset != (0, 1) or not getattr(sampler, "held_out", ())
        assert not {2, 3} <= set(subset) or not getattr(sampler, "never_together", ())


def test_examples_spread_over_all_subsets_of_a_table():
    assert list(ConsecutivePairs().examples(100, 3)) == [(0, 1), (33, 34), (66, 67)]
    assert list(ConsecutivePairs().examples(4, 10)) == [(0, 1), (1, 2), (2, 3)]
    assert {len(subset) for subset in RandomSubsets((1, 2, 3)).examples(6, 12)} == {1, 2, 3}


def test_examples_among_a_hundred_classes_have_many_sizes():
    assert len({len(subset) for subset in HUNDRED.examples(100, 24)}) > 12


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        (HUNDRED, "subsets of 1 to 100"),
        (RandomSubsets((2, 3)), "subsets of 2, 3"),
        (RandomSubsets((4, 2, 3)), "subsets of 2 to 4"),
        (RandomSubsets((2, 5, 9)), "subsets of 2, 5, 9"),
        (ListedSubsets(((1, 2), (3,))), "2 listed subsets"),
    ],
)
def test_a_sampler_says_what_it_draws(sampler, text):
    assert text in sampler.describe()
