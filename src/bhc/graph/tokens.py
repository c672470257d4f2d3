"""Sequences with channels first, (N, C, T): a token is a place, and a linear layer on tokens a convolution.

Where tokens are words, whole numbers come in, and an embedding has a row of weights for each.

What mixes all channels of a token, norms and attention, is kept whole: its channels are never cut.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.errors import BhcError


class Embed(nn.Module):
    """``nn.Embedding`` with channels first: (N, T) whole numbers under ``count`` -> (N, C, T).

    A layer with weights (C, rows): words are its inputs, of which each token has one, and columns are its units. Words
    without a row give zeros: padding, and those that a context has not.
    """

    index: Tensor  # (count,) the row of each word; ``rows`` for those that have none
    bias: None

    def __init__(self, count: int, rows: int, channels: int) -> None:
        super().__init__()
        if not 0 < rows <= count:
            raise ValueError(f"{rows} rows for {count} words")
        self.count, self.rows, self.channels = count, rows, channels
        self.weight = nn.Parameter(torch.zeros(channels, rows), requires_grad=False)
        self.register_parameter("bias", None)
        self.register_buffer("index", torch.arange(count).clamp(max=rows))

    @classmethod
    def of(cls, module: nn.Embedding) -> "Embed":
        weight, padding = module.weight.detach(), module.padding_idx
        words = torch.arange(len(weight))
        if padding is not None and not weight[padding].any():
            words = words[words != padding]
        embed = cls(len(weight), len(words), weight.shape[1])
        embed.weight.data = weight[words].mT.contiguous()
        embed.has_rows_(words)
        return embed

    @property
    def words(self) -> Tensor:  # (rows,)
        """The word of each row."""
        return (self.index < self.rows).nonzero().flatten()

    def has_rows_(self, words: Tensor) -> None:
        """These words, ascending, have the rows; all others have none."""
        self.rows = len(words)
        self.index = torch.full_like(self.index, self.rows)
        self.index[words] = torch.arange(self.rows, device=self.index.device)

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(self.rows_of(x), F.pad(self.weight, (0, 1)).mT).mT

    def check_words(self, x: Tensor) -> None:
        """Raise where a number stands for no word."""
        wrong = x[(x < 0) | (x >= self.count)]
        if len(wrong):
            raise BhcError(
                f"the number {wrong[0]:g} stands for no word; there are {self.count:,}",
                hint="make inputs with the vocabulary of the run: model.vocabulary.encode(texts)",
            )

    def rows_of(self, x: Tensor) -> Tensor:
        """The row of each word, ``rows`` for those that have none. In brackets a number under zero would do too."""
        return F.embedding(x.long(), self.index[:, None])[..., 0]

    def extra_repr(self) -> str:
        return f"{self.rows} of {self.count} words, {self.channels}"


class FlattenPlaces(nn.Module):
    """All directions in space as one: (N, C, ...) -> (N, C, T)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2)


class ChannelNorm(nn.Module):
    """``nn.LayerNorm`` over the channels of each place."""

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


class Shift(nn.Module):
    """A learned number for each channel and place, added: where a token stands."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.bias = nn.Parameter(torch.zeros(self.shape), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias

    @property
    def size(self) -> int:
        return prod(self.shape)

    def extra_repr(self) -> str:
        return f"shape={self.shape}"


def as_convolution(linear: nn.Linear) -> nn.Conv1d:
    """A linear layer on each token."""
    convolution = nn.Conv1d(linear.in_features, linear.out_features, 1, bias=linear.bias is not None)
    convolution.weight.data = linear.weight.detach()[..., None].clone()
    if linear.bias is not None and convolution.bias is not None:
        convolution.bias.data = linear.bias.detach().clone()
    return convolution.requires_grad_(False)
