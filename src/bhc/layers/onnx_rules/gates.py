"""Recurrent layers, LSTM, GRU and plain ones, and single steps of such."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bhc.layers.onnx_rules.node_call import NodeCall, rule

# torch's gates in the order in which ONNX has them: input, output, forget, cell; update, reset, new.
ORDERS = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


@rule("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def recurrent(call: NodeCall) -> str:
    """A node for each layer; the states of all layers lie one after the other."""
    if len(call.shape("input")) != 3 or (call.plain("train") and call.plain("dropout")):
        raise call.no_form("it reads no batch, or drops numbers at random")
    x, turned, ends = call.operand("input"), call.plain("batch_first"), []
    x = call.node("Transpose", x, perm=[1, 0, 2]) if turned else x
    directions = 1 + call.plain("bidirectional")
    for layer, numbers in enumerate(_layers(call, directions)):
        first = layer * directions
        begin = [call.node("Slice", state, [first], [first + directions], [0]) for state in _states(call)]
        given, *end = _layer(call, x, begin, numbers)
        # (T, directions, N, H) -> (T, N, directions H)
        width = directions * numbers[0][1].shape[-1]
        x = call.node("Reshape", call.node("Transpose", given, perm=[0, 2, 1, 3]), [0, 0, width])
        ends.append(end)
    if call.module.pick:
        return call.node("Concat", *[end[call.module.pick - 1] for end in ends], axis=0)
    return call.node("Transpose", x, perm=[1, 0, 2]) if turned else x


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(call: NodeCall) -> str:
    """A sequence of one."""
    names = [name for name in ("w_ih", "w_hh", "b_ih", "b_hh") if call.argument(name) is not None]
    x, *begin = (call.node("Unsqueeze", value, [0]) for value in (call.operand("input"), *_states(call)))
    _, *end = _layer(call, x, begin, [_own(call, [call.argument(name) for name in names])])
    return call.node("Squeeze", end[call.module.pick or 0], [0])


def _states(call: NodeCall) -> list[str]:
    """What it begins with: an LSTM has two."""
    given = call.argument("hx")
    return [call.operand(state) for state in (given if isinstance(given, list) else [given])]


def _own(call: NodeCall, arguments: Sequence[Any]) -> list[Tensor]:
    numbers = [call.own(argument) for argument in arguments]
    if any(each is None for each in numbers):
        raise call.no_form("its numbers are not its own")
    return [each.float() for each in numbers if each is not None]


def _layers(call: NodeCall, directions: int) -> list[list[list[Tensor]]]:
    """The numbers of each direction of each layer: weights of inputs, of states, and both biases if there are any."""
    numbers, count = _own(call, call.argument("params")), 2 + 2 * call.plain("has_biases")
    if len(numbers) != call.plain("num_layers") * directions * count:
        raise call.no_form("it has more numbers than those of its gates")
    each = [numbers[start : start + count] for start in range(0, len(numbers), count)]
    return [each[start : start + directions] for start in range(0, len(each), directions)]


def _layer(call: NodeCall, x: str, begin: Sequence[str], numbers: Sequence[Sequence[Tensor]]) -> list[str]:
    """All of its states, and the last ones."""
    op = call.module.op
    kind = "LSTM" if "lstm" in op else "GRU" if "gru" in op else "RNN"
    own: dict[str, Any] = {"hidden_size": numbers[0][1].shape[-1]}
    own |= {"direction": "bidirectional"} if len(numbers) == 2 else {}
    own |= {"linear_before_reset": 1} if kind == "GRU" else {}
    own |= {"activations": ["Tanh" if "tanh" in op else "Relu"] * len(numbers)} if kind == "RNN" else {}
    weights, states, *biases = (_arranged(each, ORDERS[kind]) for each in zip(*numbers, strict=True))
    bias = np.concatenate(biases, axis=1) if biases else None
    return call.nodes(kind, 1 + len(begin), x, weights, states, bias, None, *begin, **own)


def _arranged(numbers: Sequence[Tensor], order: Sequence[int]) -> np.ndarray:  # (directions, gates H, ...)
    """Those of all directions, the gates in another order."""
    apart = [each.unflatten(0, (len(order), -1))[list(order)].flatten(0, 1) for each in numbers]
    return torch.stack(apart).numpy()
