"""What all models have in common, by name."""

import pytest
import torch
from torch import nn

from bhc import models
from bhc.errors import BhcError

IMAGES, WORDS = (3, 32, 32), 3_297
OTHERS = {"speech-cnn": ((1, 6_400), 32_768.0), "text-cnn": ((40,), float(WORDS))}  # no images: shapes and scales
OF_IMAGES = [name for name in models.NAMES if name not in OTHERS]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def built(name, **options):
    shape, scale = OTHERS.get(name, (IMAGES, 255.0))
    return models.build(name, image_shape=shape, num_classes=10, rng=rng(), **{"full_scale": scale} | options).eval()


def stored(name, count=2):
    """Pixels, samples of sound or words."""
    if name in OF_IMAGES:
        return torch.randint(0, 256, (count, *IMAGES), generator=rng(1), dtype=torch.uint8)
    least, dtype = (0, torch.int32) if name == "text-cnn" else (-20_000, torch.int16)
    shape, scale = OTHERS[name]
    return torch.randint(least, int(min(scale, 20_000)), (count, *shape), generator=rng(1)).to(dtype)


@pytest.mark.parametrize("call", [models.check, models.outline, models.std_limits])
def test_an_unknown_model_is_answered_with_the_known_ones(call):
    with pytest.raises(BhcError, match="'lenet'") as caught:
        call("lenet")
    assert all(name in caught.value.hint for name in models.NAMES)
    with pytest.raises(BhcError, match="'lenet'"):
        models.build("lenet", image_shape=(1, 28, 28), num_classes=10)


@pytest.mark.parametrize("name", models.NAMES)
def test_what_is_stored_goes_in_and_the_generator_decides_the_weights(name):
    net, x = built(name), stored(name)
    with torch.no_grad():
        assert net(x).shape == (2, 10)
        assert torch.equal(built(name)(x.float()), net(x))


@pytest.mark.parametrize("name", OF_IMAGES)
def test_the_scale_belongs_to_the_network(name):
    x = stored(name)
    with torch.no_grad():
        expected = built(name)(x)
        torch.testing.assert_close(built(name, full_scale=1.0)(x / 255), expected, rtol=1e-4, atol=1e-4)


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
    net = built(name).train()
    deviations = []
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda module, given, result: deviations.append(float(result.std())))
    with torch.no_grad():
        net(stored(name, 16))
    assert min(deviations) > 0.2
    assert max(deviations) < 5


@pytest.mark.parametrize("name", models.NAMES)
def test_one_limit_a_layer(name):
    kinds = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Embedding
    layers = [module for module in models.outline(name).modules() if isinstance(module, kinds)]
    assert len(models.std_limits(name)) == len(layers)


def test_the_limits_of_the_paper_and_of_texts():
    assert models.std_limits("lenet-300-100") == (0.2, None, None)
    assert models.std_limits("lenet-5-caffe") == (0.5, None, None, None)
    assert models.std_limits("vgg") == (*[0.1] * 4, *[0.2] * 3, *[None] * 9)
    assert set(models.std_limits("resnet-56")) == {None}
    assert models.std_limits("text-cnn") == (0.1, 0.1, None)


def test_an_outline_has_no_memory():
    assert {parameter.device.type for parameter in models.outline("vgg").parameters()} == {"meta"}
