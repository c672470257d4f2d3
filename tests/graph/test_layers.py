import pytest
import torch
from torch import nn

from bhc.errors import BhcError
from bhc.graph import find_layers
from bhc.models import lenet_5_caffe, lenet_300_100

MNIST = torch.zeros(1, 1, 28, 28)


def test_lenet_300_100():
    layers = find_layers(lenet_300_100(), MNIST)
    assert [layer.name for layer in layers] == ["fc1", "fc2", "fc3"]
    assert [layer.step for layer in layers] == [2, 4, 6]
    assert [(layer.num_inputs, layer.num_outputs) for layer in layers] == [(784, 300), (300, 100), (100, 10)]
    assert [layer.positions for layer in layers] == [1, 1, 1]
    assert [layer.output_area for layer in layers] == [1, 1, 1]
    assert not any(layer.is_convolution for layer in layers)
    assert sum(layer.num_weights for layer in layers) == 266_200


def test_lenet_5_caffe():
    layers = find_layers(lenet_5_caffe(), MNIST)
    assert [layer.name for layer in layers] == ["conv1", "conv2", "fc1", "fc2"]
    assert [layer.weight_shape for layer in layers] == [(20, 1, 5, 5), (50, 20, 5, 5), (500, 800), (10, 500)]
    assert [layer.is_convolution for layer in layers] == [True, True, False, False]
    assert [layer.positions for layer in layers] == [1, 1, 16, 1]
    assert [layer.output_area for layer in layers] == [24 * 24, 8 * 8, 1, 1]
    assert [layer.kernel_area for layer in layers] == [25, 25, 1, 1]
    assert [layer.num_weights for layer in layers] == [500, 25_000, 400_000, 5_000]
    assert sum(layer.num_weights for layer in layers) == 430_500


def test_layers_are_those_of_the_chain():
    chain = lenet_5_caffe()
    assert all(layer.module is chain[layer.step] for layer in find_layers(chain, MNIST))


def test_a_network_without_weights_is_refused():
    with pytest.raises(BhcError, match="no linear or convolution layer"):
        find_layers(nn.Sequential(nn.Flatten(), nn.ReLU()), MNIST)


@pytest.mark.parametrize(
    "chain",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 28), nn.Flatten()),
    ],
)
def test_a_network_that_ends_in_a_convolution_is_refused(chain):
    with pytest.raises(BhcError, match="must end in a linear layer"):
        find_layers(chain, MNIST)


def test_a_linear_layer_on_maps_is_refused():
    with pytest.raises(BhcError, match=r"layer '0' works on 4-dimensional batches, 2 are supported") as caught:
        find_layers(nn.Sequential(nn.Linear(28, 5), nn.Flatten()), MNIST)
    assert "flatten" in caught.value.hint


def test_a_convolution_without_a_batch_dimension_is_refused():
    with pytest.raises(BhcError, match=r"layer '0' works on 3-dimensional batches, 4 are supported"):
        find_layers(nn.Sequential(nn.Conv2d(1, 2, 3)), MNIST[0])
