import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bhc.posterior.operators import Convolution, Linear, apply_mean

from .toys import CONVOLUTIONS, LINEAR, WEIGHTS, normals, plain_layer, random_posterior


def one_by_one(h, weights, apply):
    """Each context's examples through a plain layer of its own."""
    contexts = len(weights)
    parts = h.reshape(contexts, -1, *h.shape[1:])
    return torch.cat([apply(part, weight) for part, weight in zip(parts, weights, strict=True)])


LAYERS = {"linear": (nn.Linear(4, 3).double(), (4,)), **CONVOLUTIONS}


def operator_for(module):
    return Linear() if isinstance(module, nn.Linear) else Convolution.of(module)


@pytest.mark.parametrize(("module", "shape"), LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_an_operator_is_a_plain_layer_for_each_context(weights, module, shape):
    """And its variance is the squared input times the variance."""
    posterior, operator = random_posterior(module.weight.shape, weights=weights), operator_for(module)
    mean, h = posterior.mean.weight, normals(6, *shape, seed=50)
    given, variance = operator.mean_and_variance(h, mean, posterior.weight_variance)
    expected = one_by_one(h, mean.dense().expand(2, *module.weight.shape), plain_layer(module))
    torch.testing.assert_close(apply_mean(operator, h, mean), expected)
    torch.testing.assert_close(given, expected)
    torch.testing.assert_close(variance, operator.apply(h * h, posterior.weight_variance))


def test_a_shared_mean_may_have_variances_of_each_context():
    shared, own = random_posterior(LINEAR, weights="shared"), random_posterior(LINEAR)
    h = normals(6, 4, seed=50)
    mean, variance = Linear().mean_and_variance(h, shared.mean.weight, own.weight_variance)
    torch.testing.assert_close(mean, h @ shared.mean.weight.base[0].T)
    torch.testing.assert_close(variance, one_by_one(h * h, own.weight_variance, F.linear))
