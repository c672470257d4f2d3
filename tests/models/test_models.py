"""What all models have in common, by name."""

import pytest
import torch
from torch import fx, nn

from bhc import models
from bhc.errors import BhcError

LAYERS = {
    "lenet-300-100": 3,
    "lenet-5-caffe": 4,
    "vgg": 16,
    "resnet-20": 20,
    "resnet-32": 32,
    "resnet-44": 44,
    "resnet-56": 56,
    "speech-cnn": 4,
    "text-cnn": 3,
}
IMAGES = (3, 32, 32)
OF_IMAGES = [name for name in LAYERS if name not in ("speech-cnn", "text-cnn")]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def built(name, **options):
    return models.build(name, image_shape=IMAGES, num_classes=10, rng=rng(), **options).eval()


def pixels(count=2):
    return torch.randint(0, 256, (count, *IMAGES), generator=rng(1), dtype=torch.uint8)


def test_the_names():
    assert tuple(LAYERS) == models.NAMES


@pytest.mark.parametrize("call", [models.check, models.outline, models.std_limits])
def test_an_unknown_model_is_answered_with_the_known_ones(call):
    with pytest.raises(BhcError, match="unknown model 'lenet'") as caught:
        call("lenet")
    assert all(name in caught.value.hint for name in models.NAMES)
    with pytest.raises(BhcError, match="unknown model 'lenet'"):
        models.build("lenet", image_shape=(1, 28, 28), num_classes=10)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_stored_pixels_go_in_and_the_scale_belongs_to_the_network(name):
    x = pixels()
    with torch.no_grad():
        expected = built(name)(x)
        assert expected.shape == (2, 10)
        assert torch.equal(built(name)(x.float()), expected)
        torch.testing.assert_close(built(name, full_scale=1.0)(x / 255), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_torch_fx_traces_it(name):
    net = built(name)
    with torch.no_grad():
        torch.testing.assert_close(fx.symbolic_trace(net)(pixels()), net(pixels()))


@pytest.mark.parametrize("name", OF_IMAGES)
def test_the_generator_decides_the_weights(name):
    first, second = built(name).state_dict(), built(name).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("lenet-300-100", [[-0.03541, -0.02817], [-0.05391, 0.05093], [0.0292, -0.0195]]),
        ("lenet-5-caffe", [[-0.19829, -0.15777], [-0.03979, -0.03848], [0.00205, -0.02829], [0.03593, -0.00057]]),
    ],
)
def test_the_lenets_start_where_they_always_did(name, start):
    """Results were measured from these weights: the first two of each layer."""
    net = models.build(name, image_shape=(1, 28, 28), num_classes=10, rng=rng(3))
    weights = [tensor for key, tensor in net.state_dict().items() if key.endswith("weight")]
    torch.testing.assert_close(
        torch.stack([each.flatten()[:2] for each in weights]), torch.tensor(start), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", ["vgg", "resnet-20"])
def test_activations_neither_die_nor_explode_at_the_start(name):
    net = models.build(name, image_shape=IMAGES, num_classes=10, rng=rng()).train()
    deviations = []
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda module, given, result: deviations.append(float(result.std())))
    with torch.no_grad():
        net(pixels(16))
    assert min(deviations) > 0.2
    assert max(deviations) < 5


@pytest.mark.parametrize(("name", "count"), LAYERS.items())
def test_one_limit_a_layer(name, count):
    assert len(models.std_limits(name)) == count


def test_the_limits_of_the_paper():
    assert models.std_limits("lenet-300-100") == (0.2, None, None)
    assert models.std_limits("lenet-5-caffe") == (0.5, None, None, None)
    assert models.std_limits("vgg") == (*[0.1] * 4, *[0.2] * 3, *[None] * 9)
    assert set(models.std_limits("resnet-56")) == {None}


def test_every_limit_names_a_layer():
    for name, limits in models.STD_LIMITS.items():
        layers = dict(models.outline(name).named_modules())
        assert all(isinstance(layers[layer], models.WEIGHTED) for layer in limits)


def test_an_outline_has_no_memory():
    assert {parameter.device.type for parameter in models.outline("vgg").parameters()} == {"meta"}
