import pytest
import torch

from bhc.posterior import kl_scales, kl_weights, log_dropout
from bhc.posterior.families import ScaleDivergence
from bhc.posterior.products import (
    MeanAndVariance,
    Sampled,
    SampledScales,
    ScaledByNoise,
    SharedWeights,
)

from .toys import normals


def leaves(*tensors):
    return tuple(tensor.clone().requires_grad_() for tensor in tensors)


def gradients(function, inputs):
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    weighted = sum((normals(*output.shape, seed=90) * output).sum() for output in outputs)
    return torch.autograd.grad(weighted, inputs)


def scaled(h, mean, logvar):
    return ScaledByNoise.apply(h, mean, logvar, normals(2, 5, 4, seed=80))


def plain_scaled(h, mean, logvar):
    return h * plain_drawn(mean, logvar)[..., None]


def sampled(mean, variance):
    return Sampled.apply(mean, variance, normals(5, 4, seed=80), 1e-8)


def plain_sampled(mean, variance):
    return mean + (variance + 1e-8).sqrt() * normals(5, 4, seed=80)


def plain_low_rank_moments(h, weight, variance, left, right):
    own = weight + left @ right.mT
    return (h.reshape(len(left), -1, h.shape[1]) @ own.mT).flatten(0, 1), (h * h) @ variance.T


def weights_of(mean, logvar, left=None, right=None):
    return SharedWeights.apply(mean, logvar, 0.2, left, right)


def plain_weights_of(mean, logvar, left=None, right=None):
    dense = mean if left is None else mean + (left @ right.mT).reshape(-1, *mean.shape[1:])
    return mean.clone(), logvar.exp(), kl_weights(dense.square().flatten(1).sum(1), logvar, 0.2)


def drawn(mean, logvar):
    return SampledScales.apply(mean, logvar, normals(2, 5, 4, seed=80))


def plain_drawn(mean, logvar):
    return mean[:, None] + (0.5 * logvar).exp()[:, None] * normals(2, 5, 4, seed=80)


def sampled_in_full(mean, variance, z, bias, s):
    return Sampled.apply(mean, variance, normals(*mean.shape, seed=80), 1e-8, z, bias, s)


def plain_sampled_in_full(mean, variance, z, bias, s):
    by_unit = (len(s), -1, s.shape[2], *[1] * (mean.dim() - 2))
    z, s, bias = (value.reshape(len(value), -1, value.shape[-1], *by_unit[3:]) for value in (z, s, bias))
    mean, variance, noise = (
        value.reshape(len(s), -1, *value.shape[1:]) for value in (mean, variance, normals(*mean.shape, seed=80))
    )
    return ((z * mean + (z * z * variance + 1e-8).sqrt() * noise + bias) * s).flatten(0, 1)


def moments_and_scales(*places, biases=2):
    """Moments of 2 contexts x 3 examples, a single input scale, biases and output scales."""
    moments = normals(6, 4, *places), normals(6, 4, *places, seed=1).exp()
    return *moments, normals(2, 3, 1, seed=2), normals(biases, 4, seed=3), normals(2, 3, 4, seed=4)


