import json
import math

import pytest
import torch

from bhc.contexts import ConsecutivePairs, ListedSubsets, RandomSubsets, all_subsets, sampler_from_dict
from bhc.errors import BhcError

HUNDRED = RandomSubsets(range(1, 101))  # too many to list: drawn in another way than few are


def draw(sampler, count, num_classes, seed=0):
    return sampler.draw(count, num_classes, rng=torch.Generator().manual_seed(seed))


def members(rows):
    return {tuple(row.nonzero().flatten().tolist()) for row in rows}


def assert_frequency(count, total, probability):
    """A count of ``total`` draws is within five standard deviations of its mean."""
    deviation = math.sqrt(total * probability * (1 - probability))
    assert abs(count - total * probability) <= 5 * deviation


def test_all_subsets_come_in_order_and_once():
    expected = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    assert list(all_subsets(3, (2, 1, 2))) == expected


@pytest.mark.parametrize(
    ("sampler", "num_classes", "expected"),
    [
        (ConsecutivePairs(), 10, {(first, first + 1) for first in range(9)}),
        (RandomSubsets((1, 3)), 5, set(all_subsets(5, (1, 3)))),
        (RandomSubsets((2,), held_out=((3, 1), (0, 2))), 5, set(all_subsets(5, (2,))) - {(1, 3), (0, 2)}),
        (
            RandomSubsets((2, 3), never_together=((0, 1), (2, 3, 4))),
            5,
            {s for s in all_subsets(5, (2, 3)) if not {0, 1} <= set(s) and s != (2, 3, 4)},
        ),
        (RandomSubsets((2,), never_together=((3,),)), 5, {s for s in all_subsets(5, (2,)) if 3 not in s}),
        (ListedSubsets([(4, 0), [2], (1, 2, 2, 3)]), 5, {(0, 4), (2,), (1, 2, 3)}),
        (ListedSubsets(((0,), (1, 2), (3,)), (1, 3, 0)), 5, {(0,), (1, 2)}),
    ],
)
def test_all_that_may_be_drawn_is_and_nothing_else(sampler, num_classes, expected):
    drawn = draw(sampler, 3000, num_classes)
    assert drawn.dtype == torch.bool
    assert members(drawn) == expected


@pytest.mark.parametrize(
    ("sampler", "num_classes", "parts"),
    [
        (RandomSubsets((1, 2, 5)), 10, {1: 1 / 3, 2: 1 / 3, 5: 1 / 3}),  # however many subsets a size has
        (RandomSubsets((1, 2), held_out=((0,), (1,), (2,))), 4, {1: 1 / 2, 2: 1 / 2}),
        (RandomSubsets((1, 2, 4), shares=(3, 0, 1)), 6, {1: 3 / 4, 2: 0, 4: 1 / 4}),
        (RandomSubsets((3, 40, 100), shares=(2, 1, 1)), 100, {3: 1 / 2, 40: 1 / 4, 100: 1 / 4}),
        (HUNDRED, 100, {0: 0, **dict.fromkeys((1, 2, 50, 99, 100), 1 / 100)}),
        (ListedSubsets([(4, 0), [2], (1, 2, 2, 3)]), 5, {1: 1 / 3, 2: 1 / 3, 3: 1 / 3}),
        (ListedSubsets(((0,), (1, 2), (3,)), (1, 3, 0)), 5, {1: 1 / 4, 2: 3 / 4}),
    ],
)
def test_sizes_come_as_often_as_their_shares_say_equally_if_nothing_is_said(sampler, num_classes, parts):
    sizes = draw(sampler, 20_000, num_classes).sum(1)
    for size, part in parts.items():
        assert_frequency(int((sizes == size).sum()), 20_000, part)


def test_subsets_of_one_size_are_equally_likely():
    drawn = draw(RandomSubsets((2,)), 9000, 4)
    for subset in all_subsets(4, (2,)):
        assert_frequency(int(drawn[:, list(subset)].all(1).sum()), 9000, 1 / 6)


def test_every_class_of_a_hundred_is_drawn_as_often_as_any_other():
    drawn = draw(RandomSubsets((30, 60)), 4000, 100)
    expected = 0.5 * (0.3 + 0.6)
    assert ((drawn.float().mean(0) - expected).abs() < 5 * math.sqrt(expected * (1 - expected) / 4000)).all()
    pairs = draw(RandomSubsets((2,)), 4000, 100)
    assert_frequency(int(pairs[:, 7].sum()), 4000, 2 / 100)


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


@pytest.mark.parametrize(("sampler", "num_classes"), [(RandomSubsets((2, 3)), 10), (HUNDRED, 100)])
def test_equal_seeds_draw_equal_subsets(sampler, num_classes):
    assert torch.equal(draw(sampler, 50, num_classes, seed=4), draw(sampler, 50, num_classes, seed=4))
    assert not torch.equal(draw(sampler, 50, num_classes, seed=4), draw(sampler, 50, num_classes, seed=5))


NAN, INFINITY = math.nan, math.inf
NO_LISTS = ((3, 4), ("ab",), ((1.5, 2),), 3)


