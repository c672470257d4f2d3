import math

import pytest
import torch

from bhc.posterior import clip_variance, log_dropout, marginal_variance, masked_mean, relaxed_mask

from .toys import CONVOLUTION, LINEAR, normals, random_posterior


def test_log_dropout_is_the_variance_over_the_squared_mean():
    mean, logvar = normals(2, 5), normals(2, 5, seed=1)
    assert (mean < 0).any()
    torch.testing.assert_close(log_dropout(mean, logvar), (logvar.exp() / mean.square()).log())


def test_log_dropout_of_a_scale_at_zero_is_finite_with_its_gradient():
    mean, logvar = torch.zeros(1, 2, requires_grad=True), torch.zeros(1, 2, requires_grad=True)
    rates = log_dropout(mean, logvar)
    rates.sum().backward()
    assert rates.isfinite().all()
    assert mean.grad.isfinite().all()
    assert logvar.grad.isfinite().all()


def test_a_relaxed_mask_is_a_drawn_scale_over_its_root_mean_square():
    mean, logvar, noise = normals(2, 5).abs() + 0.1, normals(2, 5, seed=1), normals(2, 5, seed=2)
    drawn = mean + (0.5 * logvar).exp() * noise
    expected = drawn / (mean.square() + logvar.exp()).sqrt()
    torch.testing.assert_close(relaxed_mask(log_dropout(mean, logvar), noise), expected)


def test_a_relaxed_mask_goes_from_one_to_noise_with_finite_gradients():
    rates = torch.tensor([-200.0, -20.0, 20.0, 200.0], requires_grad=True)
    noise = torch.tensor([0.3, -2.0, 0.3, -2.0])
    mask = relaxed_mask(rates, noise)
    mask.sum().backward()
    torch.testing.assert_close(mask, torch.tensor([1.0, 1.0, 0.3, -2.0]), atol=1e-3, rtol=0)
    assert rates.grad.isfinite().all()


@pytest.mark.parametrize("shape", [LINEAR, CONVOLUTION])
def test_masked_mean_is_the_product_with_diagonal_matrices(shape):
    mean = random_posterior(shape).mean
    outputs, inputs = shape[:2]
    keep_in = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0]]).bool()[:, :inputs]
    keep_out = torch.tensor([[1, 1, 0], [0, 1, 1]]).bool()
    in_scale = mean.in_scale.expand(2, inputs)
    given = masked_mean(mean.weight.base, mean.in_scale, mean.out_scale, keep_in, keep_out)
    for context in range(2):
        rows = torch.diag(keep_out[context] * mean.out_scale[context])
        columns = torch.diag(keep_in[context] * in_scale[context])
        kernels = mean.weight.base[context].reshape(outputs, inputs, -1).unbind(2)
        expected = torch.stack([rows @ kernel @ columns for kernel in kernels], 2).reshape(shape)
        torch.testing.assert_close(given[context], expected)


@pytest.mark.parametrize("shape", [LINEAR, CONVOLUTION])
def test_marginal_variance_is_that_of_sampled_weights(shape):
    samples = 40_000
    posterior = random_posterior(shape, contexts=1, weights="shared", logvar=-1.5)
    mean, ones = posterior.mean, [1] * (len(shape) - 2)

    def sample(centre, logvar, seed):
        return centre + (0.5 * logvar).exp() * normals(samples, *centre.shape[1:], seed=seed)

    z = sample(mean.in_scale, posterior.in_scale.logvar, 1).reshape(samples, 1, -1, *ones)
    s = sample(mean.out_scale, posterior.out_scale.logvar, 2).reshape(samples, -1, 1, *ones)
    weights = z * sample(mean.weight.base, posterior.weight_logvar, 3) * s
    given = marginal_variance(
        mean.weight.base,
        posterior.weight_logvar,
        mean.in_scale,
        posterior.in_scale.logvar,
        mean.out_scale,
        posterior.out_scale.logvar,
    )[0]
    deviations = (weights - weights.mean(0)).square()
    standard_error = deviations.std(0) / math.sqrt(samples)
    assert ((deviations.mean(0) - given).abs() < 5 * standard_error).all()


def test_clip_variance_lowers_what_is_over_the_limit_and_nothing_else():
    logvar = torch.tensor([-9.0, 2 * math.log(0.2) - 1e-3, 2 * math.log(0.2) + 1e-3, 4.0])
    clipped = clip_variance(logvar, 0.2)
    assert torch.equal(clipped[:2], logvar[:2])
    torch.testing.assert_close((0.5 * clipped[2:]).exp(), torch.full((2,), 0.2))
