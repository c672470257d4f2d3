"""One context, known beforehand: free parameters without a hypernetwork, for every family."""

import pytest
import torch

from bhc.contexts import SingleContext
from bhc.hypernet import Initial, LowRank, ScalesOnly
from bhc.posterior import FAMILIES

from .toys import GENERATORS, assert_gradients_reach_all, conditional, contexts, images, perturb_, pretrained

SPACE = SingleContext()


def model_of(family, *, spec=None, initial=None):
    return conditional(spec or ScalesOnly(), space=SPACE, family=family, initial=initial)


def beliefs_of(model, count=1):
    return model.hypernet.posterior(SPACE.encode(contexts(SPACE, *[{}] * count)))


@pytest.mark.parametrize("initial", [Initial(), Initial.exact()], ids=["paper", "exact"])
@pytest.mark.parametrize("spec", GENERATORS.values(), ids=GENERATORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_starts_at_the_weights_of_the_network_with_scales_near_one(family, spec, initial):
    model, net = model_of(family, spec=spec, initial=initial), pretrained()
    for layer, belief in zip(model.layers, beliefs_of(model), strict=True):
        mean, module = belief.mean, net.get_submodule(layer.name)
        assert torch.equal(mean.weight.dense()[0], module.weight)
        assert mean.bias is module.bias is None or torch.equal(mean.bias[0], module.bias)
        sizes = tuple(0 if scales is None else scales.shape[1] for scales in (mean.in_scale, mean.out_scale))
        assert sizes == FAMILIES[family].num_scales(layer)
        for scales in (mean.in_scale, mean.out_scale):
            assert scales is None or (scales - 1).abs().max() < 1e-3
        torch.testing.assert_close(belief.weight_logvar, torch.full_like(belief.weight_logvar, -9), atol=0.1, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_is_an_offset(family):
    names = {name for name, p in model_of(family).hypernet.named_parameters() if p.numel()}
    assert all(name.endswith("offset") for name in names)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_beliefs_are_those_of_one_context_however_often_it_is_asked_for(family):
    model = model_of(family, spec=LowRank(2))
    perturb_(model.hypernet)
    for one, three in zip(beliefs_of(model), beliefs_of(model, 3), strict=True):
        for tensor, others in ((one.mean.bias, three.mean.bias), (one.mean.in_scale, three.mean.in_scale)):
            assert tensor is others is None or torch.equal(tensor.expand_as(others), others)
    divergences = [model.hypernet.kl(beliefs_of(model, count)) for count in (1, 3)]
    torch.testing.assert_close(divergences[0].expand_as(divergences[1]), divergences[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_every_parameter(family):
    model = model_of(family, initial=Initial())
    assert_gradients_reach_all(model, images("tiny", 6) / 255, contexts(SPACE, {}))
