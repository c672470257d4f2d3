"""Passes of recurrences against slow loops, one example and one step at a time."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.layers import Recurrence
from bhc.layers.sequences import CELLS, Cell
from bhc.posterior import LayerMask, LogNormalScales, NormalScales, masked_pass, noisy_pass
from bhc.posterior.operators import Driving, Linear
from bhc.posterior.passes import Recurrent, operators_of
from bhc.posterior.products import VARIANCE_FLOOR

from ..formats.graphs import in_a_row
from .toys import (
    WEIGHTS,
    Silence,
    believed,
    free_tensors,
    fresh_noise,
    layers_of,
    normals,
    posterior_of,
    random_posterior,
)

CONTEXTS, EXAMPLES, STEPS, HIDDEN = 2, 2, 4, 3
N = CONTEXTS * EXAMPLES


class Recorded:
    """Keeps what it draws."""

    def __init__(self, seed: int = 0) -> None:
        self.fresh, self.drawn = fresh_noise(seed), []

    def normal(self, shape, like: Tensor) -> Tensor:
        self.drawn.append(self.fresh.normal(shape, like))
        return self.drawn[-1]


class Replayed:
    """The numbers of another source once more."""

    def __init__(self, drawn: list[Tensor]) -> None:
        self.left = list(drawn)

    def normal(self, shape, like: Tensor) -> Tensor:
        return self.left.pop(0)


def operator(cell: str, *, reverse: bool = False) -> Recurrent:
    return Recurrent(Recurrence(cell, HIDDEN, reverse), Linear())


def drive(cell: str) -> Tensor:  # (K * B, G H, T)
    return normals(N, CELLS[cell].gates * HIDDEN, STEPS, seed=7)


def posterior(cell: str, weights: str):
    return random_posterior((CELLS[cell].gates * HIDDEN, HIDDEN), contexts=CONTEXTS, weights=weights)


def one_sequence(cell: Cell, steps: Tensor, recur) -> Tensor:  # (T, G H) -> (T, H)
    """The recurrence of one example, in the order of ``steps``."""
    state, given = (torch.zeros(1, HIDDEN).double(),) * cell.states, []
    for each in steps:
        state = cell.step(each[None], recur(state[0][0])[None], state)
        given.append(state[0][0])
    return torch.stack(given)


def slow_noisy(cell: str, h: Tensor, belief, drawn: list[Tensor]) -> Tensor:
    """Every example by itself, every step by the formula."""
    z = belief.in_scale.sample(drawn[0]).flatten(0, 1)
    s = belief.out_scale.sample(drawn[1]).flatten(0, 1)
    mean, variance = belief.mean.weight.dense(), belief.weight_logvar.exp()
    outputs = []
    for place in range(N):
        context = place // EXAMPLES
        own_mean, own_variance = (w[context if len(w) > 1 else 0] for w in (mean, variance))
        bias = belief.mean.bias[context]

        def recur(state, place=place, own_mean=own_mean, own_variance=own_variance, bias=bias):
            scaled = state * z[place]
            std = (own_variance @ scaled.square() + VARIANCE_FLOOR).sqrt()
            return (own_mean @ scaled + std * drawn[2][place] + bias) * s[place]

        outputs.append(one_sequence(CELLS[cell], h[place].mT, recur).mT)
    return torch.stack(outputs)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_sample_and_its_gradients_are_those_of_a_slow_loop(cell: str, weights: str) -> None:
    tensors = free_tensors(posterior(cell, weights))
    h, noise = drive(cell).requires_grad_(), Recorded()
    leaves = [h, *(tensor for tensor in tensors if tensor is not None)]
    factors = normals(N, HIDDEN, STEPS, seed=11)
    given = noisy_pass(operator(cell), h, believed(*tensors), noise=noise)
    expected = slow_noisy(cell, h, believed(*tensors), noise.drawn)
    torch.testing.assert_close(given, expected)
    gradients = [torch.autograd.grad((output * factors).sum(), leaves) for output in (given, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_noise_is_drawn_once_a_sequence(steps: int) -> None:
    noise, gates = Recorded(), CELLS["lstm"].gates * HIDDEN
    noisy_pass(operator("lstm"), normals(N, gates, steps), posterior("lstm", "shared"), noise=noise)
    shapes = [tuple(drawn.shape) for drawn in noise.drawn]
    assert shapes == [(CONTEXTS, EXAMPLES, HIDDEN), (CONTEXTS, EXAMPLES, gates), (N, gates)]


def test_one_state_gets_one_product_at_every_step_and_another_in_every_example() -> None:
    products: list[Tensor] = []

    def ones(drive: Tensor, product: Tensor, state):
        products.append(product)
        return (torch.ones_like(state[0]),)

    layer = operator("tanh")
    layer.cell = Cell("ones", 1, 1, ones, "", nn.RNN, "", (), {})
    noisy_pass(layer, drive("tanh"), posterior("tanh", "shared"), noise=fresh_noise())
    _, second, *later = products  # the first state is zero
    assert len(later) == STEPS - 2
    assert all(torch.equal(second, product) for product in later)
    assert len({tuple(row) for row in second.tolist()}) == N


def test_what_drives_a_recurrence_draws_its_noise_once_a_sequence() -> None:
    graph = in_a_row(nn.Linear(2, 9), Recurrence("gru", HIDDEN), nn.Linear(HIDDEN, 2), nn.Flatten(), nn.Linear(8, 2))
    found = operators_of(graph, layers_of(graph, (STEPS, 2)))
    assert [type(each) for each in found] == [Driving, Recurrent, Linear, Linear]
    noise, belief = Recorded(), random_posterior((9, 2), contexts=CONTEXTS, weights="shared")
    noisy_pass(found[0], normals(N, 2, STEPS), belief, noise=noise)
    assert tuple(noise.drawn[1].shape) == (N, 9, 1)
    constant = normals(N, 2, 1).expand(-1, -1, STEPS)
    sample = noisy_pass(found[0], constant, belief, noise=fresh_noise())
    assert torch.equal(sample, sample[..., :1].expand_as(sample))
    apart = noisy_pass(found[2], constant, belief, noise=fresh_noise())
    assert not torch.equal(apart, apart[..., :1].expand_as(apart))


def scaled(cell: str, context: int, weights: str, keep_in: Tensor, keep_out: Tensor) -> Recurrence:
    """The plain recurrence of one context's means."""
    mean = posterior(cell, weights).mean
    dense = mean.weight.dense()
    rows, columns = keep_out[context] * mean.out_scale[context], keep_in[context] * mean.in_scale[context]
    module = Recurrence(cell, HIDDEN).double()
    module.weight.data = dense[context if len(dense) > 1 else 0] * rows[:, None] * columns
    module.bias.data = mean.bias[context] * rows  # type: ignore[union-attr]
    return module


