import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from bhc.layers.convolution import TransposedConvolution
from bhc.posterior import LayerMask, LayerMean, LayerPosterior, WeightMean, masked_mean, masked_pass, noisy_pass
from bhc.posterior.operators import Convolution, Linear, Transposed

from .toys import (
    CONVOLUTIONS,
    LINEAR,
    WEIGHTS,
    Silence,
    assert_same_moments,
    believed,
    free_tensors,
    fresh_noise,
    normals,
    plain_layer,
    random_posterior,
)

LAYERS = {"linear": (nn.Linear(4, 3), (4,)), **CONVOLUTIONS}
CASES = [pytest.param(*layer, weights, id=f"{name}-{weights}") for name, layer in LAYERS.items() for weights in WEIGHTS]


def operator_for(module):
    if isinstance(module, TransposedConvolution):
        return Transposed.of(module)
    return Linear() if isinstance(module, nn.Linear) else Convolution.of(module)


def groups_of(module):
    return getattr(module, "groups", 1)


def mask_of(keep_in, keep_out, keep_weight=None):
    return LayerMask(keep_in, keep_out, torch.zeros(len(keep_in)).bool(), keep_weight)


def patches_of(module, x):
    """What each weight of an output is multiplied with, (groups, weights, positions), for one input."""
    size = module.weight[0].numel()
    one_hot = torch.eye(size, dtype=x.dtype).reshape(size, *module.weight.shape[1:])
    groups = groups_of(module)
    return plain_layer(module)(x[None], one_hot.repeat(groups, *[1] * (one_hot.dim() - 1)))[0].reshape(groups, size, -1)


def sampled_layer(module, x, posterior, *, examples):
    """Outputs (K, B, O, positions) of one input under weights drawn in full, ``w_ij = z_i w~_ij s_j``.

    A linear layer is a convolution with a single position; a convolution's one scale covers all inputs.
    """
    mean, contexts = posterior.mean, len(posterior.mean.in_scale)
    base, groups = mean.weight.dense(), groups_of(module)

    def draw(centre, logvar, seed):
        noise = normals(contexts, examples, *centre.shape[1:], seed=seed)
        return centre[:, None] + (0.5 * logvar)[:, None].exp() * noise

    z = draw(mean.in_scale, posterior.in_scale.logvar, 11)
    w = draw(base, posterior.weight_logvar, 12).reshape(contexts, examples, base.shape[1], -1)
    s = draw(mean.out_scale, posterior.out_scale.logvar, 13)
    weights = (z[:, :, None] * w * s[..., None]).unflatten(2, (groups, -1))
    return (
        torch.einsum("kbgoi,gip->kbgop", weights, patches_of(module, x)).flatten(2, 3)
        + ((mean.bias[:, None] * s)[..., None])
    )


@pytest.mark.parametrize(("module", "input_shape", "weights"), CASES)
def test_noisy_pass_has_the_moments_of_sampled_weights(module, input_shape, weights):
    examples = 20_000
    posterior = random_posterior(module.weight.shape, weights=weights)
    x = normals(*input_shape, seed=50)
    batch = x.expand(2 * examples, *input_shape)
    given = noisy_pass(operator_for(module), batch, posterior, noise=fresh_noise())
    expected = sampled_layer(module, x, posterior, examples=examples)
    assert_same_moments(given.reshape(expected.shape), expected)


def test_noisy_pass_draws_anew_for_each_example():
    examples = 20_000
    posterior = random_posterior(LINEAR)
    batch = normals(4, seed=50).expand(2 * examples, 4)
    given = noisy_pass(Linear(), batch, posterior, noise=fresh_noise()).reshape(2, examples, 3)
    given = (given - given.mean(1, keepdim=True)) / given.std(1, keepdim=True)
    correlation = (given[:, 1:] * given[:, :-1]).mean(1)
    assert (correlation.abs() < 5 / math.sqrt(examples)).all()


