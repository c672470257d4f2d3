"""Sequences in ONNX: embeddings, norms and attention, channels first as in the graph."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from bhc.graph import ChannelNorm, Embed, FlattenPlaces, SelfAttention, Shift

INT64 = 7  # onnx.TensorProto.INT64


def _embed(writer: Any, name: str, module: Embed) -> None:
    """A column of zeros beside the weights, for words without a row.

    Numbers of no word are out of range and make a runtime stop; those under zero would count from the end.
    """
    weight, words = writer.weight(name, module), writer.value
    writer.side_node("Pad", f"{name}.table", weight, writer.constant(f"{name}.pads", np.array([0, 0, 0, 1])))
    writer.side_node("Cast", f"{name}.numbers", words, to=INT64)
    zero, beyond = (
        writer.constant(f"{name}.{key}", np.array(number)) for key, number in (("zero", 0), ("beyond", module.count))
    )
    writer.side_node("Less", f"{name}.negative", f"{name}.numbers", zero)
    writer.side_node("Where", f"{name}.words", f"{name}.negative", beyond, f"{name}.numbers")
    rows = writer.constant(f"{name}.index", module.index.numpy())
    writer.side_node("Gather", f"{name}.rows", rows, f"{name}.words")
    writer.side_node("Gather", f"{name}.columns", f"{name}.table", f"{name}.rows", axis=1)
    writer.value = f"{name}.columns"
    writer.node("Transpose", name, perm=[1, 0, 2])


def _channel_norm(writer: Any, name: str, module: ChannelNorm) -> None:
    numbers = [writer.constant(f"{name}.{key}", getattr(module, key).numpy()) for key in ("weight", "bias")]
    writer.node("Transpose", f"{name}.turned", perm=[0, 2, 1])
    writer.node("LayerNormalization", f"{name}.normal", *numbers, axis=-1, epsilon=float(module.eps))
    writer.node("Transpose", name, perm=[0, 2, 1])


def _self_attention(writer: Any, name: str, module: SelfAttention) -> None:
    """``V softmax(Q^T K / sqrt(d))^T`` for each head, between two products over the channels."""
    channels, tokens = writer.arriving[name]
    width = channels // module.heads
    _product(writer, f"{name}.mixed", module.in_weight, module.in_bias)
    _reshape(writer, f"{name}.heads", 0, 3, module.heads, width, tokens)
    heads = writer.value
    for place, key in enumerate(("query", "key", "value")):
        index = writer.constant(f"{name}.{key}.place", np.array([place]))
        writer.side_node("Gather", f"{name}.{key}", heads, index, axis=1)
    writer.side_node("Transpose", f"{name}.asked", f"{name}.query", perm=[0, 1, 2, 4, 3])
    writer.value = f"{name}.asked"
    writer.node("MatMul", f"{name}.products", f"{name}.key")
    writer.node("Mul", f"{name}.scores", writer.number(f"{name}.scale", width**-0.5))
    writer.node("Softmax", f"{name}.shares", axis=-1)
    writer.side_node("Transpose", f"{name}.given", writer.value, perm=[0, 1, 2, 4, 3])
    writer.value = f"{name}.value"
    writer.node("MatMul", f"{name}.attended", f"{name}.given")
    _reshape(writer, f"{name}.together", 0, channels, tokens)
    _product(writer, name, module.out_weight, module.out_bias)


def _product(writer: Any, name: str, weight: Tensor, bias: Tensor) -> None:
    """A linear layer on the channels of each token."""
    kernel = writer.constant(f"{name}.weight", weight[..., None].numpy())
    writer.node("Conv", name, kernel, writer.constant(f"{name}.bias", bias.numpy()), kernel_shape=[1])


def _reshape(writer: Any, name: str, *sizes: int) -> None:
    """A size of 0 is that of the batch, as it comes."""
    writer.node("Reshape", name, writer.constant(f"{name}.shape", np.array(sizes)))


def _flatten_places(writer: Any, name: str, _: FlattenPlaces) -> None:
    _reshape(writer, name, 0, writer.arriving[name][0], -1)


def _shift(writer: Any, name: str, module: Shift) -> None:
    writer.node("Add", name, writer.constant(f"{name}.bias", module.bias.numpy()))


TOKEN_RULES: dict[type[nn.Module], Callable[..., None]] = {
    Embed: _embed,
    ChannelNorm: _channel_norm,
    SelfAttention: _self_attention,
    FlattenPlaces: _flatten_places,
    Shift: _shift,
}
