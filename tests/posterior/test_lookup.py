"""Rows that are picked are a product with columns of one 1 each; here that product is written out."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bhc.layers import Embed
from bhc.posterior import LayerMask, LogNormalScales, NormalScales, masked_pass, noisy_pass
from bhc.posterior.operators import Convolution, Lookup, apply_mean

from .toys import WEIGHTS, fresh_noise, normals, random_posterior

CONTEXTS, EXAMPLES, TOKENS, COUNT, ROWS, WIDTH = 2, 3, 6, 9, 7, 4
AS_COLUMNS = Convolution((1,), (1,), (0,), (1,))


def embed() -> Embed:
    module = Embed(COUNT, ROWS, WIDTH).double()
    module.has_rows_(torch.tensor([0, 1, 2, 4, 5, 6, 8]))
    return module


def texts() -> Tensor:
    return torch.randint(COUNT, (CONTEXTS * EXAMPLES, TOKENS), generator=torch.Generator().manual_seed(0))


def columns(x: Tensor) -> Tensor:  # (K * B, rows, T)
    """One 1 at each token, none where a word has no row."""
    return F.one_hot(embed().index[x], ROWS + 1)[..., :ROWS].mT.double()


@pytest.mark.parametrize("weights", WEIGHTS)
def test_moments_are_those_of_the_product(weights: str) -> None:
    posterior = random_posterior((WIDTH, ROWS), weights=weights)
    mean, operator = posterior.mean.weight, Lookup(embed())
    given, variance = operator.mean_and_variance(texts(), mean, posterior.weight_variance)
    torch.testing.assert_close(given, AS_COLUMNS.apply(columns(texts()), mean.dense()[..., None]))
    torch.testing.assert_close(variance, AS_COLUMNS.apply(columns(texts()), posterior.weight_variance[..., None]))
    torch.testing.assert_close(apply_mean(operator, texts(), mean), given)


@pytest.mark.parametrize("shared", [True, False])
def test_numbers_of_words_multiply_their_columns(shared: bool) -> None:
    values, weight = normals(1 if shared else CONTEXTS, ROWS, seed=3), normals(1, WIDTH, ROWS, seed=4)
    operator = Lookup(embed())
    given = operator.apply(operator.scale_units(texts(), values), weight)
    spread = values.expand(CONTEXTS, -1).repeat_interleave(EXAMPLES, 0)[..., None]
    torch.testing.assert_close(given, AS_COLUMNS.apply(columns(texts()) * spread, weight[..., None]))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_masked_pass_is_that_of_the_product(weights: str) -> None:
    mean = random_posterior((WIDTH, ROWS), weights=weights).mean
    keep_in = normals(CONTEXTS, ROWS, seed=5) > 0
    keep_out = normals(CONTEXTS, WIDTH, seed=6) > 0
    mask = LayerMask(keep_in, keep_out, keep_out.any(1))
    given = masked_pass(Lookup(embed()), texts(), mean, mask)
    as_columns = type(mean)(type(mean.weight)(mean.weight.dense()[..., None]), mean.bias, mean.in_scale, mean.out_scale)
    expected = masked_pass(AS_COLUMNS, columns(texts()), as_columns, mask)
    torch.testing.assert_close(given, expected)


def test_words_that_are_masked_give_nothing_but_bias() -> None:
    posterior = random_posterior((WIDTH, ROWS))
    nothing = torch.zeros(CONTEXTS, ROWS, dtype=torch.bool)
    everything = torch.ones(CONTEXTS, WIDTH, dtype=torch.bool)
    mask = LayerMask(nothing, everything, nothing[:, 0])
    noise = fresh_noise()
    sample = noisy_pass(Lookup(embed()), texts(), posterior, mask, noise=noise)
    assert torch.isfinite(sample).all()
    places = sample.unflatten(0, (CONTEXTS, EXAMPLES))
    spread = places.std(3).mean() / places.abs().mean()
    assert spread < 0.05  # the bias under an output scale drawn once an example, the same at every token


@pytest.mark.parametrize("kind", ["normal", "log-normal"])
def test_scales_drawn_at_words_have_their_mean_and_variance(kind: str) -> None:
    if kind == "normal":
        scales: NormalScales | LogNormalScales = NormalScales(normals(2, 5, seed=1), normals(2, 5, seed=2) - 2)
    else:
        scales = LogNormalScales(0.3 * normals(2, 12, seed=1), normals(2, 12, seed=2) - 3)
    places = torch.randint(5, (2, 4), generator=torch.Generator().manual_seed(0))
    draws = torch.stack([scales.sample_at(places, normals(2, 4, seed=seed)) for seed in range(4_000)])
    mean = scales.mean.gather(1, places)
    rate = scales.log_dropout.gather(1, places).exp()
    torch.testing.assert_close(draws.mean(0), mean, rtol=0.05, atol=0.05)
    torch.testing.assert_close(draws.var(0), rate * mean.square(), rtol=0.15, atol=0.02)


def test_gradients_reach_every_part() -> None:
    posterior = random_posterior((WIDTH, ROWS), weights="shared")
    base, logvar = posterior.mean.weight.base.clone().requires_grad_(), posterior.weight_logvar.clone().requires_grad_()
    means, logvars = (normals(CONTEXTS, ROWS, seed=seed).requires_grad_() for seed in (1, 2))
    scales = NormalScales(means, logvars)
    operator, noise = Lookup(embed()), fresh_noise()
    h = operator.scale_units_noisy(texts(), scales, noise=noise)
    mean, variance = operator.mean_and_variance(h, type(posterior.mean.weight)(base), logvar.exp())
    (mean.sum() + variance.sum()).backward()
    for part in (base, logvar, scales.mean, scales.logvar):
        assert part.grad is not None
        assert part.grad.abs().sum() > 0
