import pytest
import torch

from bhc.contexts import ClassSubsets, Joint, VocabularySubsets, WordsOfTexts
from bhc.data import PADDING, UNKNOWN
from bhc.errors import BhcError

WORDS = 50


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def texts(count=200):
    """Small numbers are frequent."""
    return (WORDS * torch.rand(count, 8, generator=rng()) ** 3).long()


def test_unknown_and_padding_are_always_there():
    space = VocabularySubsets((WORDS,), WordsOfTexts.among(texts(), WORDS))
    drawn = space.sample(100, 3, rng=rng()).inputs
    assert drawn.shape == (100, WORDS)
    assert drawn[:, [PADDING, UNKNOWN]].all()
    context = space.resolve({"features": [7, 9]})
    assert context.features.nonzero().flatten().tolist() == [PADDING, UNKNOWN, 7, 9]
    assert str(context) == f"features 4 of {WORDS}"


def test_other_words_are_read_as_unknown_in_each_context():
    space = VocabularySubsets((WORDS,))
    masks = torch.stack([space.resolve({"features": kept}).features for kept in ([5, 6], [6, 7])])
    x = torch.tensor([[5, 6, 7, 0], [5, 6, 7, 0]], dtype=torch.int32)
    assert space.as_network_input(x, masks).tolist() == [[5, 6, 1, 0], [1, 6, 7, 0]]
    assert space.zero_absent(x, masks).dtype == torch.int32
    assert space.as_network_input(x, None) is x
    joint = Joint(ClassSubsets(3), space)
    assert (
        joint.as_network_input(x, masks).tolist()
        == joint.zero_absent(x, masks).tolist()
        == [[5, 6, 1, 0], [1, 6, 7, 0]]
    )


def test_frequent_words_are_most_often_there_and_more_so_the_more_texts():
    sampler = WordsOfTexts(WordsOfTexts.among(texts(), WORDS).rates, (1, 100))
    masks = sampler.draw(3_000, (WORDS,), rng=rng())
    often = masks.float().mean(0)
    assert often[0] > often[5] + 0.1 > often[49] + 0.2
    sizes = masks.sum(1).float()
    assert sizes.max() > 1.2 * sizes.min()
    few = WordsOfTexts(sampler.rates, (1, 1)).draw(3_000, (WORDS,), rng=rng())
    torch.testing.assert_close(few.float().mean(0), torch.tensor(sampler.rates), rtol=0, atol=0.04)


@pytest.mark.parametrize("features", [[0, 1], [1]])
def test_a_vocabulary_without_words_is_refused(features):
    with pytest.raises(BhcError, match="no word left"):
        VocabularySubsets((WORDS,)).resolve({"features": features})
