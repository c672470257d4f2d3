import pytest
import torch
from torch.nn import functional as F

from bhc.posterior import operator_of
from bhc.posterior.operators import Convolution, Linear, apply_mean

from .toys import CONVOLUTIONS, LINEAR, WEIGHTS, normals, plain_layer, random_posterior, small_chain, small_layers


def one_by_one(h, weights, apply):
    """Each context's examples through a plain layer of its own."""
    contexts = len(weights)
    parts = h.reshape(contexts, -1, *h.shape[1:])
    return torch.cat([apply(part, weight) for part, weight in zip(parts, weights, strict=True)])


@pytest.mark.parametrize("weights", WEIGHTS)
def test_linear_is_a_plain_layer_for_each_context(weights):
    mean = random_posterior(LINEAR, weights=weights).mean.weight
    h = normals(6, 4, seed=50)
    expected = one_by_one(h, mean.dense().expand(2, -1, -1), F.linear)
    torch.testing.assert_close(apply_mean(Linear(), h, mean), expected)


@pytest.mark.parametrize(("module", "shape"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_convolution_is_a_plain_layer_for_each_context(weights, module, shape):
    mean = random_posterior(module.weight.shape, weights=weights).mean.weight
    h = normals(6, *shape, seed=50)
    expected = one_by_one(h, mean.dense().expand(2, *module.weight.shape), plain_layer(module))
    torch.testing.assert_close(apply_mean(Convolution.of(module), h, mean), expected)


@pytest.mark.parametrize(("module", "shape"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolution_is_what_its_module_computes(module, shape):
    h = normals(6, *shape, seed=50).float()
    expected = module(h) - module.bias.reshape(-1, *[1] * (h.dim() - 2))
    torch.testing.assert_close(Convolution.of(module).apply(h, module.weight[None]), expected)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(
    ("operator", "size", "shape"),
    [
        (Linear(), LINEAR, (4,)),
        *((Convolution.of(module), tuple(module.weight.shape), shape) for module, shape in CONVOLUTIONS.values()),
    ],
    ids=["linear", *CONVOLUTIONS],
)
def test_variance_of_the_output_is_the_squared_input_times_the_variance(operator, size, shape, weights):
    posterior = random_posterior(size, weights=weights)
    h = normals(6, *shape, seed=50)
    mean, variance = operator.mean_and_variance(h, posterior.mean.weight, posterior.weight_variance)
    torch.testing.assert_close(mean, apply_mean(operator, h, posterior.mean.weight))
    torch.testing.assert_close(variance, operator.apply(h * h, posterior.weight_variance))


def test_a_shared_mean_may_have_variances_of_each_context():
    shared, own = random_posterior(LINEAR, weights="shared"), random_posterior(LINEAR)
    h = normals(6, 4, seed=50)
    mean, variance = Linear().mean_and_variance(h, shared.mean.weight, own.weight_variance)
    torch.testing.assert_close(mean, h @ shared.mean.weight.base[0].T)
    torch.testing.assert_close(variance, one_by_one(h * h, own.weight_variance, F.linear))


def test_each_layer_of_a_chain_gets_the_operator_of_its_type():
    operators = [operator_of(layer) for layer in small_layers(small_chain())]
    assert [type(operator) for operator in operators] == [Convolution, Linear, Linear]
