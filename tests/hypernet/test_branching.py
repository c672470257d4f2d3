"""Branching networks learn as chains do: noisy passes, gradients, several contexts, and a way to disk and back."""

import pytest
import torch

from bhc.errors import BhcError
from bhc.graph import capture
from bhc.hypernet import ConditionalNetwork, Design, Initial, LowRank
from bhc.posterior import FAMILIES

from ..emission.networks import NETWORKS, build
from .toys import GENERATORS, PAIRS, assert_gradients_reach_all, contexts, pairs, perturb_, restored, seeded


def branching(name, spec, *, family="io-gnj", keep=()):
    net, x = build(name)
    design = Design(spec, Initial(), family=family, keep=keep)
    return ConditionalNetwork(capture(net, x), PAIRS, design, input_shape=x.shape[1:], rng=seeded(1)), x


@pytest.mark.parametrize("spec", GENERATORS.values(), ids=GENERATORS)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_reach_every_parameter(name, spec):
    model, x = branching(name, spec)
    perturb_(model.hypernet, std=0.01)
    assert_gradients_reach_all(model, x, pairs(2))


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_contexts_together_are_each_context_alone(name, family):
    model, x = branching(name, LowRank(2), family=family)
    perturb_(model.hypernet, std=0.05)
    threshold = torch.tensor([[-8.8], [0.0]])
    together = model.masked(torch.cat([x, x]), pairs(2), threshold=threshold)
    for context in range(2):
        batch = contexts(PAIRS, {"classes": [context, context + 1]})
        alone = model.masked(x, batch, threshold=threshold[context : context + 1])
        torch.testing.assert_close(together.chunk(2)[context], alone, rtol=1e-4, atol=1e-4)


def test_what_is_kept_is_part_of_the_description():
    model, _ = branching("residual", LowRank(2), keep=("stem",))
    again = restored(model)
    assert again.design.keep == ("stem",)
    assert (again.units.always == model.units.always).all()
    assert again.units.always[again.units.carried["stem"]].all()


def test_a_layer_to_keep_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(BhcError, match="stern") as caught:
        branching("residual", LowRank(2), keep=("stern",))
    assert "stem" in caught.value.hint
