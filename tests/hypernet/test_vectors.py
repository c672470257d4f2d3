import torch

from bhc.graph import find_layers
from bhc.hypernet import Initial
from bhc.hypernet.vectors import VectorHeads
from bhc.posterior import GroupNormalJeffreys, InputOutputNormalJeffreys, log_dropout

from .toys import pretrained, seeded

WIDTH = 5


def heads(family, initial=None):
    layers = find_layers(pretrained(), torch.zeros(1, 1, 4, 4))
    return VectorHeads(layers, family, initial or Initial(), width=WIDTH, generator=seeded())


def embedding(count=2):
    return torch.randn(count, WIDTH, generator=seeded(1))


def sizes(vectors):
    return [None if vector is None else vector.shape[1] for vector in vectors]


def test_two_groups_have_both_scales_and_the_biases_that_the_network_has():
    means = heads(InputOutputNormalJeffreys()).means(embedding())
    given = [sizes((layer.in_scale, layer.out_scale, layer.bias)) for layer in means]
    assert given == [[1, 3, 3], [12, 6, None], [6, 10, 10]]


def test_one_group_has_one_scale_a_layer():
    vectors = heads(GroupNormalJeffreys())
    expected = [[None, 3], [12, None], [6, None]]
    assert [sizes((layer.in_scale, layer.out_scale)) for layer in vectors.means(embedding())] == expected
    assert [sizes(pair) for pair in vectors.logvars(embedding())] == expected
    dropouts = vectors.dropouts(embedding())
    assert [sizes((layer.in_log_dropout, layer.out_log_dropout)) for layer in dropouts] == expected


def test_dropout_rates_are_those_of_the_means_and_log_variances():
    vectors = heads(InputOutputNormalJeffreys())
    for mean, (in_logvar, out_logvar), dropout in zip(
        vectors.means(embedding()), vectors.logvars(embedding()), vectors.dropouts(embedding()), strict=True
    ):
        torch.testing.assert_close(dropout.in_log_dropout, log_dropout(mean.in_scale, in_logvar))
        torch.testing.assert_close(dropout.out_log_dropout, log_dropout(mean.out_scale, out_logvar))


def test_biases_start_as_they_were_in_every_context():
    net = pretrained()
    first, _, last = heads(InputOutputNormalJeffreys()).means(embedding())
    assert torch.equal(first.bias, net[0].bias.expand(2, -1))
    assert torch.equal(last.bias, net[5].bias.expand(2, -1))
