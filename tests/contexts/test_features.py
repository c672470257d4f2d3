import json

import numpy as np
import pytest
import torch

from bhc import contexts
from bhc.contexts import ContextBatch, FeatureSubsets, ListedFeatures, MixedFeatures, ScatteredFeatures
from bhc.errors import BhcError

SPACE = FeatureSubsets((1, 2, 3))
LAST = torch.tensor([False, False, False, True, False, True])


def resolve(features, space=SPACE):
    return space.resolve({"features": features}).features


def refused(features, space=SPACE):
    with pytest.raises(BhcError) as caught:
        resolve(features, space)
    return caught.value


@pytest.mark.parametrize(
    "features",
    [
        LAST,
        LAST.reshape(1, 2, 3),
        LAST.numpy(),
        LAST.reshape(1, 2, 3).numpy(),
        LAST.tolist(),
        LAST.reshape(1, 2, 3).tolist(),
        [5, 3],
        range(3, 6, 2),
        torch.tensor([3, 5]),
        np.array([5, 3], dtype=np.uint8),
    ],
    ids=repr,
)
def test_features_are_a_mask_or_places(features):
    given = resolve(features)
    assert given.dtype == torch.bool
    assert torch.equal(given, LAST)


@pytest.mark.parametrize("features", [(3, 5, 3), np.array([0, 1, 1, 0, 0, 1], dtype=np.uint8)], ids=repr)
def test_a_place_named_twice_is_most_likely_a_mask_of_numbers(features):
    with pytest.raises(BhcError, match="named twice") as caught:
        resolve(features)
    assert "bool" in caught.value.hint


def test_a_batch_has_the_masks_of_its_contexts_and_all_features_where_none_are_said():
    said = [SPACE.resolve({"features": [3, 5]}), contexts.Context()]
    batch = ContextBatch.of(said, 4)
    assert torch.equal(batch.inputs, torch.stack([LAST, torch.ones(6, dtype=torch.bool)]))
    (encoded,) = SPACE.encode(batch)
    assert encoded.dtype == torch.float32
    assert torch.equal(encoded, batch.inputs.float())


def test_with_none_said_all_features_are_there():
    (encoded,) = SPACE.encode(ContextBatch.unconditioned(3, 4))
    assert torch.equal(encoded, torch.ones(3, 6))


@pytest.mark.parametrize("shape", [(5,), (1, 3, 2), (2, 3), (1, 6), ()])
def test_a_mask_of_another_shape_is_refused(shape):
    error = refused(torch.ones(shape, dtype=torch.bool))
    assert error.problem == f"a feature mask of shape {shape}"
    assert "a mask of shape (1, 2, 3)" in error.hint


def test_the_shape_of_a_single_dimension_reads_as_one():
    error = refused(torch.ones(2, dtype=torch.bool), FeatureSubsets((3,)))
    assert "a mask of shape (3,)" in error.hint
    assert "places from 0 to 2" in error.hint


@pytest.mark.parametrize("features", [[False] * 6, torch.zeros(1, 2, 3, dtype=torch.bool)])
def test_no_feature_at_all(features):
    assert refused(features).problem == "no feature is there: the mask removes everything"


@pytest.mark.parametrize("place", [-1, 6, 100])
def test_a_place_out_of_range(place):
    error = refused([0, place])
    assert error.problem == f"there is no feature {place}"
    assert "places from 0 to 5" in error.hint


@pytest.mark.parametrize(
    "features", [[0.0, 1.0], LAST.float(), LAST.float().reshape(1, 2, 3), np.array([0.5]), [float("nan")]], ids=repr
)
def test_numbers_with_a_point_are_neither_masks_nor_places(features):
    error = refused(features)
    assert "an array of float" in error.problem
    assert "true where a feature is there" in error.hint


@pytest.mark.parametrize("features", [3, torch.zeros(1, 2, 3, dtype=torch.int64), [[0, 1]]], ids=repr)
def test_places_come_in_a_row(features):
    assert "features as an array of int64" in refused(features).problem


@pytest.mark.parametrize("features", ["all", {}, [[1], [2, 3]], ["a"]], ids=repr)
def test_what_is_no_array_is_refused(features):
    assert "true where a feature is there" in refused(features).hint


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (1, 1, 1), (-2, -3)])
def test_there_must_be_two_features_to_choose_from(shape):
    with pytest.raises(BhcError, match="features of shape") as caught:
        FeatureSubsets(shape)
    assert "at least two" in caught.value.hint


def test_training_draws_masks_and_leaves_classes_alone():
    space = FeatureSubsets((4,), ListedFeatures(((0,), (1, 2))))
    batch = space.sample(50, 3, rng=torch.Generator().manual_seed(0))
    assert {tuple(row.nonzero().flatten().tolist()) for row in batch.inputs} == {(0,), (1, 2)}
    assert batch.outputs.all()
    torch.testing.assert_close(batch.class_rates, torch.full((50, 3), 1 / 3))


def test_what_is_forgotten_is_told_as_all_features():
    space = FeatureSubsets((4,), ListedFeatures(((0,),)))
    batch = space.sample(3, 3, rng=torch.Generator().manual_seed(0))
    forgotten = space.forget(batch, torch.tensor([True, False, True]))
    only, everything = [True, False, False, False], [True] * 4
    assert forgotten.inputs.tolist() == [only, everything, only]


def test_masks_of_values_lie_over_the_input_as_they_are():
    assert torch.equal(SPACE.there(LAST[None], (1, 2, 3)), LAST.reshape(1, 1, 2, 3))


def test_masks_of_channels_lie_over_the_whole_of_a_channel():
    masks = torch.tensor([[True, False, True], [False, True, False]])
    over = FeatureSubsets((3,)).there(masks, (3, 4, 5))
    assert over.shape == (2, 3, 4, 5)
    assert torch.equal(over, masks[:, :, None, None].expand(2, 3, 4, 5))


def test_a_context_says_how_many_features_there_are():
    context = SPACE.resolve({"features": [3, 5]})
    assert str(context) == "features 2 of 6"
    assert context.to_dict() == {"features": "2 of 6"}


@pytest.mark.parametrize(
    "space", [FeatureSubsets((3,)), FeatureSubsets([1, 2, 3]), FeatureSubsets((4,), ScatteredFeatures((0.5, 1.0)))]
)
def test_a_space_comes_back_from_its_description(space):
    restored = contexts.from_dict(json.loads(json.dumps(space.to_dict())))
    assert isinstance(restored, FeatureSubsets)
    assert restored.shape == space.shape
    assert restored.training_masks == space.training_masks


def test_the_usual_masks_suit_the_shape():
    assert FeatureSubsets((1, 8, 8)).training_masks == MixedFeatures()
    assert FeatureSubsets((3,)).training_masks == ScatteredFeatures()


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.int8, np.int64])
def test_places_are_whole_numbers_of_any_kind(kind):
    assert resolve(np.array([5, 3], dtype=kind)).nonzero().flatten().tolist() == [3, 5]
