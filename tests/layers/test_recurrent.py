"""A recurrence and the layer that drives it compute what torch's own layers compute."""

from typing import Any

import pytest
import torch
from torch import nn

from bhc.layers import Recurrence, RecurrentLayer, kind_of
from bhc.layers.sequences import CELLS, LONGEST_SEQUENCE

from ..graph.nets import seeded

LAYERS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
INPUTS, HIDDEN = 3, 4


def parts(layer: nn.RNNBase, cell: str, *, reverse: bool) -> tuple[nn.Linear, Recurrence]:
    """What drives a layer's recurrence, and the recurrence."""
    numbers, end = layer.state_dict(), "_reverse" if reverse else ""
    linear = nn.Linear(INPUTS, CELLS[cell].gates * HIDDEN, bias=layer.bias)
    recurrence = Recurrence(cell, HIDDEN, reverse, bias=layer.bias)
    for module, which in ((linear, "ih"), (recurrence, "hh")):
        module.weight.data = numbers[f"weight_{which}_l0{end}"]
        if layer.bias:
            module.bias.data = numbers[f"bias_{which}_l0{end}"]  # type: ignore[union-attr]
    return linear, recurrence


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "none"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("cell", CELLS)
def test_it_computes_what_torch_computes(cell: str, reverse: bool, bias: bool) -> None:
    layer: Any = LAYERS[cell](INPUTS, HIDDEN, batch_first=True, bidirectional=True, bias=bias)
    linear, recurrence = parts(layer, cell, reverse=reverse)
    x = seeded(2, 6, INPUTS)
    own = slice(HIDDEN, None) if reverse else slice(HIDDEN)
    torch.testing.assert_close(recurrence(linear(x)), layer(x)[0][..., own])
    torch.testing.assert_close(RecurrentLayer(linear, recurrence)(x), layer(x)[0][..., own])


@torch.no_grad()
@pytest.mark.parametrize("which", ["drive", "product"])
def test_a_bias_on_one_side_alone_is_taken_by_torch_s_kernel(which: str) -> None:
    linear = nn.Linear(INPUTS, 3 * HIDDEN, bias=which == "drive")
    recurrence = Recurrence("gru", HIDDEN, bias=which == "product")
    for numbers in recurrence.parameters():
        numbers.copy_(seeded(*numbers.shape))
    x = seeded(2, 6, INPUTS)
    torch.testing.assert_close(RecurrentLayer(linear, recurrence)(x), recurrence(linear(x)))


def test_states_are_added_up_in_single_precision() -> None:
    """A state of a thousand and a drive of one: in lower precision the sum would stand still."""
    recurrence = Recurrence("relu", 1, bias=False)
    recurrence.weight.data.fill_(1.0)
    given = recurrence(torch.ones(1, 1000, 1, dtype=torch.bfloat16))
    assert given.dtype == torch.float32
    assert float(given[0, -1]) == 1000.0


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 7), (2, 3, 5, 8), (2, LONGEST_SEQUENCE + 1, 8)], ids=str)
def test_what_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    module = Recurrence("lstm", 2)
    with pytest.raises(ValueError, match="Recurrence"):
        kind_of(module).output_shape(module, shape)


@pytest.mark.parametrize("described", [{"cell": "mamba"}, {"hidden": 1 << 20}, {"hidden": 0}], ids=str)
def test_what_is_no_description_is_refused(described: dict[str, Any]) -> None:
    kind = kind_of(Recurrence("gru", 2))
    with pytest.raises(ValueError, match=r"argument|layer"):
        kind.build(kind.describe(Recurrence("gru", 2)) | described)