@pytest.mark.parametrize(("module", "input_shape", "weights"), CASES)
def test_noisy_pass_without_variance_is_the_scaled_layer(module, input_shape, weights):
    posterior = random_posterior(module.weight.shape, weights=weights, logvar=-torch.inf)
    h = normals(6, *input_shape, seed=50)
    everything = mask_of(torch.ones(2, input_shape[0]).bool(), torch.ones(2, len(module.weight)).bool())
    expected = masked_pass(operator_for(module), h, posterior.mean, everything)
    given = noisy_pass(operator_for(module), h, posterior, noise=fresh_noise())
    # The floor under the root leaves a standard deviation of 1e-4 times the output scale.
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-3)
    silent = noisy_pass(operator_for(module), h, posterior, noise=Silence())
    torch.testing.assert_close(silent, expected)


@pytest.mark.parametrize("single", [0, 1, 2])  # of how many contexts single weights go, if any
@pytest.mark.parametrize(("module", "input_shape", "weights"), CASES)
def test_masked_pass_is_the_plain_layer_with_the_masked_mean(module, input_shape, weights, single):
    mean = random_posterior(module.weight.shape, weights=weights).mean
    h = normals(6, *input_shape, seed=50)
    keep_in = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0]]).bool()[:, : input_shape[0]]
    keep_out = torch.tensor([[1, 1, 0, 1, 0, 1], [0, 1, 1, 0, 1, 1]]).bool()[:, : len(module.weight)]
    kept = normals(single, *module.weight.shape, seed=60) > 0 if single else None
    given = masked_pass(operator_for(module), h, mean, mask_of(keep_in, keep_out, kept))
    # The inputs of a group are not the columns of its weights: there they are masked before.
    columns = keep_in if groups_of(module) == 1 else torch.ones(2, module.weight.shape[1]).bool()
    weight = mean.weight.dense() if kept is None else mean.weight.dense() * kept
    dense = masked_mean(weight, mean.in_scale, mean.out_scale, columns, keep_out)
    for context, part in enumerate(h.chunk(2)):
        bias = keep_out[context] * mean.out_scale[context] * mean.bias[context]
        if groups_of(module) > 1:
            part = part * keep_in[context].reshape(-1, *[1] * (part.dim() - 2))
        torch.testing.assert_close(given.chunk(2)[context], plain_layer(module)(part, dense[context], bias))


