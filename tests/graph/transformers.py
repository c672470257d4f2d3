"""Transformers in the forms that people write them, small enough to be looked at number by number."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PLACES, INPUTS, CLASSES = 9, 6, 5


class RmsNorm(nn.Module):
    """Written by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain


def rotated(x: Tensor) -> Tensor:
    """Rotary positions: each number of the first half turns with one of the second."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2])[:, None] * torch.exp(-torch.arange(half).float())[None]
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * torch.cat([angles.cos()] * 2, -1) + turned * torch.cat([angles.sin()] * 2, -1)


class Attention(nn.Module):
    """Queries, keys and values by one layer (``fused``, ``chunked``) or three; by an operator or two products."""

    def __init__(self, width: int, heads: int, form: str, shared: int, options: set[str]) -> None:
        super().__init__()
        self.heads, self.shared, self.size, self.form, self.options = heads, shared, width // heads, form, options
        if form in ("fused", "chunked"):
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.query, self.key = nn.Linear(width, width), nn.Linear(width, shared * self.size)
            self.value = nn.Linear(width, shared * self.size)
        self.out = nn.Linear(width, width)
        if "normed" in options:
            self.query_norm, self.key_norm = nn.LayerNorm(self.size), nn.LayerNorm(self.size)
        self.bias = nn.Parameter(torch.randn(heads, PLACES, PLACES)) if "bias" in options else None

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        batch, places, _ = x.shape
        if self.form == "fused":
            return self.qkv(x).reshape(batch, places, 3, self.heads, self.size).permute(2, 0, 3, 1, 4).unbind(0)
        one = self.form == "chunked"
        parts = self.qkv(x).chunk(3, -1) if one else (self.query(x), self.key(x), self.value(x))
        return tuple(part.view(batch, places, -1, self.size).transpose(1, 2) for part in parts)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.parts(x)
        if "normed" in self.options:
            query, key = self.query_norm(query), self.key_norm(key)
        if "rotary" in self.options:
            query, key = rotated(query), rotated(key)
        return self.out(self.attended(query, key, value).transpose(1, 2).flatten(2))

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.form == "grouped":
            return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        if self.form != "products":
            return F.scaled_dot_product_attention(query, key, value, attn_mask=self.bias)
        times = self.heads // self.shared
        key, value = (each.repeat_interleave(times, 1) for each in (key, value))
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.size)
        return (scores if self.bias is None else scores + self.bias).softmax(-1) @ value


class Block(nn.Module):
    def __init__(self, width: int, heads: int, form: str, shared: int, options: set[str]) -> None:
        super().__init__()
        norm = RmsNorm if "rms" in options else nn.LayerNorm
        self.first, self.second, self.options = norm(width), norm(width), options
        self.attention = Attention(width, heads, form, shared, options)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gate = nn.Linear(width, 2 * width) if "gated" in options else None

    def think(self, x: Tensor) -> Tensor:
        wide = F.gelu(self.wide(x)) if self.gate is None else F.silu(self.gate(x)) * self.wide(x)
        return self.narrow(wide)

    def forward(self, x: Tensor) -> Tensor:
        if "post" in self.options:
            x = self.first(x + self.attention(x))
            return self.second(x + self.think(x))
        x = x + self.attention(self.first(x))
        return x + self.think(self.second(x))


class Transformer(nn.Module):
    """(N, PLACES, INPUTS) -> (N, CLASSES)."""

    def __init__(self, form: str = "apart", *options: str, width: int = 12, heads: int = 3, shared: int = 3) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(INPUTS, width), nn.Parameter(torch.randn(PLACES, width))
        blocks = (Block(width, heads, form, shared, set(options)) for _ in range(2))
        layers = (
            nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.blocks = nn.Sequential(*(layers if form == "torch" else blocks))
        self.norm, self.end = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.norm(self.blocks(self.embed(x) + self.places)).mean(1))


FORMS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "three layers": (("apart",), {}),
    "norms behind sums": (("apart", "post"), {}),
    "one layer": (("fused",), {}),
    "one layer in pieces": (("chunked",), {}),
    "torch's own": (("torch",), {}),
    "two products": (("products",), {}),
    "two products and a bias": (("products", "bias"), {}),
    "a bias for each head": (("apart", "bias"), {}),
    "a norm of each head": (("apart", "normed"), {}),
    "rotary, gated, root mean squares": (("apart", "rotary", "gated", "rms"), {}),
    "keys that heads share": (("grouped",), {"heads": 4, "shared": 2}),
    "keys that all heads share": (("products",), {"shared": 1}),
}


def transformer(name: str) -> Transformer:
    torch.manual_seed(0)
    form, sizes = FORMS[name]
    net = Transformer(*form, **sizes)
    for parameter in net.parameters():
        if parameter.dim() == 1:  # no norm is the identity by chance, no bias zero
            parameter.data += 0.1 * torch.randn_like(parameter)
    return net.eval()
