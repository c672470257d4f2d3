import numpy as np
import pytest
import torch

from bhc import contexts
from bhc.contexts import ClassSubsets, ContextBatch, FeatureSubsets, Joint, VocabularySubsets, WordsOfTexts
from bhc.data import PADDING, UNKNOWN
from bhc.errors import BhcError

SPACE = FeatureSubsets((1, 2, 3))
LAST = torch.tensor([False, False, False, True, False, True])


def seeded():
    return torch.Generator().manual_seed(0)


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
        *(np.array([5, 3], dtype=kind) for kind in (np.uint8, np.uint16, np.uint32, np.int8, np.int64)),
    ],
    ids=repr,
)
def test_features_are_a_mask_or_places(features):
    given = SPACE.resolve({"features": features}).features
    assert given.dtype == torch.bool
    assert torch.equal(given, LAST)


A_MASK, A_PLACE = "a mask of shape (1, 2, 3), true where a feature is there", "places from 0 to 5"
OF_ONE = "a mask of shape (3,), true where a feature is there, or places from 0 to 2"
FLOATS = LAST.float()


@pytest.mark.parametrize(
    ("space", "features", "problem", "hint"),
    [
        # most likely a mask of numbers
        *((SPACE, given, "named twice", "bool") for given in ((3, 5, 3), np.array([0, 1, 1, 0, 0, 1], dtype=np.uint8))),
        *(
            (SPACE, torch.ones(shape, dtype=torch.bool), f"a feature mask of shape {shape}", A_MASK)
            for shape in ((5,), (1, 3, 2), (2, 3), (1, 6), ())
        ),
        (FeatureSubsets((3,)), torch.ones(2, dtype=torch.bool), "a feature mask", OF_ONE),
        *(
            (SPACE, given, "no feature is there", "at least one")
            for given in ([False] * 6, torch.zeros(1, 2, 3).bool(), [])
        ),
        *((SPACE, [0, place], f"there is no feature {place}", A_PLACE) for place in (-1, 6, 100)),
        *(
            (SPACE, given, "an array of float", A_MASK)
            for given in ([0.0, 1.0], FLOATS, FLOATS.reshape(1, 2, 3), np.array([0.5]), [float("nan")])
        ),
        *((SPACE, given, "an array of int64", A_PLACE) for given in (3, torch.zeros(1, 2, 3).long(), [[0, 1]])),
        *((SPACE, given, "not an array", A_MASK) for given in ("all", {}, [[1], [2, 3]], ["a"])),
        *((VocabularySubsets((50,)), given, "no word left", "") for given in ([0, 1], [1])),
    ],
    ids=repr,
)
def test_what_tells_no_features_is_refused(space, features, problem, hint):
    with pytest.raises(BhcError) as caught:
        space.resolve({"features": features})
    assert problem in caught.value.problem
    assert hint in caught.value.hint


def test_a_batch_has_the_masks_of_its_contexts_and_all_features_where_none_are_said():
    said = [SPACE.resolve({"features": [3, 5]}), contexts.Context()]
    batch = ContextBatch.of(said, 4)
    assert torch.equal(batch.inputs, torch.stack([LAST, torch.ones(6, dtype=torch.bool)]))
    (encoded,) = SPACE.encode(batch)
    assert encoded.dtype == torch.float32
    assert torch.equal(encoded, batch.inputs.float())


def test_masks_of_values_lie_over_the_input_as_they_are():
    assert torch.equal(SPACE.presence.mask(LAST[None], (1, 2, 3)), LAST.reshape(1, 1, 2, 3))


def test_masks_of_channels_lie_over_the_whole_of_a_channel():
    masks = torch.tensor([[True, False, True], [False, True, False]])
    over = FeatureSubsets((3,)).presence.mask(masks, (3, 4, 5))
    assert over.shape == (2, 3, 4, 5)
    assert torch.equal(over, masks[:, :, None, None].expand(2, 3, 4, 5))


def test_a_context_says_how_many_features_there_are():
    context = SPACE.resolve({"features": [3, 5]})
    assert str(context) == "features 2 of 6"
    assert context.to_dict() == {"features": "2 of 6"}


# Words of a vocabulary: those that are not there are read as unknown.
WORDS = 50


def test_unknown_and_padding_are_always_there():
    space = VocabularySubsets((WORDS,), WordsOfTexts((0.0, 0.0, *[0.1] * (WORDS - 2))))  # they are in no text
    drawn = space.sample(100, 3, rng=seeded()).inputs
    assert drawn.shape == (100, WORDS)
    assert drawn[:, [PADDING, UNKNOWN]].all()
    context = space.resolve({"features": [7, 9]})
    assert context.features.nonzero().flatten().tolist() == [PADDING, UNKNOWN, 7, 9]
    assert str(context) == f"features 4 of {WORDS}"


def test_other_words_are_read_as_unknown_in_each_context():
    space = VocabularySubsets((WORDS,))
    masks = torch.stack([space.resolve({"features": kept}).features for kept in ([5, 6], [6, 7])])
    x = torch.tensor([[5, 6, 7, 0], [5, 6, 7, 0]], dtype=torch.int32)
    assert space.presence.as_network_input(x, masks).tolist() == [[5, 6, 1, 0], [1, 6, 7, 0]]
    assert space.presence.zero_absent(x, masks).dtype == torch.int32
    assert space.presence.as_network_input(x, None) is x
    joint = Joint(ClassSubsets(3), space)
    assert (
        joint.presence.as_network_input(x, masks).tolist()
        == joint.presence.zero_absent(x, masks).tolist()
        == [[5, 6, 1, 0], [1, 6, 7, 0]]
    )


def test_frequent_words_are_most_often_there_and_more_so_the_more_texts():
    texts = (WORDS * torch.rand(200, 8, generator=seeded()) ** 3).long()  # small numbers are frequent
    sampler = WordsOfTexts(WordsOfTexts.among(texts, WORDS).rates, (1, 100))
    masks = sampler.draw(3_000, (WORDS,), rng=seeded())
    often = masks.float().mean(0)
    assert often[0] > often[5] + 0.1 > often[49] + 0.2
    sizes = masks.sum(1).float()
    assert sizes.max() > 1.2 * sizes.min()
    few = WordsOfTexts(sampler.rates, (1, 1)).draw(3_000, (WORDS,), rng=seeded())
    torch.testing.assert_close(few.float().mean(0), torch.tensor(sampler.rates), rtol=0, atol=0.04)