@pytest.mark.parametrize(("module", "input_shape", "weights"), CASES)
def test_masked_pass_learns_the_same_whether_or_not_its_input_does(module, input_shape, weights):
    mean = random_posterior(module.weight.shape, weights=weights).mean
    learned = [mean.weight.base, mean.bias, mean.in_scale, mean.out_scale]
    learned += [] if mean.weight.left is None else [mean.weight.left, mean.weight.right]
    for tensor in learned:
        tensor.requires_grad_()
    h = normals(6, *input_shape, seed=50)
    keep_in, keep_out = torch.ones(2, input_shape[0]).bool(), torch.ones(2, len(module.weight)).bool()
    keep_out[1, 0] = False
    found = []
    for inputs in (h, h.clone().requires_grad_()):
        output = masked_pass(operator_for(module), inputs, mean, mask_of(keep_in, keep_out))
        found.append([output, *torch.autograd.grad((output * normals(*output.shape, seed=51)).sum(), learned)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_shared_mean_may_have_variances_of_each_context():
    shared, variances, h = random_posterior(LINEAR, weights="shared"), normals(2, *LINEAR, seed=40), normals(6, 4)
    base = shared.mean.weight.base
    given, expected = (
        noisy_pass(
            Linear(),
            h,
            replace(shared, mean=replace(shared.mean, weight=WeightMean(each)), weight_logvar=variances),
            noise=fresh_noise(),
        )
        for each in (base, base.expand(2, *LINEAR))
    )
    torch.testing.assert_close(given, expected)


def test_passes_without_scales_and_bias_are_the_plain_layer_and_a_bias_sits_under_the_output_scale():
    weight = normals(1, 3, 4)
    mean = LayerMean(WeightMean(weight), None, None, None)
    posterior = LayerPosterior(mean, torch.zeros_like(weight), None, None)
    h = normals(6, 4, seed=50)
    masked = masked_pass(Linear(), h, mean, mask_of(torch.ones(1, 4).bool(), torch.tensor([[1, 0, 1]]).bool()))
    plain = h @ weight[0].T
    torch.testing.assert_close(masked, plain * torch.tensor([1, 0, 1]))
    torch.testing.assert_close(noisy_pass(Linear(), h, posterior, noise=Silence()), plain)
    biased = random_posterior(LINEAR)
    off = replace(biased, out_scale=replace(biased.out_scale, mean=torch.zeros(2, 3).double()))
    assert torch.equal(noisy_pass(Linear(), h, off, noise=Silence()), torch.zeros(6, 3).double())


@pytest.mark.parametrize(("module", "input_shape", "weights"), CASES)
def test_gradient_of_the_noisy_pass_is_numerically_right(module, input_shape, weights):
    tensors = free_tensors(random_posterior(module.weight.shape, weights=weights))
    h = normals(4, *input_shape, seed=50).requires_grad_()

    def sample(h, *tensors):
        return noisy_pass(operator_for(module), h, believed(*tensors), noise=fresh_noise())

    assert gradcheck(sample, (h, *tensors))


@pytest.mark.parametrize(("module", "input_shape", "weights"), CASES)
def test_gradients_are_finite_where_a_sampled_scale_is_zero(module, input_shape, weights):
    tensors = free_tensors(random_posterior(module.weight.shape, weights=weights))
    _, _, _, _, in_scale, out_scale, *_ = tensors
    with torch.no_grad():
        in_scale.zero_()
        out_scale.zero_()
    h = normals(4, *input_shape, seed=50).requires_grad_()
    output = noisy_pass(operator_for(module), h, believed(*tensors), noise=Silence())
    (output + normals(*output.shape, seed=51)).square().sum().backward()
    assert torch.equal(output, torch.zeros_like(output))
    assert all(tensor.grad.isfinite().all() for tensor in (h, *tensors) if tensor is not None)
    assert (out_scale.grad != 0).any()


class Repeated:
    """The same noise on every run, whatever the layout of what it goes with."""

    def __init__(self):
        self.seed = 300

    def normal(self, shape, like):
        self.seed += 1
        return normals(*shape, seed=self.seed)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_channels_last_in_memory_change_nothing_and_stay_last(weights):
    module, shape = CONVOLUTIONS["padding"]
    posterior = random_posterior(module.weight.shape, weights=weights)
    x = normals(6, *shape, seed=50)

    def sample(h):
        h = h.requires_grad_()
        free = (h, posterior.in_scale.mean.requires_grad_(), posterior.in_scale.logvar.requires_grad_())
        output = noisy_pass(operator_for(module), h, posterior, noise=Repeated())
        return output, torch.autograd.grad((output * normals(*output.shape, seed=70)).sum(), free)

    expected = sample(x.clone())
    given = sample(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(given, expected)
    if weights != "own":  # weights of each context's own go through groups of channels
        assert given[0].is_contiguous(memory_format=torch.channels_last)
        assert not given[0].is_contiguous()


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("module", "input_shape"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_an_input_scale_may_wait_until_after_the_product(module, input_shape, weights):
    tensors = free_tensors(random_posterior(module.weight.shape, weights=weights))
    free = [tensor for tensor in tensors if tensor is not None]

    def sample(h):
        output = noisy_pass(operator_for(module), h, believed(*tensors), noise=Repeated())
        return output, torch.autograd.grad((output * normals(*output.shape, seed=70)).sum(), free)

    h = normals(6, *input_shape, seed=50)
    torch.testing.assert_close(sample(h), sample(h.clone().requires_grad_()))
