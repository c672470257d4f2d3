"""Convolutions in groups: whatever is cut, the groups that stay keep equally many channels."""

import numpy as np
import pytest
import torch
from torch import nn

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import Cutter
from bhc.graph import Layer, Units, capture, find_layers, find_units
from bhc.graph.groups import even_sets

from ..formats.graphs import wired
from ..posterior.toys import all_classes, at, finder_of, random_dropouts
from .grouped import GROUPED, SHAPE

X = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(3))


def found(name: str) -> tuple[Units, tuple[Layer, ...]]:
    graph = capture(GROUPED[name][0](), X)
    units = find_units(graph, SHAPE)
    return units, find_layers(graph, SHAPE, units)


def in_groups(layers: tuple[Layer, ...]) -> list[tuple[int, Layer]]:
    return [(place, layer) for place, layer in enumerate(layers) if 1 < layer.groups < len(layer.reads)]


@pytest.mark.parametrize("threshold", [-1e6, -4.0, -2.0, 0.0, 1e6])
@pytest.mark.parametrize("name", GROUPED)
def test_groups_that_stay_keep_equally_many_inputs_and_outputs(name: str, threshold: float) -> None:
    contexts, finder = 40, finder_of(capture(GROUPED[name][0](), X), SHAPE)
    masks = finder(random_dropouts(finder, contexts=contexts), at(threshold, contexts), all_classes(finder, contexts))
    grouped = in_groups(finder.layers)
    assert grouped
    for place, layer in grouped:
        inputs, outputs = (
            keep.unflatten(1, (layer.groups, -1)).sum(2).numpy()
            for keep in (masks.layers[place].keep_in, masks.layers[place].keep_out)
        )
        for read, given in zip(inputs, outputs, strict=True):
            assert len(set(read) - {0}) <= 1
            assert len(set(given) - {0}) <= 1
            assert not read.any() or (read.astype(bool) == given.astype(bool)).all()


@pytest.mark.parametrize("name", GROUPED)
def test_groups_go_whole_where_others_do_not_hang_on_them(name: str) -> None:
    units, layers = found(name)
    for _, layer in in_groups(layers):
        rows = [heads for heads in units.heads if np.isin(layer.writes.numpy(), heads.units).any()]
        one_of_each = [len({int(unit) for unit in own}) == 1 for own in layer.writes.reshape(layer.groups, -1)]
        if GROUPED[name][1]:
            assert [len(heads.rows) for heads in rows] == [layer.groups]
        elif name != "a norm of other groups":
            assert not any(len(heads.rows) == layer.groups and not heads.of_attention for heads in rows)
            assert not all(one_of_each)


def test_channels_of_another_norm_s_groups_take_whole_groups_with_them() -> None:
    units, layers = found("a norm of other groups")
    ((_, layer),) = in_groups(layers)
    assert units.heads == ()
    assert len(set(layer.writes.tolist())) == 4, "two groups of the convolution in each of the norm's"
    assert set(layer.writes.tolist()) == set(layer.reads.tolist())


@pytest.mark.parametrize("name", ["a shuffle", "an uneven shuffle"])
def test_behind_a_shuffle_channels_of_all_groups_go_together(name: str) -> None:
    """Of four channels in each of two groups in pairs; of five in each of three, nine channels or six."""
    _, layers = found(name)
    first = layers[1]
    free = set(first.writes.tolist())
    assert len(free) == 2
    for unit in free:
        own = (first.writes == unit).reshape(first.groups, -1).sum(1)
        assert (own == own[0]).all()


def test_heads_of_attention_stay_where_each_is_of_one_group() -> None:
    units, layers = found("heads in groups")
    (heads,) = units.attention
    assert units.always[heads.rows].all()
    assert not any(units.always[part.units].any() for part in heads.parts)
    assert all(len(part.units) == 4 for part in heads.parts)
    assert not any(units.always[layer.writes].any() for layer in layers)


def test_the_classes_are_never_cut_in_groups() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    graph = capture(net, X)
    units = find_units(graph, SHAPE)
    assert not units.outputs_are_free
    assert units.always[units.carried[graph.last_step]].all()
    assert not units.always[units.writes["0"]].any()


def test_groups_of_the_input_all_stay_and_give_fewer_channels() -> None:
    steps = [("a", nn.Conv2d(6, 6, 1, groups=3)), ("b", nn.Conv2d(6, 6, 1, groups=2)), ("end", nn.Conv2d(6, 2, 1))]
    units = find_units(wired(*steps[:1], steps[-1]), (6, 4, 4))
    (heads,) = units.heads
    assert units.always[heads.rows].all()
    assert [part.units.tolist() for part in heads.parts] == [units.writes["a"].reshape(3, 2).tolist()]
    both = find_units(wired(*steps), (6, 4, 4))
    assert both.heads == ()
    assert len(set(both.writes["a"].tolist())) == 1, "two of each of three groups are three of each of two"
    assert len(set(both.writes["b"].tolist())) == 3


def test_a_depthwise_convolution_has_no_groups_to_choose() -> None:
    depthwise = wired(("a", nn.Conv2d(3, 4, 1)), ("d", nn.Conv2d(4, 8, 1, groups=4), "a"), ("e", nn.Conv2d(8, 2, 1)))
    assert find_units(depthwise, SHAPE).heads == ()


@pytest.mark.parametrize("seed", range(20))
def test_even_sets_are_even_and_leave_nothing(seed: int) -> None:
    draws = np.random.default_rng(seed)
    groups, each = draws.integers(2, 5), draws.integers(1, 8)
    sides = [draws.permutation(np.repeat(np.arange(groups), each)) for _ in range(draws.integers(1, 4))]
    imbalance = np.hstack([groups * np.eye(groups, dtype=int)[side] - 1 for side in sides])
    sets, left = even_sets(np.arange(len(imbalance)), imbalance, np.zeros_like(imbalance[0]))
    assert sorted(unit for own in sets for unit in own) == list(range(len(imbalance)))
    assert not left
    for own in sets:
        assert not imbalance[own].sum(0).any()
    if len(sides) == 1:
        assert len(sets) == each


def test_even_sets_beside_what_never_goes() -> None:
    imbalance = np.array([[1, -1], [1, -1], [-1, 1], [-1, 1], [-1, 1]])
    sets, left = even_sets(np.arange(5), imbalance, np.array([1, -1]))
    assert sorted(map(len, sets)) == [2, 2]
    assert len(left) == 1
    assert left[0] in (2, 3, 4), "it makes up for what never goes"


@torch.no_grad()
@pytest.mark.parametrize("name", GROUPED)
def test_most_of_the_weights_can_go(name: str) -> None:
    model = bhc.wrap(GROUPED[name][0](), bhc.SingleContext(), example_input=X, initial=bhc.Initial())
    network = model.network
    batch = ContextBatch.of([Context()], network.num_classes)
    hardest = Cutter(network, Context()).cut(-1e30)
    masks = network.find_masks(network.dropouts(batch), torch.full((1, 1), -1e30), batch.outputs, batch.inputs)
    assert hardest.num_weights < 0.6 * network.num_weights
    each = zip(network.layers, masks.layers, strict=True)
    assert hardest.num_weights == sum(int(layer.kept_weights(own.keep_in, own.keep_out)) for layer, own in each)
