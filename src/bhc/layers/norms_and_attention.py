"""Norms, of channels by fixed numbers or of a token's channels, and attention of a sequence with itself.

What mixes all channels of a token is kept whole."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.layers.arguments import LARGEST_SIZE, Argument, Kept, Positive, Shape, Size, bounded, must_fit, unknown
from bhc.layers.kind import Example, OfChannels, OfTokens, picked
from bhc.layers.protocols import FileReader, OnnxWriter, UnitSearch


class Affine(nn.Module):
    """``a x + b``, two numbers a channel: a batch norm that no layer could take in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.weight = nn.Parameter(torch.ones(channels), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(channels), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *[1] * (x.dim() - 2))
        return x * self.weight.view(shape) + self.bias.view(shape)


class ChannelNorm(nn.Module):
    """``nn.LayerNorm`` over the channels of each place, channels first."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.channels, self.eps = channels, eps
        self.weight = nn.Parameter(torch.ones(channels), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(channels), requires_grad=False)

    @classmethod
    def of(cls, norm: nn.LayerNorm) -> "ChannelNorm":
        channel_norm = cls(norm.normalized_shape[0], norm.eps)
        if norm.weight is not None:
            channel_norm.weight.data = norm.weight.detach().clone()
        if norm.bias is not None:
            channel_norm.bias.data = norm.bias.detach().clone()
        return channel_norm

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.mT, (self.channels,), self.weight, self.bias, self.eps).mT

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps}"


class AffineKind(OfChannels):
    """``Affine``: its numbers go with their channels."""

    name, module, number, keeps_inputs_apart = "affine", Affine, 21, True
    arguments: ClassVar[Mapping[str, Argument]] = {"channels": Size()}

    def output_shape(self, module: Affine, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(len(shape) > 1 and shape[1] == module.channels, module, shape)
        return shape

    def follow(self, module: Affine, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        search.along(arriving[0], 1)
        return arriving[0]

    def narrowed(self, module: Affine, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        index = torch.from_numpy(leaving.index)
        smaller = Affine(len(index))
        smaller.weight, smaller.bias = picked(module.weight, index), picked(module.bias, index)
        return smaller

    def to_onnx(self, module: Affine, name: str, writer: OnnxWriter) -> None:
        shape = (-1, *[1] * (len(writer.arriving[name]) - 1))
        factor, shift = (numbers.numpy().reshape(shape) for numbers in (module.weight, module.bias))
        writer.node("Mul", f"{name}.scaled", writer.constant(f"{name}.weight", factor))
        writer.node("Add", name, writer.constant(f"{name}.bias", shift))

    def examples(self) -> Sequence[Example]:
        return [(Affine(3), ((2, 3, 4, 5),)), (Affine(3), ((2, 3),))]


class ChannelNormKind(OfTokens):
    """``ChannelNorm``: the mean and the spread are those of all channels, so none of them is cut."""

    name, module, number = "channel-norm", ChannelNorm, 33
    arguments: ClassVar[Mapping[str, Argument]] = {"channels": Size(), "eps": Positive()}

    def to_onnx(self, module: ChannelNorm, name: str, writer: OnnxWriter) -> None:
        numbers = [writer.constant(f"{name}.{key}", getattr(module, key).numpy()) for key in ("weight", "bias")]
        writer.node("Transpose", f"{name}.turned", perm=[0, 2, 1])
        writer.node("LayerNormalization", f"{name}.normal", *numbers, axis=-1, epsilon=float(module.eps))
        writer.node("Transpose", name, perm=[0, 2, 1])

    def examples(self) -> Sequence[Example]:
        return [(ChannelNorm(4, 1e-5), ((2, 4, 3),))]


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
    name, module, number = "self-attention", SelfAttention, 34
    arguments: ClassVar[Mapping[str, Argument]] = {"channels": Size(), "heads": Size()}
    weights = ("in_weight", "out_weight")

    def num_flops(self, module: SelfAttention, arriving: Sequence[Shape], leaving: Shape) -> int:
        """Two a weight and token, and two products of all tokens with all others over the channels."""
        examples, channels, tokens = leaving
        weights = module.in_weight.numel() + module.out_weight.numel()
        return 2 * examples * tokens * (weights + 2 * tokens * channels)

    def check(self, described: Mapping[str, Any]) -> None:
        bounded(described["channels"], described["channels"])
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
        channels, _ = writer.arriving[name]
        width = channels // module.heads
        _product(writer, f"{name}.mixed", module.in_weight, module.in_bias)
        _reshape(writer, f"{name}.heads", 0, 3, module.heads, width, -1)
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
        _reshape(writer, f"{name}.together", 0, channels, -1)
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


KINDS = (AffineKind, ChannelNormKind, SelfAttentionKind)
