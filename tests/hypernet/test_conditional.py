"""A network under a hypernetwork, and reading contexts back from masks."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from bhc.contexts import Budgets, ClassSubsets, FeatureSubsets, SingleContext
from bhc.errors import BhcError
from bhc.hypernet import ConditionalNetwork, Initial, LowRank, ScalesOnly, check_readable, context_nll
from bhc.posterior import FAMILIES, FreshNoise, log_dropout

from .toys import (
    GENERATORS,
    PAIRS,
    SPACES,
    all_equal,
    assert_gradients_reach_all,
    at,
    conditional,
    contexts,
    images,
    pairs,
    perturb_,
    restored,
    seeded,
    tensors_of,
)


@pytest.mark.parametrize(
    ("design", "noun"),
    [
        ({"std_limits": (0.2,)}, "1 limits"),
        ({"std_limits": (0.2, None, None, None)}, "4 limits"),
        ({"space": ClassSubsets(4)}, "4 classes"),
        ({"family": "horseshoe"}, "horseshoe"),
    ],
)
def test_a_design_that_does_not_fit_is_refused(design, noun):
    with pytest.raises(BhcError, match=noun) as caught:
        conditional(ScalesOnly(), **design)
    assert "family" not in design or all(name in caught.value.hint for name in FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", GENERATORS.values(), ids=GENERATORS)
def test_gradients_of_every_family_and_generator_reach_every_parameter(spec, family):
    model = conditional(spec, initial=Initial(), family=family)
    perturb_(model.hypernet, std=0.01)  # the maps of biases start at zero and let no gradient through
    assert_gradients_reach_all(model, images("tiny", 6) / 255, pairs(3))


@pytest.mark.parametrize("spec", GENERATORS.values(), ids=GENERATORS)
def test_single_weights_go_by_the_rates_of_the_weights(spec):
    model, batch = conditional(spec, initial=Initial(), family="sparse-vd"), pairs(2)
    perturb_(model.hypernet)
    encoding = PAIRS.encode(batch)
    for rates, belief in zip(model.hypernet.dropouts(encoding), model.hypernet.posterior(encoding), strict=True):
        assert rates.in_log_dropout is rates.out_log_dropout is None
        torch.testing.assert_close(rates.weights, log_dropout(belief.mean.weight.dense(), belief.weight_logvar))


@pytest.mark.parametrize("spec", GENERATORS.values(), ids=GENERATORS)
def test_frozen_gates_keep_single_weights_while_the_means_move(spec):
    model, encoding = conditional(spec, initial=Initial(), family="sparse-vd"), PAIRS.encode(pairs(2))

    def rates():
        return [layer.weights.clone() for layer in model.hypernet.dropouts(encoding)]

    before = rates()
    model.hypernet.freeze_gates_()
    perturb_(model.hypernet)
    assert all_equal(rates(), before)
    model.hypernet.thaw_()
    assert not any(map(torch.equal, rates(), before))


def test_the_masked_network_uses_the_masks_of_its_dropout_rates():
    model, batch, x = conditional(ScalesOnly(), initial=Initial()), pairs(2), images("tiny", 4)
    assert model.num_weights == 3 * 9 + 12 * 6 + 6 * 10
    perturb_(model.hypernet, std=0.5)
    encoding = PAIRS.encode(batch)
    threshold = torch.tensor([[-9.0], [-8.0]])
    masks = model.find_masks(model.hypernet.dropouts(encoding), threshold, batch.outputs)
    assert not masks.layers[1].keep_in.all()
    expected = model.bayesian.masked(x, model.hypernet.means(encoding), masks)
    assert torch.equal(model.masked(x, batch, threshold=threshold), expected)
    assert torch.equal(expected != 0, batch.outputs.repeat_interleave(2, dim=0) & (expected != 0))


SINGLE = [(SingleContext(), {}, {}), (SingleContext((3, 4)), {}, {})]
OF_IMAGES = [each for name, each in SPACES.items() if name != "features"]  # a convolution has no such features


@pytest.mark.parametrize(("space", "request_", "other"), [*OF_IMAGES, *SINGLE])
def test_a_model_for_every_kind_of_context_comes_back_with_its_state(space, request_, other):
    model = conditional(ScalesOnly(), space=space, initial=Initial())
    encoding = space.encode(contexts(space, request_, other))
    first, second = (tensors_of(each.hypernet.posterior(encoding)) for each in (model, restored(model)))
    assert all_equal(first, second)


def test_a_model_for_features_comes_back_and_still_leaves_them_out():
    space, network = FeatureSubsets((1, 8, 8)), "lenet-300-100"
    model = conditional(ScalesOnly(), network, space=space, initial=Initial())
    again = restored(model)
    x, batch, limit = images(network, 3), contexts(space, {"features": [0, 9, 63]}), torch.zeros(1, 1)
    first, second = (each.masked(x, batch, threshold=limit) for each in (model, again))
    assert torch.equal(first, second)
    x[:, 0, 4] = 0
    assert torch.equal(first, again.masked(x, batch, threshold=limit))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_every_family_comes_back_with_its_state(family):
    model, batch, x = conditional(LowRank(2), initial=Initial(), family=family), pairs(2), images("tiny", 4)
    perturb_(model.hypernet)
    again = restored(model)
    for threshold in (-10.0, -6.0, 0.0):
        limit = at(threshold, 2)
        assert torch.equal(model.masked(x, batch, threshold=limit), again.masked(x, batch, threshold=limit))
    first, second = (each.noisy(x, batch, noise=FreshNoise(seeded())) for each in (model, again))
    assert torch.equal(first[0], second[0])
    assert torch.equal(model.hypernet.kl(first[1]), again.hypernet.kl(second[1]))
    for each in (model, again):
        each.hypernet.freeze_gates_()
    perturb_(model.hypernet)
    again.load_state_dict(model.state_dict())  # frozen gates are part of it
    limit = at(-8.5, 2)
    assert torch.equal(model.masked(x, batch, threshold=limit), again.masked(x, batch, threshold=limit))


@pytest.mark.parametrize(
    "damage", [{"network": [{"kind": "magic"}]}, {"generator": {"kind": "magic"}}, {"family": "magic"}]
)
def test_a_damaged_description_is_refused(damage):
    with pytest.raises(BhcError):
        ConditionalNetwork.from_dict(conditional(ScalesOnly()).to_dict() | damage)


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
    context_nll(network, network.hypernet.posterior(PAIRS.encode(batch)), batch, noise=noise).sum().backward()
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
    nll = context_nll(network, network.hypernet.posterior(PAIRS.encode(pairs())), pairs(), noise=FreshNoise(seeded()))
    torch.testing.assert_close(nll, torch.full((3,), 10 * torch.tensor(2.0).log()))


def test_the_budget_is_read_in_its_own_unit():
    network = with_decoder(space=Budgets())
    batch = network.space.sample(8, 10, rng=seeded())
    posteriors = network.hypernet.posterior(network.space.encode(batch))
    nll = context_nll(network, posteriors, batch, noise=FreshNoise(seeded()))
    torch.testing.assert_close(nll, 8.0 * batch.budget[:, 0].square())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"space": SingleContext()}, "SingleContext"), ({"space": ClassSubsets(10), "family": "sparse-vd"}, "scales")],
)
def test_what_cannot_be_read_is_refused(options, message):
    network = conditional(ScalesOnly(), **options)
    parts = (network.layers, network.space, network.hypernet.family, network.find_masks.outputs)
    for refusing in (partial(check_readable, *parts), network.add_decoder_):
        with pytest.raises(BhcError, match=message):
            refusing()
    assert network.decoder is None
