"""Norms: what is left of a batch norm, and the norm of a token's channels."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.layers.arguments import Argument, Positive, Size
from bhc.layers.asked import OnnxWriter, UnitSearch
from bhc.layers.kind import Example, LayerKind, OfTokens, positive_sizes
from bhc.layers.modules import picked
from bhc.layers.shapes import Kept, Shape, does_not_take, expect


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


class AffineKind(LayerKind):
    """``Affine``: its numbers go with their channels."""

    name, module, number, keeps_inputs_apart = "affine", Affine, 21, True
    arguments: ClassVar[Mapping[str, Argument]] = {"channels": Size()}

    def output_shape(self, module: Affine, *arriving: Shape) -> Shape:
        (shape,) = arriving
        expect(len(shape) > 1 and shape[1] == module.channels, does_not_take(module, shape))
        return shape

    def follow(self, module: Affine, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        search.along(arriving[0], 1)
        return arriving[0]

    def narrowed(self, module: Affine, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        index = torch.from_numpy(leaving.index)
        smaller = Affine(len(index))
        smaller.weight, smaller.bias = picked(module.weight, index), picked(module.bias, index)
        return smaller

    def check(self, described: Mapping[str, Any]) -> None:
        positive_sizes(described, "channels")

    def untold(self) -> tuple[str, ...]:
        return ()

    def told(self, shape: Shape) -> dict[str, Any]:
        return {"channels": shape[1]}

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

    def check(self, described: Mapping[str, Any]) -> None:
        positive_sizes(described, "channels")

    def to_onnx(self, module: ChannelNorm, name: str, writer: OnnxWriter) -> None:
        numbers = [writer.constant(f"{name}.{key}", getattr(module, key).numpy()) for key in ("weight", "bias")]
        writer.node("Transpose", f"{name}.turned", perm=[0, 2, 1])
        writer.node("LayerNormalization", f"{name}.normal", *numbers, axis=-1, epsilon=float(module.eps))
        writer.node("Transpose", name, perm=[0, 2, 1])

    def examples(self) -> Sequence[Example]:
        return [(ChannelNorm(4, 1e-5), ((2, 4, 3),))]


KINDS = (AffineKind, ChannelNormKind)
