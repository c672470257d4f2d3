import json
import math

import pytest
import torch

from bhc.contexts import (
    BlockFeatures,
    FeatureSubsets,
    ListedFeatures,
    MixedFeatures,
    ScatteredFeatures,
    StripedFeatures,
    WordsOfTexts,
)
from bhc.contexts.masks import draw_masks, mask_sampler_from_dict
from bhc.errors import BhcError

PLANE = (3, 8, 6)
SAMPLERS = {
    "scattered": ScatteredFeatures(),
    "few": ScatteredFeatures((0.0, 0.01)),
    "blocks": BlockFeatures(),
    "small blocks": BlockFeatures(0.05),
    "stripes": StripedFeatures(),
    "wide stripes": StripedFeatures(20),
    "listed": ListedFeatures(((0, 5), (7,), (9, 2, 9))),
    "mixed": MixedFeatures(),
    "mixed lists": MixedFeatures((ListedFeatures(((1,),)), ListedFeatures(((2, 3),)))),
}
WORDS = WordsOfTexts((0.1,) * 12, (50, 400))  # for vocabularies alone


def draw(sampler, count=200, shape=PLANE, seed=0):
    return draw_masks(sampler, count, shape, rng=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [PLANE, (12,), (3, 4), (1, 1, 12)], ids=str)
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_every_mask_has_a_place_for_each_feature_and_at_least_one_is_there(sampler, shape):
    masks = draw(sampler, 300, shape)
    assert masks.shape == (300, math.prod(shape))
    assert masks.dtype == torch.bool
    assert masks.any(1).all()


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_masks_differ_between_contexts_and_equal_seeds_draw_equal_ones(sampler):
    assert len(draw(sampler).unique(dim=0)) > 1
    assert torch.equal(draw(sampler, seed=4), draw(sampler, seed=4))
    assert not torch.equal(draw(sampler, seed=4), draw(sampler, seed=5))


@pytest.mark.parametrize("sampler", [*SAMPLERS.values(), WORDS], ids=[*SAMPLERS, "words"])
def test_a_sampler_comes_back_from_plain_data_and_says_what_it_draws(sampler):
    assert mask_sampler_from_dict(json.loads(json.dumps(sampler.to_dict()))) == sampler
    assert sampler.describe()
    assert sampler.describe() in FeatureSubsets((12,), sampler).describe()["features"]


NAN = math.nan


@pytest.mark.parametrize(
    ("make", "given", "noun"),
    [
        *(
            (ScatteredFeatures, ((low, high),), "between 0 and 1")
            for low, high in ((-0.1, 0.5), (0.5, 0.2), (0.5, 1.1), (0.0, 0.0), (NAN, 1.0))
        ),
        *((BlockFeatures, (least,), "shortest stretch") for least in (0.0, -1.0, 1.5, NAN)),
        (StripedFeatures, (1,), "2 or more apart, given 1"),
        *((ListedFeatures, (listed,), "empty") for listed in ((), ((),), ((1, 2), ()))),
        *((ListedFeatures, (listed,), "lists of numbers") for listed in ((3, 4), (("a",),))),
        *(
            (WordsOfTexts, given, "rates lie between 0 and 1")
            for given in (((0.5, 2.0), (1, 2)), ((0.5,), (3, 2)), ((0.5,), (0, 2)))
        ),
        (MixedFeatures, ((),), "nothing to mix"),
        (mask_sampler_from_dict, ({"kind": "dice"},), "dice"),
    ],
)
def test_a_sampler_that_cannot_be_is_refused(make, given, noun):
    with pytest.raises(BhcError, match=noun):
        make(*given)


@pytest.mark.parametrize(
    ("sampler", "shape", "noun", "hint"),
    [
        (ListedFeatures(((0, 12),)), (12,), "no feature 12", "features are 0 to 11"),
        (ListedFeatures(((-1, 3),)), (12,), "no feature -1", "features are 0 to 11"),
        (WordsOfTexts((0.5,)), (5,), r"\(5,\), and 1 words", ""),
    ],
)
def test_a_sampler_for_other_features_is_refused(sampler, shape, noun, hint):
    with pytest.raises(BhcError, match=noun) as caught:
        draw(sampler, 1, shape)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        *((shape, MixedFeatures()) for shape in ((3, 8, 8), (8, 8), (1, 28, 28))),
        *((shape, ScatteredFeatures()) for shape in ((3,), (100,), (1, 64), (100, 1))),
    ],
)
def test_inputs_on_a_plane_also_get_blocks_and_stripes(shape, expected):
    assert FeatureSubsets(shape).training_masks == expected


