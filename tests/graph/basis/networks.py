"""Transformers as people write them, small: what attention, norms and streams look like."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, WORDS, TOKENS, CLASSES = 12, 3, 11, 6, 5


def heads_first(x: Tensor, heads: int) -> Tensor:  # (N, T, C) -> (N, heads, T, C of a head)
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def together(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def by_matmul(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return scores.softmax(-1) @ value


def by_einsum(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    shares = torch.einsum("bhid, bhjd -> bhij", query, key).div(query.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", shares, value)


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def masked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    later = torch.ones(query.shape[-2], query.shape[-2], dtype=torch.bool).triu(1)
    scores = torch.matmul(query / query.shape[-1] ** 0.5, key.mT).masked_fill(later, float("-inf"))
    return F.softmax(scores, dim=-1) @ value


def unflattened(x: Tensor) -> tuple[Tensor, ...]:
    return x.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def chunked(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(heads_first(part, HEADS) for part in x.chunk(3, -1))


def by_head(x: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values of one head beside each other."""
    return heads_first(x, HEADS).split(WIDTH // HEADS, -1)


def interleaved(x: Tensor) -> tuple[Tensor, ...]:
    n, t, _ = x.shape
    return x.view(n, t, HEADS, WIDTH // HEADS, 3).permute(4, 0, 2, 1, 3).unbind(0)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Fused(nn.Module):
    """Attention with one layer for queries, keys and values."""

    def __init__(self, taken: Callable[[Tensor], tuple[Tensor, ...]] = unflattened, attend: Attend = causal) -> None:
        super().__init__()
        self.qkv, self.out, self.taken, self.attend = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            taken,
            attend,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(together(self.attend(*self.taken(self.qkv(x)))))


class Apart(nn.Module):
    """Attention with a layer each."""

    def __init__(self, attend: Attend = by_matmul, between: nn.Module | None = None) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.between, self.attend = between or nn.Identity(), attend

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (heads_first(layer(x), HEADS) for layer in (self.q, self.k, self.v))
        return self.out(together(self.attend(self.between(query), self.between(key), value)))


def rotary(x: Tensor) -> Tensor:
    places = torch.arange(x.shape[-2])[:, None] * torch.tensor([1.0, 0.1]).repeat(x.shape[-1] // 2)
    left, right = x.chunk(2, -1)
    return x * places.cos() + torch.cat([-right, left], -1) * places.sin()


class Grouped(nn.Module):
    """Four heads of which two share keys and values."""

    def __init__(
        self, repeat: Callable[[Tensor], Tensor] | None = None, turn: Callable[[Tensor], Tensor] = rotary
    ) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.k, self.v = nn.Linear(16, 8, bias=False), nn.Linear(16, 8, bias=False)
        self.repeat, self.turn = repeat, turn

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (heads_first(layer(x), n) for layer, n in ((self.q, 4), (self.k, 2), (self.v, 2)))
        query, key = self.turn(query), self.turn(key)
        if self.repeat is None:
            return self.out(together(F.scaled_dot_product_attention(query, key, value, enable_gqa=True)))
        return self.out(together(by_matmul(query, self.repeat(key), self.repeat(value))))


def by_expanding(x: Tensor) -> Tensor:
    n, heads, tokens, channels = x.shape
    return x[:, :, None].expand(n, heads, 2, tokens, channels).reshape(n, 2 * heads, tokens, channels)


def by_repeating(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, dim=1)


class RootMeanSquare(nn.Module):
    """An RMS norm as language models write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def inside(width: int, activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), activation, nn.Linear(2 * width, width))


class Before(nn.Module):
    """Norms before what is beside the stream, which may be scaled."""

    def __init__(
        self, attend: nn.Module, norm: Callable[[int], nn.Module] = nn.LayerNorm, *, scale: bool = False
    ) -> None:
        super().__init__()
        width = attend.out.out_features  # type: ignore[union-attr]
        self.one, self.two = norm(width), norm(width)
        self.attend, self.think = attend, inside(width, nn.GELU())
        self.scale = nn.Parameter(torch.rand(width)) if scale else None

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attend(self.one(x))
        x = x + (attended if self.scale is None else self.scale * attended)
        return x + self.think(self.two(x))


class After(nn.Module):
    """Norms on the stream."""

    def __init__(self, attend: nn.Module) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.think = attend, inside(WIDTH, nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x + self.attend(x))
        return self.two(x + self.think(x))


class Gated(nn.Module):
    def __init__(self, attend: nn.Module, norm: Callable[[int], nn.Module] = RootMeanSquare) -> None:
        super().__init__()
        self.attend, self.one, self.two = attend, norm(16), norm(16)
        self.gate, self.up, self.down = (nn.Linear(i, o, bias=False) for i, o in ((16, 24), (16, 24), (24, 16)))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.one(x))
        y = self.two(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Patches(nn.Module):
    """Pieces of an image and a token for its class."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.patch, self.blocks = nn.Conv2d(1, WIDTH, 4, 4), nn.Sequential(*blocks)
        self.first, self.place = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 5, WIDTH))
        self.norm, self.end = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.end(self.norm(self.blocks(x))[:, 0])


class Words(nn.Module):
    """A language model's body; what is said of a text is its last token's or the mean of all."""

    def __init__(self, *blocks: nn.Module, width: int = WIDTH, norm: Callable[[int], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, width), nn.Embedding(TOKENS, width)
        self.blocks, self.norm, self.end = nn.Sequential(*blocks), norm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.place(torch.arange(x.shape[1]))
        return self.end(self.norm(self.blocks(x)).mean(1))


def images(count: int) -> Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def words(count: int) -> Tensor:
    return torch.randint(0, WORDS, (count, TOKENS), generator=torch.Generator().manual_seed(0))
