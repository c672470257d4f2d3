import pytest
import torch
from torch import nn

from bhc.errors import BhcError
from bhc.graph import INPUT, Graph, Layer, Step, check_outputs, find_layers, find_units
from bhc.layers import Add
from bhc.models import lenet_5_caffe

from ..formats.graphs import chain_of

MNIST = (1, 28, 28)


def layers_of(net: nn.Module, shape: tuple[int, ...] = MNIST) -> tuple[Layer, ...]:
    graph = net if isinstance(net, Graph) else chain_of(net)
    return find_layers(graph, shape, find_units(graph, shape))


def positions(layer: Layer) -> int:
    """How often each unit is read."""
    _, counts = layer.reads.unique(return_counts=True)
    assert len(set(counts.tolist())) == 1
    return int(counts[0])


def test_lenet_5_caffe() -> None:
    graph = chain_of(lenet_5_caffe())
    layers = layers_of(graph)
    assert all(layer.module is graph.get_submodule(layer.name) for layer in layers)
    assert [layer.name for layer in layers] == ["conv1", "conv2", "fc1", "fc2"]
    assert [layer.weight_shape for layer in layers] == [(20, 1, 5, 5), (50, 20, 5, 5), (500, 800), (10, 500)]
    assert [layer.has_kernel for layer in layers] == [True, True, False, False]
    assert [positions(layer) for layer in layers] == [1, 1, 16, 1]
    assert [layer.output_area for layer in layers] == [24 * 24, 8 * 8, 1, 1]
    assert [layer.kernel_area for layer in layers] == [25, 25, 1, 1]
    assert [layer.width for layer in layers] == [20, 50, 800, 500]
    assert [layer.num_weights for layer in layers] == [500, 25_000, 400_000, 5_000]
    assert sum(layer.num_weights for layer in layers) == 430_500


def test_sizes_of_a_grouped_convolution_are_those_of_one_group() -> None:
    net = nn.Sequential(nn.Conv1d(6, 9, 5, groups=3), nn.Flatten(), nn.Linear(36, 2))
    layer, _ = layers_of(net, (6, 8))
    assert (layer.groups, layer.num_inputs, layer.num_outputs, len(layer.reads)) == (3, 2, 9, 6)
    assert (layer.kernel_area, layer.output_area) == (5, 4)
    assert layer.num_weights == 9 * 2 * 5
    keep_in, keep_out = (torch.tensor([[bool(int(digit)) for digit in digits]]) for digits in ("100001", "110000101"))
    assert layer.kept_weights(keep_in, keep_out).tolist() == [4 * 5], "an input of a group counts with its own outputs"


def test_places_are_counted_and_a_single_one_may_give_the_classes() -> None:
    (layer,) = layers_of(nn.Sequential(nn.Conv2d(1, 2, 28), nn.Flatten()))
    assert layer.output_area == 1
    net = nn.Sequential(nn.Conv3d(1, 2, (1, 2, 3)), nn.Flatten(), nn.Linear(2 * 4 * 3 * 2, 2))
    layer, _ = layers_of(net, (1, 4, 4, 4))
    assert (layer.kernel_area, layer.output_area) == (6, 24)
    assert layer.num_flops == 2 * 12 * 24


def test_the_input_itself_is_no_class() -> None:
    graph = Graph([Step("fc", nn.Linear(4, 4), (INPUT,)), Step("add", Add(), ("fc", INPUT))])
    units = find_units(graph, (4,))
    assert not units.outputs_are_free
    with pytest.raises(BhcError, match="class"):
        check_outputs(graph, (4,), units)