def test_scattered_parts_are_spread_evenly_between_the_bounds():
    parts = draw(ScatteredFeatures((0.2, 0.6)), 2000, (1000,)).float().mean(1)
    noise = 5 * math.sqrt(0.25 / 1000)
    assert 0.2 - noise < parts.min() < 0.22 + noise
    assert 0.58 - noise < parts.max() < 0.6 + noise
    assert abs(parts.mean() - 0.4) < 0.02
    assert abs((parts < 0.3).float().mean() - 0.25) < 0.06


def test_scattered_features_are_drawn_each_for_itself():
    masks = draw(ScatteredFeatures((0.5, 0.5)), 4000, (20,)).float()
    torch.testing.assert_close(masks.mean(0), torch.full((20,), 0.5), atol=5 * 0.5 / math.sqrt(4000), rtol=0)
    apart = torch.corrcoef(masks.T) - torch.eye(20)
    assert apart.abs().max() < 5 / math.sqrt(4000)


def test_all_features_are_there_where_the_part_is_one():
    assert draw(ScatteredFeatures((1.0, 1.0))).all()


def test_a_block_is_a_stretch_of_rows_by_a_stretch_of_columns_in_all_channels():
    for mask in draw(BlockFeatures(0.3)).reshape(-1, *PLANE):
        rows, columns = mask[0].any(1), mask[0].any(0)
        assert torch.equal(mask, (rows[:, None] & columns).expand(PLANE))
        for stretch in (rows, columns):
            places = stretch.nonzero().flatten()
            assert places[-1] - places[0] == len(places) - 1


@pytest.mark.parametrize("least", [0.1, 0.25, 0.6, 1.0])
def test_stretches_are_no_shorter_than_the_least_and_often_whole(least):
    rows = draw(BlockFeatures(least), 3000, (100, 100)).reshape(-1, 100, 100).any(2).sum(1)
    assert rows.min() >= 100 * least - 1
    assert least == 1 or rows.min() < 100 * least + 10
    assert (rows == 100).float().mean() > 0.45


def test_a_block_may_lie_anywhere():
    masks = draw(BlockFeatures(0.25), 500, (8, 8)).reshape(-1, 8, 8)
    assert masks.any(0).all()
    assert (~masks).any(0).all()


def test_stripes_are_whole_rows_or_whole_columns_the_stated_distance_apart():
    distances, turned = set(), set()
    for mask in draw(StripedFeatures(4), 400, (3, 24, 24)).reshape(-1, 3, 24, 24):
        rows, columns = mask.any(2).any(0), mask.any(1).any(0)
        line, other = (rows, columns) if not rows.all() else (columns, rows)
        assert other.all()
        expected = rows[:, None] & columns
        assert torch.equal(mask, expected.expand(3, 24, 24))
        distances |= set(line.nonzero().flatten().diff().tolist())
        turned.add(bool(rows.all()))
        assert line.nonzero()[0] < 4
    assert distances == {2, 3, 4}
    assert turned == {True, False}


def test_each_distance_has_stripes_only_of_that_distance():
    for mask in draw(StripedFeatures(5), 200, (30,)):
        assert len(mask.nonzero().flatten().diff().unique()) == 1


def test_listed_sets_are_drawn_equally_often_for_each_shape_whatever_was_drawn_and_changed_before():
    sampler = ListedFeatures(((0, 5), (7,), (9, 2, 9)))
    for shape in ((2, 5), (12,), (2, 5)):
        masks = draw(sampler, 3000, shape)
        drawn = [tuple(mask.nonzero().flatten().tolist()) for mask in masks]
        assert set(drawn) == {(0, 5), (7,), (2, 9)}
        assert all(abs(drawn.count(places) - 1000) < 5 * math.sqrt(3000 * 2 / 9) for places in set(drawn))
        masks.fill_(True)


def test_a_mixture_draws_from_each_equally_often():
    parts = (ListedFeatures(((1,),)), ListedFeatures(((2, 3),)), ListedFeatures(((4,),)))
    sizes = draw(MixedFeatures(parts), 3000, (6,))
    for place in (1, 2, 4):
        assert abs(int(sizes[:, place].sum()) - 1000) < 5 * math.sqrt(3000 * 2 / 9)
