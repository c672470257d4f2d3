import pytest
import torch

from bhc.hypernet import Initial, LowRank
from bhc.posterior import FAMILIES

from .toys import PAIRS, conditional, numbers_of, pairs, perturb_, tensors_of


def model_in_use(family="io-gnj"):
    model = conditional(LowRank(2), initial=Initial(), family=family)
    perturb_(model.hypernet)
    return model.hypernet, PAIRS.encode(pairs(3))


def sizes(vectors):
    return [None if vector is None else vector.shape[1] for vector in vectors]


ONE_GROUP = [[None, 3, 3], [12, None, None], [6, None, 10]]
# By layer: input scales, output scales, and the biases that the network has.
MEANS = {
    "gnj": ONE_GROUP,
    "io-gnj": [[1, 3, 3], [12, 6, None], [6, 10, 10]],
    "ghs": ONE_GROUP,
    "sparse-vd": [[None, None, 3], [None, None, None], [None, None, 10]],
}
# By layer: the numbers behind its input scales and output scales; a horseshoe has two a scale and two a layer.
NUMBERS = MEANS | {"ghs": [[None, 8], [26, None], [14, None]]}


@pytest.mark.parametrize("family", FAMILIES)
def test_means_and_rates_alone_are_those_of_the_posterior(family):
    hypernet, encoding = model_in_use(family)
    believed = hypernet.posterior(encoding)
    means, rates = hypernet.means(encoding), hypernet.dropouts(encoding)
    assert [sizes((mean.in_scale, mean.out_scale, mean.bias)) for mean in means] == MEANS[family]
    for belief, mean, rate, count in zip(believed, means, rates, NUMBERS[family], strict=True):
        assert torch.equal(mean.weight.dense(), belief.mean.weight.dense())
        for name in ("bias", "in_scale", "out_scale"):
            first, second = getattr(mean, name), getattr(belief.mean, name)
            assert first is second is None or torch.equal(first, second)
        scales = (belief.in_scale, belief.out_scale)
        assert [None if each is None else numbers_of(each)[0].shape[1] for each in scales] == count[:2]
        for each, alone in zip(scales, (rate.in_log_dropout, rate.out_log_dropout), strict=True):
            assert each is alone is None or torch.equal(each.log_dropout, alone)
            assert each is None or (numbers_of(each)[1][0] != numbers_of(each)[1][1]).all(), "contexts have their own"


def test_gates_can_be_frozen_again_where_the_means_are_now():
    hypernet, encoding = model_in_use()
    hypernet.freeze_gates_()
    perturb_(hypernet)
    hypernet.freeze_gates_()
    for alone, belief in zip(hypernet.dropouts(encoding), hypernet.posterior(encoding), strict=True):
        torch.testing.assert_close(alone.out_log_dropout, belief.out_scale.log_dropout)


def test_a_context_alone_is_believed_as_in_a_batch():
    hypernet, encoding = model_in_use()
    together = tensors_of(hypernet.posterior(encoding))
    alone = tensors_of(hypernet.posterior(tuple(part[1:2] for part in encoding)))
    for batched, single in zip(together, alone, strict=True):
        torch.testing.assert_close(batched[1:2] if len(batched) > 1 else batched, single)
