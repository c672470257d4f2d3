"""A plain encoder for images, as large as one likes."""

import torch
from torch import Tensor, nn

from bhc.models import Normalise

PATCH = 8
HEAD = 64  # channels


class Block(nn.Module):
    """Attention, then a small network on each token; both beside a stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, width // HEAD, batch_first=True)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        normal = self.before(x)
        x = x + self.attend(normal, normal, normal, need_weights=False)[0]
        return x + self.think(self.after(x))


class Transformer(nn.Module):
    """Patches of a 32 x 32 image as 16 tokens with learned places."""

    def __init__(self, *, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.normalise = Normalise(128.0, 64.0)
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.places = nn.Parameter(torch.zeros(1, (32 // PATCH) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.end = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(self.normalise(x)).flatten(2).transpose(1, 2) + self.places
        return self.end(self.norm(self.blocks(x)).mean(1))
