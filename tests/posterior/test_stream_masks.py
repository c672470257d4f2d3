"""Masks where units have several writers and readers."""

import pytest
import torch
from torch import nn

from bhc.posterior import LayerDropout

from ..formats.graphs import in_a_row
from .toys import (
    NOISY,
    all_classes,
    at,
    branching_graph,
    dropouts,
    finder_of,
    mask,
    random_dropouts,
    random_weight_rates,
    small_chain,
)


def links(finder, rates, unit):
    """The rates of all that write a unit, and of all that read it; a convolution's inputs have none of their own."""
    writers, readers = [], []
    for layer, own in zip(finder.layers, rates, strict=True):
        writers += [
            own.out_log_dropout[at].item() for at, written in enumerate(layer.writes.tolist()) if written == unit
        ]
        for place, read in enumerate(layer.reads.tolist()):
            if read == unit:
                readers.append(-torch.inf if layer.has_kernel else own.in_log_dropout[place].item())
    return writers, readers


def slow_alive(finder, rates, threshold, outputs):
    """Which units of any graph live in one context, before anything is rescued."""
    alive = []
    for unit in range(finder.num_units):
        writers, readers = links(finder, rates, unit)
        quiet = all(any(rate < threshold for rate in side) for side in (writers, readers))
        alive.append(bool(finder.always[unit]) or quiet)
    for place, unit in enumerate(finder.outputs.tolist()):
        alive[unit] = bool(outputs[place])
    return torch.tensor(alive)


def must_write(finder):
    """By layer, the outputs that it may not leave to others: it has no others, or they are factors, groups, kept."""
    written = torch.cat([layer.writes for layer in finder.layers]).bincount(minlength=finder.num_units)
    must = (written == 1) | torch.as_tensor(finder.always)
    must[finder.outputs] = True
    for layer in finder.layers:
        if layer.groups > 1 or layer.name == "gate":
            must[layer.writes] = True
    return {layer.name: must[layer.writes] for layer in finder.layers}


@pytest.mark.parametrize(
    ("build", "keep"),
    [(branching_graph, ()), (branching_graph, ("gate",)), (branching_graph, ("branch", "one")), (small_chain, ())],
)
@pytest.mark.parametrize("threshold", [-3.0, 0.0, 3.0])
def test_units_follow_the_rules_one_at_a_time(threshold, build, keep):
    contexts, finder = 40, finder_of(build(), keep=keep)
    rates = random_dropouts(finder, contexts=contexts)
    outputs = torch.rand(contexts, 4, generator=torch.Generator().manual_seed(3)) < 0.7
    fates, compared = finder(rates, at(threshold, contexts), outputs), 0
    musts = must_write(finder)
    for context in range(contexts):
        own = [LayerDropout(layer.in_log_dropout[context], layer.out_log_dropout[context]) for layer in rates]
        expected = slow_alive(finder, own, threshold, outputs[context])
        given = fates.alive[context]
        assert all(given[layer.writes].any() for layer in finder.layers[:-1])
        if any(not expected[layer.writes].any() for layer in finder.layers[:-1]):
            assert (expected & ~given).sum() == 0
            assert given.sum() > expected.sum()
            continue
        compared += 1
        assert torch.equal(given, expected)
        for layer, belief, mask_ in zip(finder.layers, own, fates.layers, strict=True):
            arriving = expected[layer.reads]
            read = arriving if layer.has_kernel else arriving & (belief.in_log_dropout < threshold)
            writes = expected[layer.writes] & (musts[layer.name] | (belief.out_log_dropout < threshold))
            assert not writes.any() or torch.equal(mask_.keep_out[context], writes)
            assert mask_.rescued[context].item() == (not read.any())
            assert not read.any() or torch.equal(mask_.keep_in[context], read)
    assert compared > 10 or threshold < 0


def test_a_writer_that_is_noisy_throughout_writes_one_unit_of_the_stream_all_the_same():
    finder = finder_of(branching_graph())
    rates, place = dropouts(finder), [layer.name for layer in finder.layers].index("one")
    rates[place].out_log_dropout[0] = torch.tensor([NOISY, NOISY, NOISY - 1, NOISY, NOISY])
    assert mask(finder, rates)[place].keep_out.tolist() == [[False, False, True, False, False]]


@pytest.mark.parametrize("threshold", [-12.0, -10.0, -9.0, -8.0, -7.0, 0.0])
def test_single_weights_of_groups_are_read_by_their_own_group(threshold):
    graph = in_a_row(nn.Conv1d(2, 4, 3), nn.Conv1d(4, 6, 2, groups=2), nn.Flatten(), nn.Linear(18, 4))
    contexts, finder = 30, finder_of(graph, (2, 6))
    rates = random_weight_rates(finder, contexts=contexts, centre=-2.0)
    fates = finder(rates, at(threshold, contexts), all_classes(finder, contexts))
    for context in range(contexts):
        first, grouped, last = (layer.weights[context] < threshold for layer in rates)
        read = grouped.unflatten(0, (2, 3)).any(3).any(1)  # (groups, I of a group)
        inputs = first.flatten(1).any(1).reshape(2, 2) & read
        outputs = (grouped.flatten(1).any(1) & last.unflatten(1, (6, 3)).any(2).any(0)).reshape(2, 3)
        stays = inputs.any(1) & outputs.any(1)
        for kept, under in zip((fates.layers[0].keep_out, fates.layers[1].keep_out), (inputs, outputs), strict=True):
            own = kept[context].reshape(under.shape)
            most = under[stays].sum(1).amax() if stays.any() else 1
            assert sorted(set(own.sum(1).tolist()) - {0}) == [int(most)]
            assert own.any(1).sum() == max(int(stays.sum()), 1)
            assert own[under & stays[:, None]].all()
