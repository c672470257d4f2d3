import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bhc.errors import BhcError
from bhc.graph import capture, find_features, find_layers, find_units
from bhc.layers import Normalise

from .nets import net_of


def places(net, input_shape, features):
    graph = capture(net.eval(), torch.rand(2, *input_shape))
    layers = find_layers(graph, input_shape, find_units(graph, input_shape))
    found = find_features(graph, layers, input_shape, features)
    by_name = {layer.name: layer for layer in layers}
    for name, feature in found.items():
        assert len(feature) == len(by_name[name].reads)
    return {name: feature.tolist() for name, feature in found.items()}


def refused(net, input_shape, features):
    with pytest.raises(BhcError) as caught:
        places(net, input_shape, features)
    return caught.value


def dense(values, *before):
    return nn.Sequential(*before, nn.Flatten(), nn.Linear(values, 4), nn.ReLU(), nn.Linear(4, 2))


def maps(channels, *before, groups=1):
    return nn.Sequential(
        *before,
        nn.Conv2d(channels, 4, 3, groups=groups),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )


def test_a_linear_layer_after_a_flatten_reads_each_value_by_itself():
    assert places(dense(12), (1, 3, 4), (1, 3, 4)) == {"1": list(range(12))}


def test_a_linear_layer_at_the_front_reads_each_value_by_itself():
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    assert places(net, (5,), (5,)) == {"0": list(range(5))}


def test_a_linear_layer_reads_all_values_of_a_channel():
    assert places(dense(12), (3, 2, 2), (3,)) == {"1": [0] * 4 + [1] * 4 + [2] * 4}


def test_a_convolution_reads_channels():
    assert places(maps(3), (3, 5, 5), (3,)) == {"0": [0, 1, 2]}


def test_a_convolution_over_sequences_reads_channels():
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2))
    assert places(net, (2, 8), (2,)) == {"0": [0, 1]}


@pytest.mark.parametrize("before", [Normalise([5.0] * 3, [2.0] * 3), nn.Identity(), nn.Dropout()], ids=repr)
def test_what_changes_values_each_by_itself_may_come_before(before):
    assert list(places(maps(3, before), (3, 5, 5), (3,)).values()) == [[0, 1, 2]]
    assert list(places(dense(12, before), (3, 2, 2), (3, 2, 2)).values()) == [list(range(12))]


def test_a_batch_norm_may_come_before():
    assert list(places(maps(3, nn.BatchNorm2d(3)), (3, 5, 5), (3,)).values()) == [[0, 1, 2]]


@pytest.mark.parametrize("before", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.ReLU()], ids=repr)
def test_what_mixes_or_bends_values_before_any_weights_is_refused_by_name(before):
    error = refused(dense(12, before), (3, 4, 4) if not isinstance(before, nn.ReLU) else (3, 2, 2), (3,))
    assert f"layer '0' ({type(before).__name__}) reads the input before any layer with weights" in error.problem
    assert "begins with a linear layer, a convolution or an embedding" in error.hint


def test_a_convolution_in_groups_is_refused():
    error = refused(maps(4, groups=2), (4, 5, 5), (4,))
    assert error.problem == "layer '0' is a convolution: it reads whole channels, in groups"


def test_single_values_of_a_convolution_are_refused_with_what_to_give():
    error = refused(maps(3), (3, 5, 5), (3, 5, 5))
    assert error.problem == "layer '0' is a convolution: it reads whole channels"
    assert "FeatureSubsets((3,))" in error.hint


@pytest.mark.parametrize("features", [(2,), (2, 3), (4, 3), (12,), (1, 3, 4, 1)])
def test_features_of_another_shape_are_refused_with_both_that_fit(features):
    error = refused(dense(12), (1, 3, 4), features)
    assert error.problem == f"features of shape {features}, and the network takes inputs of shape (1, 3, 4)"
    assert "(1, 3, 4), every value, or (1,), the channels" in error.hint


def test_two_layers_that_read_the_input_both_go_without():
    def forward(net, x):
        return net.end(F.relu(net.left(x)) + F.relu(net.right(x)))

    net = net_of(forward, left=nn.Linear(3, 4), right=nn.Linear(3, 4), end=nn.Linear(4, 2))
    assert places(net, (3,), (3,)) == {"left": [0, 1, 2], "right": [0, 1, 2]}


def test_an_input_that_is_added_to_what_was_made_of_it_is_refused():
    net = net_of(lambda net, x: net.end(F.relu(x + net.first(x))))
    assert "reads the input before any layer with weights" in refused(net, (4,), (4,)).problem
