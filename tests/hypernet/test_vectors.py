import pytest
import torch

from bhc.graph import find_layers, find_units
from bhc.hypernet import Initial
from bhc.hypernet.hypernetwork import VectorHeads
from bhc.posterior import (
    FAMILIES,
    GroupHorseshoe,
    GroupNormalJeffreys,
    InputOutputNormalJeffreys,
    SparseVariationalDropout,
    log_dropout,
)

from .toys import graph_of, pretrained, seeded

WIDTH = 5


def heads(family, initial=None):
    graph = graph_of(pretrained())
    layers = find_layers(graph, (1, 4, 4), find_units(graph, (1, 4, 4)))
    return VectorHeads(layers, family, initial or Initial(), width=WIDTH, rng=seeded())


def embedding(count=2):
    return torch.randn(count, WIDTH, generator=seeded(1))


def sizes(vectors):
    return [None if vector is None else vector.shape[1] for vector in vectors]


def scales_of(vectors):
    return tuple((in_scale, out_scale) for in_scale, out_scale, _ in vectors.beliefs(embedding()))


def test_two_groups_have_both_scales_and_the_biases_that_the_network_has():
    means = heads(InputOutputNormalJeffreys()).means(embedding())
    given = [sizes((layer.in_scale, layer.out_scale, layer.bias)) for layer in means]
    assert given == [[1, 3, 3], [12, 6, None], [6, 10, 10]]


def test_one_group_has_one_scale_a_layer():
    vectors = heads(GroupNormalJeffreys())
    expected = [[None, 3], [12, None], [6, None]]
    assert [sizes((layer.in_scale, layer.out_scale)) for layer in vectors.means(embedding())] == expected
    for pair, numbers in zip(scales_of(vectors), expected, strict=True):
        assert sizes(None if scales is None else scales.logvar for scales in pair) == numbers


def test_a_horseshoe_has_two_numbers_a_scale_and_two_a_layer():
    vectors = heads(GroupHorseshoe())
    means = vectors.means(embedding())
    assert [sizes((layer.in_scale, layer.out_scale, layer.bias)) for layer in means] == [
        [None, 3, 3],
        [12, None, None],
        [6, None, 10],
    ]
    assert [sizes(None if scales is None else scales.part_means for scales in pair) for pair in scales_of(vectors)] == [
        [None, 8],
        [26, None],
        [14, None],
    ]


def test_single_weights_leave_the_biases_alone():
    net, vectors = pretrained(), heads(SparseVariationalDropout())
    assert scales_of(vectors) == ((None, None),) * 3
    assert tuple(vectors.log_dropouts(embedding())) == ((None, None),) * 3
    means = vectors.means(embedding())
    assert [sizes((layer.in_scale, layer.out_scale, layer.bias)) for layer in means] == [
        [None, None, 3],
        [None, None, None],
        [None, None, 10],
    ]
    assert torch.equal(means[2].bias, net[5].bias.expand(2, -1))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_rates_alone_and_means_alone_are_those_of_the_beliefs(family):
    vectors = heads(family)
    pairs, means = vectors.log_dropouts(embedding()), vectors.means(embedding())
    for (*scales, bias), pair, mean in zip(vectors.beliefs(embedding()), pairs, means, strict=True):
        assert bias is mean.bias is None or torch.equal(bias, mean.bias)
        for believed, alone, centre in zip(scales, pair, (mean.in_scale, mean.out_scale), strict=True):
            assert believed is alone is centre is None or (
                torch.equal(believed.mean, centre) and torch.equal(believed.log_dropout, alone)
            )


def test_log_variances_differ_between_contexts_once_maps_do():
    in_scale, _ = scales_of(heads(InputOutputNormalJeffreys()))[1]
    torch.testing.assert_close(in_scale.log_dropout, log_dropout(in_scale.mean, in_scale.logvar))
    assert (in_scale.logvar[0] != in_scale.logvar[1]).all()


def test_biases_start_as_they_were_in_every_context():
    net = pretrained()
    first, _, last = heads(InputOutputNormalJeffreys()).means(embedding())
    assert torch.equal(first.bias, net[0].bias.expand(2, -1))
    assert torch.equal(last.bias, net[5].bias.expand(2, -1))
