"""Networks for sounds and texts."""

import pytest
import torch

from bhc import models
from bhc.errors import BhcError
from bhc.graph import capture, find_layers, find_units
from bhc.layers import Embed

from .test_models import OTHERS, WORDS, built, stored


@pytest.mark.parametrize(("name", "weights"), [("speech-cnn", 137_360), ("text-cnn", WORDS * 64 + 64 * 128 * 3 + 1280)])
def test_their_weights(name: str, weights: int) -> None:
    shape, _ = OTHERS[name]
    graph = capture(built(name), stored(name, 1))
    layers = find_layers(graph, shape, find_units(graph, shape))
    assert sum(layer.num_weights for layer in layers) == weights


def test_padding_has_no_row_and_gives_nothing() -> None:
    embed = capture(built("text-cnn"), stored("text-cnn", 1)).steps[0].module
    assert isinstance(embed, Embed)
    assert embed.rows == WORDS
    assert not embed(torch.zeros(1, 40)).any()


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        *((models.speech_cnn, shape) for shape in ((2, 6_400), (1, 28, 28), (1, 900), (40,))),
        *((models.text_cnn, shape) for shape in ((2,), (1, 28, 28))),
    ],
)
def test_inputs_of_another_shape_are_refused(build, shape: tuple[int, ...]) -> None:
    with pytest.raises(BhcError, match="cnn takes"):
        build(image_shape=shape)