@torch.no_grad()
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("cell", CELLS)
def test_the_masked_pass_is_the_plain_recurrence_of_masked_means(cell: str, weights: str) -> None:
    gates = CELLS[cell].gates
    keep_in = torch.tensor([[True, False, True], [True, True, False]])
    keep_out = keep_in.repeat(1, gates)
    h = drive(cell) * keep_out.repeat_interleave(EXAMPLES, 0)[..., None]
    mean = posterior(cell, weights).mean
    given = masked_pass(operator(cell), h, mean, LayerMask(keep_in, keep_out, keep_in.any(1)))
    for context in range(CONTEXTS):
        own = slice(context * EXAMPLES, (context + 1) * EXAMPLES)
        plain = scaled(cell, context, weights, keep_in, keep_out)
        torch.testing.assert_close(given[own], plain(h[own].mT).mT)
        assert (given[own][:, ~keep_in[context]] == 0).all()


@torch.no_grad()
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_without_noise_a_sample_is_the_masked_pass(reverse: bool) -> None:
    belief, layer = posterior("lstm", "low rank"), operator("lstm", reverse=reverse)
    keep_in = torch.tensor([[True, False, True], [True, True, False]])
    mask = LayerMask(keep_in, keep_in.repeat(1, 4), keep_in.any(1))
    never = torch.full((), -torch.inf).double()
    scales = [NormalScales(each.mean, never.expand(each.mean.shape)) for each in (belief.in_scale, belief.out_scale)]
    silent = posterior_of(belief.mean.weight, belief.mean.bias, never.expand_as(belief.weight_logvar), *scales)
    h = drive("lstm") * mask.keep_out.repeat_interleave(EXAMPLES, 0)[..., None]
    expected = masked_pass(layer, h, belief.mean, mask)
    torch.testing.assert_close(noisy_pass(layer, h, silent, mask, noise=Silence()), expected)
    everything = LayerMask(torch.ones_like(keep_in), torch.ones_like(mask.keep_out), mask.rescued)
    whole = noisy_pass(layer, h, silent, noise=Silence())
    torch.testing.assert_close(whole, masked_pass(layer, h, belief.mean, everything))


def test_single_weights_may_go() -> None:
    mean = posterior("gru", "own").mean
    keep_weight = normals(CONTEXTS, 3 * HIDDEN, HIDDEN, seed=3) > 0
    everything = torch.ones(CONTEXTS, 3 * HIDDEN).bool()
    mask = LayerMask(everything[:, :HIDDEN], everything, everything.any(1), keep_weight)
    given = masked_pass(operator("gru"), drive("gru"), mean, mask)
    mean.weight.base.mul_(keep_weight)
    torch.testing.assert_close(given, masked_pass(operator("gru"), drive("gru"), mean, mask))


def test_a_family_without_some_scales_is_taken() -> None:
    """Scales of inputs alone, which are log-normal; and none at all."""
    gates, belief = 4 * HIDDEN, posterior("lstm", "shared")
    scales = LogNormalScales(0.3 * normals(CONTEXTS, 2 * HIDDEN + 2), normals(CONTEXTS, 2 * HIDDEN + 2, seed=1) - 3)
    keep = torch.ones(CONTEXTS, gates).bool()
    mask = LayerMask(keep[:, :HIDDEN], keep, keep.any(1))
    for in_scale in (scales, None):
        own = posterior_of(belief.mean.weight, belief.mean.bias, belief.weight_logvar, in_scale, None)
        noise = Recorded()
        given = noisy_pass(operator("lstm"), drive("lstm"), own, noise=noise)
        assert len(noise.drawn) == (1 if in_scale is None else 2)
        again = noisy_pass(operator("lstm"), drive("lstm"), own, mask, noise=Replayed(noise.drawn))
        torch.testing.assert_close(again, given)


def test_states_keep_their_precision_where_products_have_a_lower_one() -> None:
    base = Recurrence("lstm", HIDDEN)
    belief = random_posterior((12, HIDDEN), contexts=1, weights="shared")
    tensors = [None if tensor is None else tensor.float() for tensor in free_tensors(belief)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = F.linear(normals(N, STEPS, 5).float(), normals(12, 5, seed=1).float()).mT
        given = noisy_pass(Recurrent(base, Linear()), low, believed(*tensors), noise=fresh_noise())
    assert (low.dtype, given.dtype) == (torch.bfloat16, torch.float32)
    assert given.isfinite().all()
