"""Reading contexts back from masks."""

from dataclasses import replace

import pytest
import torch

from bhc.contexts import Budgets, ClassSubsets, SingleContext
from bhc.errors import BhcError
from bhc.hypernet import Initial, ScalesOnly
from bhc.posterior import FreshNoise

from .toys import PAIRS, conditional, pairs, perturb_, seeded

# Noisy scales, the same in all contexts: at the start there is nothing to be read.
NOISY = replace(Initial.exact(), logvar=-1.0)


def with_decoder(**options):
    network = conditional(ScalesOnly(), **({"initial": NOISY} | options))
    network.add_decoder_(rng=seeded())
    return network


def shuffled(masks):
    """Each context is shown the masks of some other, never the same for long."""
    return masks[torch.randperm(len(masks))]


def learn_to_read(network, *, through=lambda masks: masks, steps=200):
    """Train hypernetwork and decoder on nothing else; the part of the contexts that is then read without a fault."""
    parameters = [*network.hypernet.embedder.parameters(), *network.hypernet.vectors.parameters()]
    optimizer = torch.optim.Adam([*parameters, *network.decoder.parameters()], lr=1e-2)
    noise, batch = FreshNoise(seeded(5)), pairs(9)
    encoding = network.space.encode(batch)
    for _ in range(steps):
        masks = through(network.decoder.masks(network.hypernet.posterior(encoding), noise=noise))
        optimizer.zero_grad()
        network.decoder.nll(masks, encoding).mean().backward()
        optimizer.step()
    with torch.no_grad():
        drawn = [network.decoder.masks(network.hypernet.posterior(encoding), noise=noise) for _ in range(20)]
        told = [network.decoder(through(masks))[0] > 0 for masks in drawn]
    return float(torch.stack([(one == (encoding[0] > 0)).all(1) for one in told]).float().mean())


def test_contexts_are_learnt_to_be_told_by_masks_and_read_from_them():
    network = with_decoder()
    assert learn_to_read(network) > 0.8
    encoding = network.space.encode(pairs(9))
    masks = network.decoder.masks(network.hypernet.posterior(encoding), noise=FreshNoise(seeded(6)))
    own, other = (network.decoder.nll(m, encoding).mean() for m in (masks, masks.roll(1, 0)))
    assert own < 1 < 5 < other, "masks of other contexts mislead"


@pytest.mark.parametrize("through", [torch.Tensor.detach, shuffled])
def test_masks_that_do_not_learn_or_are_those_of_others_cannot_be_read(through):
    assert learn_to_read(with_decoder(), through=through) < 0.3


@pytest.mark.parametrize("family", ["gnj", "io-gnj", "ghs"])
def test_gradients_reach_means_and_variances_of_the_scales(family):
    network = with_decoder(family=family)
    perturb_(network)
    batch, noise = pairs(), FreshNoise(seeded())
    network.context_nll(network.hypernet.posterior(PAIRS.encode(batch)), batch, noise=noise).sum().backward()
    vectors = network.hypernet.vectors
    means = slice(0, vectors.num_numbers)
    variances = vectors.logvar_map.offset.grad
    assert variances.isfinite().all()
    assert (variances != 0).float().mean() > 0.5
    if family != "ghs":  # there the rate depends on the variances alone
        assert (vectors.mean_map.offset.grad[means] != 0).float().mean() > 0.5
    assert all((p.grad != 0).any() for p in (*network.decoder.parameters(), *network.hypernet.embedder.parameters()))


def test_scales_that_decide_about_no_unit_are_not_shown():
    network = with_decoder()
    perturb_(network)
    convolution, _, last = network.layers
    posteriors = network.hypernet.posterior(PAIRS.encode(pairs()))
    shown = network.decoder.masks(posteriors, noise=FreshNoise(seeded()))
    counts = [(layer.num_inputs, layer.num_outputs) for layer in network.layers[1:]]
    assert shown.shape == (3, convolution.num_outputs + sum(counts[0]) + last.num_inputs)
    blind = [
        replace(posteriors[0], in_scale=replace(posteriors[0].in_scale, mean=torch.full((3, 1), 9.0))),
        posteriors[1],
        replace(posteriors[2], out_scale=replace(posteriors[2].out_scale, mean=torch.full((3, 10), 9.0))),
    ]
    assert torch.equal(shown, network.decoder.masks(blind, noise=FreshNoise(seeded())))


def test_a_decoder_starts_by_telling_nothing():
    network = with_decoder()
    nll = network.context_nll(network.hypernet.posterior(PAIRS.encode(pairs())), pairs(), noise=FreshNoise(seeded()))
    torch.testing.assert_close(nll, torch.full((3,), 10 * torch.tensor(2.0).log()))


def test_the_budget_is_read_in_its_own_unit():
    network = with_decoder(space=Budgets())
    batch = network.space.sample(8, 10, rng=seeded())
    posteriors = network.hypernet.posterior(network.space.encode(batch))
    nll = network.context_nll(posteriors, batch, noise=FreshNoise(seeded()))
    torch.testing.assert_close(nll, 8.0 * batch.budget[:, 0].square())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"space": SingleContext()}, "SingleContext"), ({"space": ClassSubsets(10), "family": "sparse-vd"}, "scales")],
)
def test_what_cannot_be_read_is_refused(options, message):
    network = conditional(ScalesOnly(), **options)
    for refusing in (network.check_readable, network.add_decoder_):
        with pytest.raises(BhcError, match=message):
            refusing()
    assert network.decoder is None