# Each fast path, its plain twin in autograd, and inputs for both.
TWINS = {
    "moments": (
        MeanAndVariance.apply,
        lambda h, weight, variance: (h @ weight.T, (h * h) @ variance.T),
        (normals(5, 4), normals(3, 4, seed=1), normals(3, 4, seed=2).exp()),
    ),
    "scaled, one number a unit": (
        scaled,
        plain_scaled,
        (normals(2, 5, 4, 1), normals(2, 4, seed=1), normals(2, 4, seed=2)),
    ),
    "scaled, a map a unit": (scaled, plain_scaled, (normals(2, 5, 4, 3), normals(2, 4, seed=1), normals(2, 4, seed=2))),
    "low-rank moments": (
        MeanAndVariance.apply,
        plain_low_rank_moments,
        (normals(6, 4), normals(3, 4, seed=1), normals(3, 4, seed=2).exp(), normals(2, 3, 2, seed=3), normals(4, 2)),
    ),
    "weights": (weights_of, plain_weights_of, (normals(1, 3, 4), normals(1, 3, 4, seed=1))),
    "low-rank weights": (
        weights_of,
        plain_weights_of,
        (normals(1, 3, 2, 2), normals(1, 3, 2, 2, seed=1), normals(2, 3, 2, seed=2), normals(4, 2, seed=3)),
    ),
    "drawn": (drawn, plain_drawn, (normals(2, 4), normals(2, 4, seed=1))),
    "sampled in full": (sampled_in_full, plain_sampled_in_full, moments_and_scales()),
    "sampled in full, maps": (sampled_in_full, plain_sampled_in_full, moments_and_scales(2, 3)),
    "sampled in full, a shared bias": (sampled_in_full, plain_sampled_in_full, moments_and_scales(5, biases=1)),
    "sampled": (sampled, plain_sampled, (normals(5, 4), normals(5, 4, seed=1).exp())),
    # Rates from -20 to 20 and further: within the clamp at 10 and beyond it, on both sides.
    "divergence of scales": (
        ScaleDivergence.apply,
        lambda mean, logvar: kl_scales(log_dropout(mean, logvar)),
        (normals(3, 41), torch.linspace(-20, 20, 41).double().expand(3, -1)),
    ),
}


@pytest.mark.parametrize(("fast", "plain", "inputs"), TWINS.values(), ids=TWINS)
class TestFastPath:
    def test_it_and_its_gradient_are_those_of_its_plain_twin(self, fast, plain, inputs):
        torch.testing.assert_close(fast(*inputs), plain(*inputs))
        free = leaves(*inputs)
        torch.testing.assert_close(gradients(fast, free), gradients(plain, free))
        assert all(torch.equal(after, before) for after, before in zip(free, inputs, strict=True)), "written into"

    def test_an_input_without_gradient_leaves_the_others_theirs(self, fast, plain, inputs):
        fixed, *others = inputs
        free = leaves(*others)
        given = gradients(lambda *values: fast(fixed, *values), free)
        torch.testing.assert_close(given, gradients(lambda *values: plain(fixed, *values), free))


@pytest.mark.parametrize("wanted", [slice(2), slice(2, 3)], ids=["products", "divergence"])
def test_weights_learn_from_the_products_or_from_the_divergence_alone(wanted):
    free = leaves(normals(1, 3, 4), normals(1, 3, 4, seed=1))
    given = gradients(lambda *values: weights_of(*values)[wanted], free)
    torch.testing.assert_close(given, gradients(lambda *values: plain_weights_of(*values)[wanted], free))


def test_a_sample_without_variance_has_a_finite_gradient():
    mean, variance = leaves(normals(5, 4), torch.zeros(5, 4).double())
    sampled(mean, variance).sum().backward()
    assert variance.grad.isfinite().all()


@pytest.mark.parametrize("rank", [None, 2])
def test_gradients_that_arrive_with_channels_last_are_the_same(rank: int | None) -> None:
    mean, logvar = normals(1, 4, 3, 2, 2), normals(1, 4, 3, 2, 2, seed=1)
    left, right = (None, None) if rank is None else (normals(2, 4, rank, seed=2), normals(12, rank, seed=3))
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        inputs = [None if value is None else value.clone().requires_grad_() for value in (mean, logvar, left, right)]
        base, variance, divergence = weights_of(*inputs)
        arriving = normals(4, 3, 2, 2, seed=4).to(memory_format=layout)[None]
        torch.autograd.backward([base, variance, divergence.sum()], [arriving, arriving, None])
        found.append([value.grad for value in inputs if value is not None])
    for plain, last in zip(*found, strict=True):
        torch.testing.assert_close(plain, last)
