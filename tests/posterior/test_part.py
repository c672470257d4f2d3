"""The part of a layer that some contexts keep computes what the whole layer computes under their masks."""

import pytest
import torch
from torch import nn

from bhc.posterior import LayerMask, masked_pass
from bhc.posterior.operators import Convolution, Linear
from bhc.posterior.passes import LayerPart, _whole_pass

from .toys import WEIGHTS, normals, random_posterior

LAYERS = {
    "linear": (Linear(), (9, 8), (8,)),
    "convolution": (Convolution.of(nn.Conv2d(8, 9, 2, padding=1)), (9, 8, 2, 2), (8, 3, 3)),
}
KEEP_IN = torch.tensor([[1, 0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0, 1, 0]]).bool()
KEEP_OUT = torch.tensor([[0, 1, 0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0, 0, 1, 0]]).bool()


def mask_of(keep_weight=None):
    return LayerMask(KEEP_IN, KEEP_OUT, torch.zeros(2).bool(), keep_weight)


def test_it_is_what_any_context_keeps_and_none_of_a_layer_that_is_kept_whole():
    part = LayerPart.of(mask_of())
    assert part is not None
    assert part.inputs.tolist() == [0, 4, 6]
    assert part.outputs.tolist() == [1, 7]
    everything = torch.ones(2, 9).bool()
    assert LayerPart.of(LayerMask(everything, everything, torch.zeros(2).bool())) is None


@pytest.mark.parametrize("layer", LAYERS)
def test_where_nothing_is_kept_outputs_are_zero(layer):
    operator, shape, example = LAYERS[layer]
    mean = random_posterior(shape, weights="shared").mean
    for keep_in, keep_out in ((KEEP_IN & False, KEEP_OUT), (KEEP_IN, KEEP_OUT & False)):
        mask = LayerMask(keep_in, keep_out, torch.zeros(2).bool())
        given = masked_pass(operator, normals(6, *example), mean, mask)
        torch.testing.assert_close(given, _whole_pass(operator, normals(6, *example), mean, mask))
        assert not given[:, ~keep_out.any(0)].any()


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("single", [False, True], ids=["units", "single weights"])
def test_outputs_and_gradients_are_those_of_the_whole_layer(layer, weights, single):
    operator, shape, example = LAYERS[layer]
    mean = random_posterior(shape, weights=weights).mean
    mask = mask_of(normals(1, *shape, seed=5) > 0 if single else None)
    x = normals(6, *example, seed=7).requires_grad_()
    parts = (mean.weight.base, mean.weight.left, mean.weight.right, mean.bias, mean.in_scale, mean.out_scale)
    numbers = [x, *(part.requires_grad_() for part in parts if part is not None)]
    expected, given = _whole_pass(operator, x, mean, mask), masked_pass(operator, x, mean, mask)
    torch.testing.assert_close(given, expected)
    direction = normals(*given.shape, seed=8)
    slopes = (torch.autograd.grad((output * direction).sum(), numbers) for output in (given, expected))
    for own, other in zip(*slopes, strict=True):
        torch.testing.assert_close(own, other)


def test_what_nobody_keeps_is_not_looked_at():
    mean = random_posterior(LAYERS["linear"][1], weights="shared").mean
    x = normals(6, 8)
    clean = masked_pass(Linear(), x, mean, mask_of())
    x[:, ~KEEP_IN.any(0)] = torch.nan
    assert torch.equal(masked_pass(Linear(), x, mean, mask_of()), clean)
