"""Steps that torch has no module for: values that meet, channels that are moved, numbers that are picked."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Select(nn.Module):
    """Keep the listed features of a flat input, or channels of another, in order: ``x[:, index]``."""

    index: Tensor

    def __init__(self, index: Tensor) -> None:
        super().__init__()
        self.register_buffer("index", index.long())

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.index)

    def extra_repr(self) -> str:
        return f"kept={len(self.index)}"


class Place(nn.Module):
    """Channels put at their places among ``width``, zeros at the others: a layer that writes some of a stream."""

    index: Tensor

    def __init__(self, index: Tensor, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("index", index.long())

    def forward(self, x: Tensor) -> Tensor:
        zeros = x.new_zeros(x.shape[0], self.width, *x.shape[2:])
        return zeros.index_copy(1, self.index, x)

    def extra_repr(self) -> str:
        return f"width={self.width}, kept={len(self.index)}"


class Add(nn.Module):
    """Two values of one shape, added: where a residual stream and a branch meet."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right


class Multiply(nn.Module):
    """Two values multiplied; one may have a single place where the other has many."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left * right


class Concat(nn.Module):
    """Values side by side along the channels."""

    def forward(self, *values: Tensor) -> Tensor:
        return torch.cat(values, 1)


class PadChannels(nn.Module):
    """Channels of zeros before and after those that arrive: half of a shortcut without weights."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0) * (x.dim() - 2) + (self.before, self.after))

    def extra_repr(self) -> str:
        return f"before={self.before}, after={self.after}"


class Subsample(nn.Module):
    """Every ``stride``-th place in each direction: the other half."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return x[(slice(None), slice(None), *[slice(None, None, self.stride)] * (x.dim() - 2))]

    def extra_repr(self) -> str:
        return f"stride={self.stride}"


class GlobalMean(nn.Module):
    """The mean of each channel over all of its places: (N, C, ...) -> (N, C), or (N, C, 1, ...)."""

    def __init__(self, keep_places: bool) -> None:
        super().__init__()
        self.keep_places = keep_places

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(tuple(range(2, x.dim())), keepdim=self.keep_places)

    def extra_repr(self) -> str:
        return f"keep_places={self.keep_places}"


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
