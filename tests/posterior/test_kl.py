from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import gamma, invgamma, norm
from torch.autograd import gradcheck

from bhc.posterior import kl_gamma, kl_inverse_gamma, kl_scales, kl_weights


def quadrature_of_gaussian_kl(mean, std):
    """KL(N(mean, std^2) || N(0, 1)) as an integral."""

    def integrand(w):
        return norm.pdf(w, mean, std) * (norm.logpdf(w, mean, std) - norm.logpdf(w))

    return quad(integrand, mean - 12 * std, mean + 12 * std)[0]


def quadrature_of_scale_kl(log_alpha):
    """KL(N(mu, sigma^2) || 1 / |z|) with alpha = sigma^2 / mu^2, less the entropy of a unit normal.

    With z = sigma (e + t), e ~ N(0, 1) and t = mu / sigma = alpha^(-1/2), the divergence is
    ``E[log q(z) + log |z|] = -1/2 log(2 pi e) + E[log |e + t|]``: it depends on alpha alone. What is
    integrated here is the second term, whose logarithm is singular at ``e = -t``.
    """
    t = np.exp(-0.5 * log_alpha)
    ends = [-12.0, -t, 12.0] if t < 12 else [-12.0, 12.0]
    return sum(
        quad(lambda e: norm.pdf(e) * np.log(abs(e + t)), low, high, limit=200)[0] for low, high in pairwise(ends)
    )


@pytest.mark.parametrize("prior_std", [0.01, 0.3, 4.0])
def test_a_prior_of_another_width_is_a_unit_normal_in_its_own_units(prior_std):
    logvar = torch.tensor([[-3.0, 0.7]], dtype=torch.float64)
    mean = torch.tensor([[0.2, -1.1]], dtype=torch.float64)
    given = kl_weights((prior_std * mean).square().sum(1), logvar + 2 * np.log(prior_std), prior_std)
    torch.testing.assert_close(given, kl_weights(mean.square().sum(1), logvar))


def test_divergence_of_weights_is_the_integral_summed_over_weights_and_not_over_contexts():
    # Of a weight as sure as the prior, of surer ones up to a standard deviation of 0.01, of less sure ones up to 2.
    logvar = torch.tensor([[[0.3, -1.0]], [[-2.0, 0.0]], [[-9.2, -1.4]], [[1.4, 0.0]]], dtype=torch.float64)
    mean = torch.tensor([[[0.5, 1.0]], [[0.0, -2.0]], [[-1.5, 0.4]], [[0.0, 0.0]]], dtype=torch.float64)
    given = kl_weights(mean.square().flatten(1).sum(1), logvar)
    expected = [
        sum(quadrature_of_gaussian_kl(m, np.exp(0.5 * v)) for m, v in zip(*rows, strict=True))
        for rows in zip(mean.flatten(1).tolist(), logvar.flatten(1).tolist(), strict=True)
    ]
    assert given.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_divergence_of_a_scale_is_the_integral_up_to_a_constant():
    # The prior 1 / |z| cannot be normalised, so a constant is free, and the published fit drops it such that
    # the divergence goes to zero as alpha grows. There t goes to 0 and E log |e| = -(gamma + log 2) / 2,
    # with Euler's gamma; adding this aligns the integral with the fit at that end.
    constant = (np.euler_gamma + np.log(2)) / 2
    log_alpha = np.linspace(-8, 8, 33)
    exact = np.array([quadrature_of_scale_kl(x) for x in log_alpha]) + constant
    fitted = kl_scales(torch.from_numpy(log_alpha)[:, None]).numpy()
    assert fitted[-1] == pytest.approx(exact[-1], abs=1e-4)
    np.testing.assert_allclose(fitted, exact, atol=0.01)


def test_divergence_of_a_scale_falls_with_its_dropout_rate():
    rates = torch.linspace(-10, 10, 201, dtype=torch.float64)[:, None]
    divergences = kl_scales(rates)
    assert (divergences.diff() < 0).all()
    assert divergences[-1] >= 0


@pytest.mark.parametrize("rate", [-1e6, 50.0])
def test_extreme_rates_have_a_finite_divergence_and_no_gradient(rate):
    rates = torch.tensor([[rate]], requires_grad=True)
    divergence = kl_scales(rates)
    divergence.sum().backward()
    assert divergence.isfinite().all()
    assert rates.grad.item() == 0


LOG_NORMALS = [(0.0, 1.0), (-3.0, 0.5), (1.5, 0.01), (2.0, 2.0), (-6.0, 4.0)]


def quadrature_of_log_normal_kl(mean, variance, prior):
    """KL(LogNormal(mean, variance) || prior) over the logarithm u, where the prior's density gains a factor e^u."""
    std = np.sqrt(variance)

    def integrand(u):
        return norm.pdf(u, mean, std) * (norm.logpdf(u, mean, std) - prior.logpdf(np.exp(u)) - u)

    return quad(integrand, mean - 15 * std, mean + 15 * std, limit=400)[0]


def column(value):
    return torch.tensor([[value]], dtype=torch.float64)


@pytest.mark.parametrize(("mean", "variance"), LOG_NORMALS)
@pytest.mark.parametrize(("divergence", "prior"), [(kl_gamma, gamma(0.5)), (kl_inverse_gamma, invgamma(0.5))])
def test_divergence_from_a_gamma_variable_or_its_inverse_is_the_integral(divergence, prior, mean, variance):
    given = divergence(column(mean), column(np.log(variance)))
    expected = quadrature_of_log_normal_kl(mean, variance, prior)
    assert given.item() == pytest.approx(expected, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("divergence", [kl_gamma, kl_inverse_gamma])
def test_divergences_of_log_normals_sum_over_variables_and_not_over_contexts(divergence):
    means, variances = torch.tensor(LOG_NORMALS, dtype=torch.float64).T
    rows = (torch.stack([means, means.flip(0)]), torch.stack([variances, variances]).log())
    single = torch.stack([divergence(*(row[:, place : place + 1] for row in rows)) for place in range(len(means))])
    torch.testing.assert_close(divergence(*rows), single.sum(0))
    assert gradcheck(divergence, tuple(row.requires_grad_() for row in rows))


@pytest.mark.parametrize("divergence", [kl_gamma, kl_inverse_gamma])
@pytest.mark.parametrize("mean", [-200.0, 200.0])
@pytest.mark.parametrize("logvar", [-200.0, 80.0])
def test_extreme_log_normals_have_a_finite_divergence_and_gradient(divergence, mean, logvar):
    free = [torch.tensor([[value]], requires_grad=True) for value in (mean, logvar)]
    given = divergence(*free)
    given.sum().backward()
    assert given.isfinite().all()
    assert all(tensor.grad.isfinite().all() for tensor in free)
