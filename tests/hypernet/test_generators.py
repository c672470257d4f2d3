import json
import math

import pytest
import torch
from torch.nn import functional as F

from bhc.contexts import BinaryBudget
from bhc.errors import BhcError
from bhc.hypernet import EMBEDDING_WIDTH, Full, Initial, LowRank, ScalesOnly, generator_from_dict
from bhc.hypernet import GENERATORS as KINDS
from bhc.posterior import FreshNoise

from .toys import (
    GENERATORS,
    NETWORKS,
    PAIRS,
    all_equal,
    at,
    conditional,
    contexts,
    images,
    pairs,
    perturb_,
    pretrained,
    restored,
    seeded,
    tensors_of,
)

KEEP_ALL = 1e9


def posterior(model, batch):
    return model.hypernet.posterior(model.space.encode(batch))


def some_units(count):
    """Of two contexts, half of the units each, in any order."""
    return torch.stack([torch.randperm(count, generator=seeded(seed))[: count // 2 + 1] for seed in (0, 1)])


def parts(dense, rows, columns):
    return torch.stack([own[up][:, across] for own, up, across in zip(dense, rows, columns, strict=True)])


def first_limit(limit, network):
    """A limit on the first layer's standard deviations, none on the others'."""
    return (limit, *(None for parameter in [*pretrained(network).parameters()][1:] if parameter.dim() > 1))


def budgets(*values):
    return contexts(BinaryBudget(), *({"budget": value} for value in values))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("spec", GENERATORS.values(), ids=GENERATORS)
class TestEveryGenerator:
    """What training and emission expect of a generator, whichever it is."""

    def test_shapes_lead_with_the_contexts_or_with_one(self, spec, network):
        model = conditional(spec, network)
        for layer, belief in zip(model.layers, posterior(model, pairs(3)), strict=True):
            shape = (3 if isinstance(spec, Full) else 1, *layer.weight_shape)
            mean, in_scales = belief.mean, 1 if layer.has_kernel else layer.num_inputs
            assert mean.weight.base.shape == belief.weight_logvar.shape == shape
            assert mean.bias is None or mean.bias.shape == (3, layer.num_outputs)
            assert mean.in_scale.shape == belief.in_scale.logvar.shape == (3, in_scales)
            assert mean.out_scale.shape == belief.out_scale.logvar.shape == (3, layer.num_outputs)

    def test_an_exact_start_is_the_pretrained_network(self, spec, network):
        model, net, batch = conditional(spec, network), pretrained(network), pairs(2)
        for layer, belief in zip(model.layers, posterior(model, batch), strict=True):
            weights, module = belief.mean.weight.dense(), net.get_submodule(layer.name)
            assert torch.equal(weights, module.weight.expand_as(weights))
            assert module.bias is None or torch.equal(belief.mean.bias, module.bias.expand_as(belief.mean.bias))
            assert torch.equal(belief.mean.in_scale, torch.ones_like(belief.mean.in_scale))
            assert torch.equal(belief.mean.out_scale, torch.ones_like(belief.mean.out_scale))
        x = images(network, 6)
        given = model.masked(x, batch, threshold=at(KEEP_ALL, 2))
        kept = batch.outputs.repeat_interleave(3, dim=0)
        torch.testing.assert_close(given, net(x) * kept, rtol=1e-5, atol=1e-5)

    def test_the_paper_s_start_is_near_the_pretrained_network(self, spec, network):
        model, net, batch = conditional(spec, network, initial=Initial()), pretrained(network), pairs(2)
        embedding = model.hypernet.embedder(*PAIRS.encode(batch))
        # A map's entries are uniform with standard deviation gain / sqrt(width): this is what they add.
        noise = 0.5 / math.sqrt(EMBEDDING_WIDTH) * embedding.norm(dim=1).max().item()
        for layer, belief in zip(model.layers, posterior(model, batch), strict=True):
            mean = belief.mean
            assert 0 < (mean.in_scale - 1).abs().max() < 5 * noise
            assert 0 < (mean.out_scale - 1).abs().max() < 5 * noise
            assert (belief.weight_logvar + 9).abs().max() < 6 * noise + 0.1
            assert mean.bias is None or torch.equal(mean.bias[0], net.get_submodule(layer.name).bias)
            if isinstance(spec, Full):
                assert (mean.weight.dense() - net.get_submodule(layer.name).weight).std() < 1.1 * noise

    @pytest.mark.parametrize("own", [slice(0, 2), slice(1, 2)], ids=["both", "one"])
    @pytest.mark.parametrize("limit", [None, 0.02])
    def test_a_part_of_means_and_log_variances_is_the_same_part_of_the_dense_ones(self, spec, network, limit, own):
        model, batch = conditional(spec, network, std_limits=first_limit(limit, network)), pairs(2)
        perturb_(model.hypernet, std=1.0)
        model.hypernet.clip_()
        embedding = model.hypernet.embedder(*PAIRS.encode(batch))
        for layer, head in zip(model.layers, model.hypernet.weight_heads, strict=True):
            rows, columns = (some_units(count)[own] for count in (layer.num_outputs, layer.num_inputs))
            kept, shape = head.kept(embedding), (2, *layer.weight_shape)
            expected = parts(head.mean(embedding).dense().expand(shape)[own], rows, columns)
            torch.testing.assert_close(kept.mean(own, rows, columns), expected, rtol=1e-4, atol=1e-5)
            expected = parts(head.logvar(embedding).expand(shape)[own], rows, columns)
            torch.testing.assert_close(kept.logvar(own, rows, columns), expected, rtol=1e-5, atol=1e-4)

    def test_contexts_get_networks_of_their_own_once_the_maps_have_moved(self, spec, network):
        model, x = conditional(spec, network), images(network, 1).expand(2, -1, -1, -1)
        everything = pairs(2)
        everything.outputs.fill_(True)
        before = model.masked(x, everything, threshold=at(KEEP_ALL, 2))
        torch.testing.assert_close(before[0], before[1])
        perturb_(model.hypernet, std=0.01)
        after = model.masked(x, everything, threshold=at(KEEP_ALL, 2))
        assert not torch.allclose(after[0], after[1], rtol=1e-3, atol=1e-3)

    def test_frozen_gates_keep_the_dropout_rates_while_the_means_move(self, spec, network):
        model, encoding = conditional(spec, network, initial=Initial()), PAIRS.encode(pairs(3))

        def rates():
            return [
                tensor
                for layer in model.hypernet.dropouts(encoding)
                for tensor in (layer.in_log_dropout, layer.out_log_dropout)
            ]

        before, means = rates(), tensors_of(posterior(model, pairs(3)))
        model.hypernet.freeze_gates_()
        assert all_equal(rates(), before)
        perturb_(model.hypernet)
        assert all_equal(rates(), before)
        assert not any(map(torch.equal, tensors_of(posterior(model, pairs(3))), means))

    def test_frozen_offsets_keep_the_network_of_budget_zero(self, spec, network):
        model = conditional(spec, network, space=BinaryBudget(), initial=Initial())
        before = tensors_of(posterior(model, budgets(0)))
        larger = tensors_of(posterior(model, budgets(1)))
        model.hypernet.freeze_offsets_()
        perturb_(model.hypernet)
        assert all_equal(tensors_of(posterior(model, budgets(0))), before)
        after = tensors_of(posterior(model, budgets(1)))
        assert any(not torch.equal(a, b) for a, b in zip(after, larger, strict=True))

    def test_a_described_model_comes_back_with_its_state(self, spec, network):
        model = conditional(spec, network, std_limits=first_limit(0.2, network))
        perturb_(model.hypernet, std=0.01)
        x, batch = images(network, 6), pairs(3)
        outputs = [
            (each.noisy(x, batch, noise=FreshNoise(seeded()))[0], each.masked(x, batch, threshold=at(0.0, 3)))
            for each in (model, restored(model))
        ]
        assert all_equal(*outputs)

    def test_limits_hold_the_standard_deviations_after_a_step(self, spec, network):
        model = conditional(spec, network, std_limits=first_limit(0.2, network))
        with torch.no_grad():
            for head in model.hypernet.weight_heads:
                for name, parameter in head.named_parameters():
                    if "logvar" in name and name.endswith("offset"):
                        parameter.copy_(torch.linspace(-9, 3, parameter.numel()).reshape(parameter.shape))
        model.hypernet.clip_()
        first, *others = (0.5 * belief.weight_logvar.exp().log() for belief in posterior(model, pairs(2)))
        assert first.exp().max().item() == pytest.approx(0.2)
        assert first.exp().min().item() == pytest.approx(math.exp(-4.5), rel=1e-3)
        assert all(other.exp().max().item() == pytest.approx(math.exp(1.5), rel=1e-3) for other in others)

    def test_equal_seeds_give_equal_bits(self, spec, network):
        first, second, other = (conditional(spec, network, initial=Initial(), seed=seed) for seed in (5, 5, 6))
        assert all_equal(list(first.parameters()), list(second.parameters()))
        assert not all_equal(list(first.parameters()), list(other.parameters()))

    def test_the_pretrained_network_is_left_alone(self, spec, network):
        model, net = conditional(spec, network), pretrained(network)
        perturb_(model)
        assert all_equal(list(model.base_model.parameters()), list(net.parameters()))


@pytest.mark.parametrize("spec", GENERATORS.values(), ids=GENERATORS)
def test_every_generator_learns_from_an_untrained_network(spec):
    model, batch = conditional(spec), pairs(4)
    x = images("tiny", 80) / 255
    rng = seeded(8)
    labels = torch.cat([first + torch.randint(2, (20,), generator=rng) for first in range(4)])
    x = x + (labels % 2)[:, None, None, None]
    optimiser = torch.optim.Adam(model.hypernet.parameters(), lr=5e-4)

    def loss(seed):
        logits, beliefs = model.noisy(x, batch, noise=FreshNoise(seeded(seed)))
        outside = ~batch.outputs.repeat_interleave(20, dim=0)
        return (
            F.cross_entropy(logits.masked_fill(outside, -torch.inf), labels)
            + model.hypernet.kl(beliefs).mean() / 10_000
        )

    before = loss(0).item()
    for step in range(60):
        optimiser.zero_grad()
        loss(step).backward()
        optimiser.step()
        model.hypernet.clip_()
    assert loss(0).item() < 0.7 * before, (before, loss(0).item())


def test_the_low_rank_part_learns_from_the_first_step_of_an_exact_start():
    model, batch = conditional(LowRank(2)), pairs(3)
    logits, _ = model.noisy(images("tiny", 6) / 255, batch, noise=FreshNoise(seeded()))
    logits.square().sum().backward()
    assert all((head.left_matrix.grad != 0).any() for head in model.hypernet.weight_heads)


def test_only_the_shared_weights_of_scales_only_are_the_same_in_all_contexts():
    for spec, same in ((Full(), False), (LowRank(2), False), (ScalesOnly(), True)):
        model = conditional(spec)
        perturb_(model.hypernet)
        dense = posterior(model, pairs(2))[0].mean.weight.dense()
        assert torch.equal(dense[0], dense[-1]) == same


@pytest.mark.parametrize("spec", [*GENERATORS.values(), LowRank(7)], ids=str)
def test_a_generator_comes_back_from_plain_data(spec):
    assert generator_from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize("data", [{"kind": "magic"}, {}])
def test_an_unknown_generator_is_answered_with_the_known_ones(data):
    with pytest.raises(BhcError, match="generator") as caught:
        generator_from_dict(data)
    assert all(kind in caught.value.hint for kind in KINDS)


@pytest.mark.parametrize("rank", [0, -1])
def test_a_rank_below_one_is_refused(rank):
    with pytest.raises(BhcError, match=f"rank .*{rank}") as caught:
        LowRank(rank)
    assert "ScalesOnly" in caught.value.hint
