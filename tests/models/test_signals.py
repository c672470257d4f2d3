"""Networks for sounds and texts."""

import pytest
import torch
from torch import nn

from bhc import models
from bhc.errors import BhcError
from bhc.graph import capture, find_layers, find_units
from bhc.layers import Embed

SHAPES = {"speech-cnn": (1, 6_400), "text-cnn": (40,)}


def built(name: str) -> nn.Sequential:
    classes, scale = (10, 32_768.0) if name == "speech-cnn" else (6, 3_297.0)
    return models.build(
        name,
        image_shape=SHAPES[name],
        num_classes=classes,
        full_scale=scale,
        rng=torch.Generator().manual_seed(0),
    ).eval()


def inputs(name: str, count: int = 3) -> torch.Tensor:
    draws = torch.Generator().manual_seed(1)
    if name == "speech-cnn":
        return torch.randint(-20_000, 20_000, (count, 1, 6_400), generator=draws).to(torch.int16)
    return torch.randint(0, 3_298, (count, 40), generator=draws).to(torch.int32)


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_stored_goes_in(name: str) -> None:
    net, x = built(name), inputs(name)
    with torch.no_grad():
        assert net(x).shape == (3, 10 if name == "speech-cnn" else 6)
        assert torch.equal(net(x.float()), net(x))


@pytest.mark.parametrize("name", SHAPES)
def test_the_generator_decides_the_weights(name: str) -> None:
    first, second = built(name).state_dict(), built(name).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(("name", "weights"), [("speech-cnn", 137_360), ("text-cnn", 3_297 * 64 + 64 * 128 * 3 + 768)])
def test_their_weights(name: str, weights: int) -> None:
    graph = capture(built(name), inputs(name, 1))
    layers = find_layers(graph, SHAPES[name], find_units(graph, SHAPES[name]))
    assert sum(layer.num_weights for layer in layers) == weights
    assert len(layers) == len(models.std_limits(name))


def test_padding_has_no_row_and_gives_nothing() -> None:
    graph = capture(built("text-cnn"), inputs("text-cnn", 1))
    embed = graph.steps[0].module
    assert isinstance(embed, Embed)
    assert embed.rows == 3_297
    assert not embed(torch.zeros(1, 40)).any()


@pytest.mark.parametrize("shape", [(2, 6_400), (1, 28, 28), (1, 900), (40,)])
def test_sounds_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BhcError, match="speech-cnn takes one channel of at least"):
        models.speech_cnn(image_shape=shape)


@pytest.mark.parametrize("shape", [(2,), (1, 28, 28)])
def test_texts_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BhcError, match="text-cnn takes texts of at least 3 words"):
        models.text_cnn(image_shape=shape)
