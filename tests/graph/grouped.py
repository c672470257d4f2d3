"""Networks with convolutions in groups, as people wire them: small enough to be cut at any threshold in a moment."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES, SHAPE = 10, (3, 6, 6)


def conv(inputs: int, outputs: int, groups: int = 1, size: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups)


class Ends(nn.Module):
    """Something between a first convolution and the classes."""

    def __init__(self, width: int, body: nn.Module, given: int, *, flat: bool = False) -> None:
        super().__init__()
        self.stem, self.body, self.flat = conv(3, width, size=3), body, flat
        self.end = nn.Linear(given * (36 if flat else 1), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.body(F.relu(self.stem(x))))
        return self.end(x.flatten(1) if self.flat else x.mean((2, 3)))


class Shuffle(nn.Module):
    """The channels of each group among all groups."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)


class Residual(nn.Module):
    """Of ResNeXt, or with a shuffle and groups at both ends of ShuffleNet."""

    def __init__(self, width: int, inner: int, groups: int, ends: int = 1, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.last = conv(width, inner, ends), conv(inner, width, ends)
        self.middle = conv(inner, inner, groups, 3)
        self.between = Shuffle(ends) if ends > 1 else norm or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.last(F.relu(self.middle(F.relu(self.between(self.first(x))))))
        return F.relu(x)


class SplitAttention(nn.Module):
    """Of ResNeSt: which of two groups each channel is taken from."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.split = width, conv(width, 2 * width, 2, 3)
        self.narrow, self.wide = conv(width, width // 2), conv(width // 2, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.split(x)).unflatten(1, (2, self.width))
        gate = self.wide(F.relu(self.narrow(F.adaptive_avg_pool2d(x.sum(1), 1))))
        return (x * gate.unflatten(1, (2, self.width)).softmax(1)).sum(1)


class Attention(nn.Module):
    """Queries, keys and values by convolutions in groups, of which each gives several heads."""

    def __init__(self, width: int, groups: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.parts = nn.ModuleList(nn.Conv1d(width, width, 1, groups=groups) for _ in range(3))
        self.last = nn.Conv1d(width, width, 1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(2)
        query, key, value = (part(flat).unflatten(1, (self.heads, -1)) for part in self.parts)
        scores = (query.mT @ key / 2).softmax(-1)
        attended = (value @ scores.mT).flatten(1, 2)
        return (flat + self.last(attended)).reshape(x.shape)


class Beside(nn.Module):
    """Groups that read what two layers write."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.both = conv(8, 8), conv(8, 4), conv(12, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(torch.cat([self.one(x), self.other(x)], 1).relu())


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.grouped, self.gate = conv(8, 12, 4, 3), conv(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.grouped(x)
        return x * self.gate(F.adaptive_avg_pool2d(x, 1)).sigmoid()


class Twice(nn.Module):
    """One convolution in groups at two depths."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = conv(8, 8, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.grouped(F.relu(self.grouped(x)))


class Halves(nn.Module):
    """Groups whose results are taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped, self.last = conv(8, 16, 4), conv(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.grouped(x).chunk(2, 1)
        return self.last(one.relu() * other)


def sequence(width: int, *modules: nn.Module, given: int, flat: bool = False) -> nn.Module:
    return Ends(width, nn.Sequential(*modules), given, flat=flat)


# By name: the network, and whether groups of it can go.
GROUPED: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "alone": (partial(sequence, 8, conv(8, 12, 4, 3), given=12), True),
    "flattened": (partial(sequence, 8, conv(8, 12, 4, 3), given=12, flat=True), True),
    "one output each": (partial(sequence, 12, conv(12, 4, 4), nn.ReLU(), conv(4, 6), given=6), True),
    "one after the other": (partial(sequence, 8, conv(8, 12, 2), nn.ReLU(), conv(12, 8, 2), given=8), True),
    "residual": (partial(sequence, 8, Residual(8, 12, 4), Residual(8, 12, 4), given=8), True),
    "on the stream": (partial(sequence, 8, Residual(8, 12, 2), conv(8, 8, 4), Residual(8, 12, 2), given=8), True),
    "a norm of the same groups": (partial(sequence, 8, Residual(8, 12, 4, norm=nn.GroupNorm(4, 12)), given=8), True),
    "a norm of other groups": (partial(sequence, 8, Residual(8, 16, 8, norm=nn.GroupNorm(4, 16)), given=8), False),
    "a gate": (partial(sequence, 8, Gated(), given=12), True),
    "called twice": (partial(sequence, 8, Twice(), given=8), True),
    "halves": (partial(sequence, 8, Halves(), given=6), False),
    "another order": (partial(sequence, 8, conv(8, 12, 4), Shuffle(4), nn.ReLU(), conv(12, 6), given=6), True),
    "other groups": (partial(sequence, 12, conv(12, 12, 2), nn.ReLU(), conv(12, 12, 3), given=12), False),
    "a shuffle": (partial(sequence, 8, Residual(8, 8, 8, 2), Residual(8, 8, 8, 2), given=8), False),
    "an uneven shuffle": (partial(sequence, 9, Residual(9, 15, 15, 3), Residual(9, 15, 15, 3), given=9), False),
    "two layers beside each other": (partial(sequence, 8, Beside(), given=6), False),
    "split attention": (partial(sequence, 8, SplitAttention(8), given=8), False),
    "heads in groups": (partial(sequence, 16, Attention(16, 2, 4), given=16), False),
    "heads as groups": (partial(sequence, 16, Attention(16, 4, 4), given=16), True),
}