@pytest.mark.parametrize(
    ("make", "given", "noun", "hint"),
    [
        *((RandomSubsets, {"sizes": sizes}, "sizes", "") for sizes in ((), (0, 2), (-1,), (2, 3, 2))),
        *(
            (make, given | {"shares": shares}, noun, "one for each")
            for shares in ((1,), (1, 2, 3), (0, 0), (-1, 2), (NAN, 1), (INFINITY, 1))
            for make, given, noun in (
                (RandomSubsets, {"sizes": (2, 3)}, "for 2 sizes"),
                (ListedSubsets, {"listed": ((0,), (1,))}, "for 2 subsets"),
            )
        ),
        *((ListedSubsets, {"listed": listed}, "lists of numbers", "") for listed in NO_LISTS),
        *((RandomSubsets, {"sizes": (2,), "held_out": listed}, "lists of numbers", "") for listed in NO_LISTS),
        *((ListedSubsets, {"listed": listed}, "no subsets", "") for listed in ((), ((),), ((1,), ()))),
        (RandomSubsets, {"sizes": (2,), "never_together": ((),)}, "nothing to draw", ""),
        (sampler_from_dict, {"data": {"kind": "dice"}}, "dice", ""),
    ],
)
def test_a_sampler_that_cannot_be_is_refused(make, given, noun, hint):
    with pytest.raises(BhcError, match=noun) as caught:
        make(**given)
    assert hint in caught.value.hint


LACKING, NEVER_DRAWN = "classes are 0 to 4", tuple((label,) for label in range(100))


@pytest.mark.parametrize(
    ("sampler", "num_classes", "noun", "hint"),
    [
        *((RandomSubsets(sizes), 5, "7 classes", "choose sizes from 1 to 5") for sizes in ((7,), (2, 7))),
        (RandomSubsets((2,), held_out=((0, 1), (0, 2), (1, 2))), 3, "held out", ""),
        *((ListedSubsets(listed), 5, "of 5 classes", LACKING) for listed in (((0, 5),), ((-1, 2),))),
        (RandomSubsets((2,), held_out=((1, 5),)), 5, "of 5 classes", LACKING),
        (RandomSubsets((2,), never_together=((-1, 2),)), 5, "of 5 classes", LACKING),
        (RandomSubsets((50, 60), never_together=NEVER_DRAWN), 100, "none may be drawn", "ListedSubsets"),
    ],
)
def test_a_sampler_that_has_nothing_to_draw_for_a_network_is_refused(sampler, num_classes, noun, hint):
    with pytest.raises(BhcError, match=noun) as caught:
        draw(sampler, 1, num_classes)
    assert hint in caught.value.hint


def test_too_many_subsets_to_list_are_refused():
    with pytest.raises(BhcError, match="17,310,309,456,440 subsets"):
        RandomSubsets((10,)).subsets(100)


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        (ConsecutivePairs(), "pairs"),
        (RandomSubsets(), "subsets of"),
        (HUNDRED, "subsets of 1 to 100"),
        (RandomSubsets((2, 3)), "subsets of 2, 3"),
        (RandomSubsets((4, 2, 3)), "subsets of 2 to 4"),
        (RandomSubsets((2, 5, 9)), "subsets of 2, 5, 9"),
        (RandomSubsets((1, 4), held_out=((2, 0), (3,))), "subsets of 1, 4"),
        (
            RandomSubsets(range(1, 6), never_together=((0, 1), (2, 3, 4)), shares=(5, 4, 3, 2, 1)),
            "subsets of 1 to 5",
        ),
        (ListedSubsets(((3, 1), (2,))), "2 listed subsets"),
        (ListedSubsets(((3, 1), (2,)), (0.5, 0.25)), "2 listed subsets"),
    ],
)
def test_a_sampler_comes_back_from_plain_data_and_says_what_it_draws(sampler, text):
    assert sampler_from_dict(json.loads(json.dumps(sampler.to_dict()))) == sampler
    assert text in sampler.describe()


def test_a_run_of_before_has_all_subsets_equally_likely():
    old = {"kind": "random-subsets", "sizes": [2, 3], "held_out": [[0, 1]]}
    assert sampler_from_dict(old) == RandomSubsets((2, 3), held_out=((0, 1),))


@pytest.mark.parametrize(
    "sampler",
    [
        ConsecutivePairs(),
        RandomSubsets(),
        HUNDRED,
        RandomSubsets((2, 50), held_out=((0, 1),), never_together=((2, 3),)),
        ListedSubsets(((3,), (1, 2), (7, 8, 99))),
    ],
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


def test_examples_spread_over_all_subsets_of_a_table_and_many_sizes_of_a_hundred_classes():
    assert list(ConsecutivePairs().examples(100, 3)) == [(0, 1), (33, 34), (66, 67)]
    assert list(ConsecutivePairs().examples(4, 10)) == [(0, 1), (1, 2), (2, 3)]
    assert {len(subset) for subset in RandomSubsets((1, 2, 3)).examples(6, 12)} == {1, 2, 3}
    assert len({len(subset) for subset in HUNDRED.examples(100, 24)}) > 12
