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


BOTH = net_of(
    lambda net, x: net.end(F.relu(net.left(x)) + F.relu(net.right(x))),
    left=nn.Linear(3, 4),
    right=nn.Linear(3, 4),
    end=nn.Linear(4, 2),
)
READ = {
    "each value after a flatten": (dense(12), (1, 3, 4), (1, 3, 4), {"1": list(range(12))}),
    "each value at the front": (nn.Sequential(nn.Linear(5, 2)), (5,), (5,), {"0": list(range(5))}),
    "all values of a channel": (dense(12), (3, 2, 2), (3,), {"1": [0] * 4 + [1] * 4 + [2] * 4}),
    "channels": (maps(3), (3, 5, 5), (3,), {"0": [0, 1, 2]}),
    "channels after a batch norm": (maps(3, nn.BatchNorm2d(3)), (3, 5, 5), (3,), {"1": [0, 1, 2]}),
    "channels of sequences": (
        nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)),
        (2, 8),
        (2,),
        {"0": [0, 1]},
    ),
    "the same by two layers": (BOTH, (3,), (3,), {"left": [0, 1, 2], "right": [0, 1, 2]}),
}


@pytest.mark.parametrize(("net", "input_shape", "features", "read"), READ.values(), ids=READ)
def test_what_the_first_layers_read(net, input_shape, features, read):
    assert places(net, input_shape, features) == read


@pytest.mark.parametrize("before", [Normalise([5.0] * 3, [2.0] * 3), nn.Identity(), nn.Dropout()], ids=repr)
def test_what_changes_values_each_by_itself_may_come_before(before):
    assert list(places(maps(3, before), (3, 5, 5), (3,)).values()) == [[0, 1, 2]]
    assert list(places(dense(12, before), (3, 2, 2), (3, 2, 2)).values()) == [list(range(12))]


@pytest.mark.parametrize("before", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.ReLU()], ids=repr)
def test_what_mixes_or_bends_values_before_any_weights_is_refused_by_name(before):
    error = refused(dense(12, before), (3, 4, 4) if not isinstance(before, nn.ReLU) else (3, 2, 2), (3,))
    assert f"layer '0' ({type(before).__name__}) reads the input before any layer with weights" in error.problem
    assert "begins with a linear layer, a convolution or an embedding" in error.hint


def test_groups_and_single_values_of_a_convolution_are_refused_with_what_to_give():
    error = refused(maps(4, groups=2), (4, 5, 5), (4,))
    assert error.problem == "layer '0' is a convolution: it reads whole channels, in groups"
    error = refused(maps(3), (3, 5, 5), (3, 5, 5))
    assert error.problem == "layer '0' is a convolution: it reads whole channels"
    assert "FeatureSubsets((3,))" in error.hint


@pytest.mark.parametrize("features", [(2,), (2, 3), (4, 3), (12,), (1, 3, 4, 1)])
def test_features_of_another_shape_are_refused_with_both_that_fit(features):
    error = refused(dense(12), (1, 3, 4), features)
    assert error.problem == f"features of shape {features}, and the network takes inputs of shape (1, 3, 4)"
    assert "(1, 3, 4), every value, or (1,), the channels" in error.hint


def test_an_input_that_is_added_to_what_was_made_of_it_is_refused():
    net = net_of(lambda net, x: net.end(F.relu(x + net.first(x))))
    assert "reads the input before any layer with weights" in refused(net, (4,), (4,)).problem
