"""Attention of a sequence with itself, channels first; it mixes all channels of a token and is kept whole."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.layers.arguments import LARGEST_SIZE, Argument, Size, unknown
from bhc.layers.asked import FileReader, OnnxWriter
from bhc.layers.kind import Example, OfTokens, positive_sizes
from bhc.layers.shapes import Shape, bounded


class SelfAttention(nn.Module):
    """``nn.MultiheadAttention`` of a sequence with itself, for use: no dropout, no masks, no weights returned."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.channels, self.heads = channels, heads
        self.in_weight = nn.Parameter(torch.zeros(3 * channels, channels), requires_grad=False)
        self.in_bias = nn.Parameter(torch.zeros(3 * channels), requires_grad=False)
        self.out_weight = nn.Parameter(torch.zeros(channels, channels), requires_grad=False)
        self.out_bias = nn.Parameter(torch.zeros(channels), requires_grad=False)

    @classmethod
    def of(cls, module: nn.MultiheadAttention) -> "SelfAttention":
        attention = cls(module.embed_dim, module.num_heads)
        source: Any = module
        attention.in_weight.data = source.in_proj_weight.detach().clone()
        attention.out_weight.data = source.out_proj.weight.detach().clone()
        if source.in_proj_bias is not None:
            attention.in_bias.data = source.in_proj_bias.detach().clone()
            attention.out_bias.data = source.out_proj.bias.detach().clone()
        return attention

    def forward(self, x: Tensor) -> Tensor:
        mixed = F.conv1d(x, self.in_weight[..., None], self.in_bias)
        query, key, value = mixed.unflatten(1, (3, self.heads, -1)).mT.unbind(1)  # (N, heads, T, C of a head)
        attended = F.scaled_dot_product_attention(query, key, value)
        return F.conv1d(attended.mT.flatten(1, 2), self.out_weight[..., None], self.out_bias)

    def extra_repr(self) -> str:
        return f"{self.channels}, heads={self.heads}"


class SelfAttentionKind(OfTokens):
    """``SelfAttention``."""

    name, module, number = "self-attention", SelfAttention, 34
    arguments: ClassVar[Mapping[str, Argument]] = {"channels": Size(), "heads": Size()}
    weights = ("in_weight", "out_weight")

    def num_flops(self, module: SelfAttention, arriving: Sequence[Shape], leaving: Shape) -> int:
        """Two a weight and token, and two products of all tokens with all others over the channels."""
        examples, channels, tokens = leaving
        weights = module.in_weight.numel() + module.out_weight.numel()
        return 2 * examples * tokens * (weights + 2 * tokens * channels)

    def check(self, described: Mapping[str, Any]) -> None:
        positive_sizes(described, "channels", "channels")
        if described["channels"] % bounded(described["heads"]):
            raise ValueError(f"{described['channels']} channels for {described['heads']} heads")

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        if len(entry) != 2:
            raise unknown(entry)
        heads, tokens = entry[1], file.shape[-1]
        if type(heads) is not int or heads * tokens**2 > LARGEST_SIZE:
            raise ValueError(f"attention of {str(heads)[:60]} heads over {tokens} places")
        super().read(entry, file)

    def to_onnx(self, module: SelfAttention, name: str, writer: OnnxWriter) -> None:
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

    def examples(self) -> Sequence[Example]:
        attention = SelfAttention(4, 2)
        for numbers in attention.parameters():
            numbers.data.normal_(generator=torch.Generator().manual_seed(0))
        return [(attention, ((2, 4, 3),))]


def _product(writer: OnnxWriter, name: str, weight: Tensor, bias: Tensor) -> None:
    """A linear layer on the channels of each token."""
    kernel = writer.constant(f"{name}.weight", weight[..., None].numpy())
    writer.node("Conv", name, kernel, writer.constant(f"{name}.bias", bias.numpy()), kernel_shape=[1])


def _reshape(writer: OnnxWriter, name: str, *sizes: int) -> None:
    """A size of 0 is that of the batch, as it comes."""
    writer.node("Reshape", name, writer.constant(f"{name}.shape", np.array(sizes)))


KINDS = (SelfAttentionKind,)
