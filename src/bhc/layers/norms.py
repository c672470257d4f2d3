"""Norms: of channels by fixed numbers, or by the mean and the spread of the channels that are kept.

With ``m`` one for channels that stay and zero for others, ``n = sum_i m_i``

    mean = sum_i m_i x_i / n,    variance = sum_i m_i (x_i - mean)^2 / n
    y_i = (x_i - mean) / sqrt(variance + eps) a_i + b_i

so that a network with fewer channels computes what the masked one computes. Groups of a group norm go whole.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.layers.arguments import Argument, Kept, Positive, Shape, Size, must_fit
from bhc.layers.aten import AtenCall, Own, Read
from bhc.layers.calls import AtenKind, mean_of_kept, variance_of_kept, with_own_narrowed
from bhc.layers.kind import Example, OfChannels, first_along, own_copy, picked
from bhc.layers.protocols import OnnxWriter, UnitSearch


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
        if search.varies(arriving[0], 1):
            search.along(arriving[0], 1)
        return arriving[0]

    def narrowed(self, module: Affine, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        if leaving.axis != 1:  # units lie along other axes
            return own_copy(module)
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


class ChannelNormKind(OfChannels):
    """``ChannelNorm``: the mean and the spread are those of the channels that are kept."""

    name, module, number = "channel-norm", ChannelNorm, 33
    arguments: ClassVar[Mapping[str, Argument]] = {"channels": Size(), "eps": Positive()}

    def output_shape(self, module: ChannelNorm, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(len(shape) == 3 and shape[1] == module.channels, module, shape)
        return shape

    def follow(self, module: ChannelNorm, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        if search.varies(arriving[0], 1):
            search.along(arriving[0], 1)
        return arriving[0]

    def counts_kept(self, module: ChannelNorm, axes: Sequence[tuple[int, ...]], dimensions: Sequence[int]) -> bool:
        return 1 in axes[0]

    def masked(self, module: ChannelNorm, keeps: Sequence[Tensor | None], *values: Tensor) -> Tensor:
        (keep,), (x,) = keeps, values
        if keep is None:
            return module(x)
        variance = variance_of_kept(x, keep, [1])
        normal = (x - mean_of_kept(x, keep, [1])) * torch.rsqrt(variance + module.eps)
        return normal * module.weight[:, None] + module.bias[:, None]

    def narrowed(self, module: ChannelNorm, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        if leaving.axis != 1:
            return own_copy(module)
        index = torch.from_numpy(leaving.index)
        smaller = ChannelNorm(len(index), module.eps)
        smaller.weight, smaller.bias = picked(module.weight, index), picked(module.bias, index)
        return smaller

    def to_onnx(self, module: ChannelNorm, name: str, writer: OnnxWriter) -> None:
        numbers = [writer.constant(f"{name}.{key}", getattr(module, key).numpy()) for key in ("weight", "bias")]
        writer.node("Transpose", f"{name}.turned", perm=[0, 2, 1])
        writer.node("LayerNormalization", f"{name}.normal", *numbers, axis=-1, epsilon=float(module.eps))
        writer.node("Transpose", name, perm=[0, 2, 1])

    def examples(self) -> Sequence[Example]:
        return [(ChannelNorm(4, 1e-5), ((2, 4, 3),))]


class Norm(AtenCall):
    """A call of ``layer_norm``, ``rms_norm``, ``group_norm`` or ``instance_norm``."""

    family: ClassVar[str] = "norm"

    @classmethod
    def covers(cls, target: str) -> bool:
        return target.split(".")[1] in FORMS


class Form:
    """One kind of norm: over which axes it normalises, and along which its own numbers lie."""

    def axes(self, module: Norm, dimensions: int) -> list[int]:
        """Those it normalises over."""
        return list(range(dimensions - len(module.argument("normalized_shape")), dimensions))

    def follow(self, module: Norm, search: UnitSearch, units: Tensor) -> Tensor:
        axes = self.axes(module, units.dim())
        varying = [axis for axis in axes if search.varies(units, axis)]
        others = [axis for axis in range(units.dim()) if axis not in axes and search.varies(units, axis)]
        if len(varying) > 1:
            search.along(units, max(varying, key=lambda axis: units.shape[axis]))
        elif varying and len(others) == 1:  # of each head, with one gain for all of them
            search.heads.alike(first_along(units, others[0], varying[0]))
        return units

    def masked(self, module: Norm, x: Tensor, keep: Tensor) -> Tensor:
        """``(x - mean) / sqrt(variance + eps) a + b``, mean and variance of what is kept."""
        axes = self.axes(module, x.dim())
        variance = variance_of_kept(x, keep, axes)
        normal = (x - mean_of_kept(x, keep, axes)) * torch.rsqrt(variance + module.argument("eps"))
        return self.scaled(module, normal)

    def scaled(self, module: Norm, normal: Tensor) -> Tensor:
        gain, shift = (_own(module, name) for name in ("weight", "bias"))
        scaled = normal if gain is None else normal * gain
        return scaled if shift is None else scaled + shift

    def narrowed(self, module: Norm, leaving: Kept) -> nn.Module:
        sizes = list(module.argument("normalized_shape"))
        first = leaving.dimensions - len(sizes)
        shape = [leaving.size(first + place) or size for place, size in enumerate(sizes)]
        return with_own_narrowed(module.with_arguments(normalized_shape=shape), leaving)


class RmsForm(Form):
    """``x / sqrt(mean of squares + eps) a``."""

    def masked(self, module: Norm, x: Tensor, keep: Tensor) -> Tensor:
        eps = module.argument("eps")
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        return self.scaled(module, x * torch.rsqrt(mean_of_kept(x.square(), keep, self.axes(module, x.dim())) + eps))


class ChannelsForm(Form):
    """Numbers of its own for each channel, the second axis."""

    def scaled(self, module: Norm, normal: Tensor) -> Tensor:
        numbers = [_own(module, name) for name in ("weight", "bias")]
        gain, shift = (each if each is None else each.view(-1, *[1] * (normal.dim() - 2)) for each in numbers)
        scaled = normal if gain is None else normal * gain
        return scaled if shift is None else scaled + shift

    def narrowed(self, module: Norm, leaving: Kept) -> nn.Module:
        return with_own_narrowed(module, Kept(0, leaving.mask, 1)) if leaving.axis == 1 else own_copy(module)


class InstanceForm(ChannelsForm):
    """Each channel by itself, over its places."""

    def axes(self, module: Norm, dimensions: int) -> list[int]:
        return list(range(2, dimensions))


class GroupForm(ChannelsForm):
    """Groups of channels go whole; one group is all channels, of which any may go."""

    def axes(self, module: Norm, dimensions: int) -> list[int]:
        return list(range(1, dimensions))

    def follow(self, module: Norm, search: UnitSearch, units: Tensor) -> Tensor:
        if any(search.varies(units, axis) for axis in range(2, units.dim())):
            search.keep(units)
        elif module.argument("num_groups") > 1:
            groups = units.unflatten(1, (module.argument("num_groups"), -1))
            search.join(groups[:, :, :1].expand(groups.shape), groups)
        return units

    def narrowed(self, module: Norm, leaving: Kept) -> nn.Module:
        groups = module.argument("num_groups")
        if groups > 1 and leaving.axis == 1:
            module = module.with_arguments(num_groups=int(leaving.mask.sum()) * groups // len(leaving.mask))  # type: ignore[assignment]
        return super().narrowed(module, leaving)


FORMS = {"layer_norm": Form(), "rms_norm": RmsForm(), "group_norm": GroupForm(), "instance_norm": InstanceForm()}


class NormKind(AtenKind):
    """``Norm``: over the channels that are kept."""

    name, module = Norm.family, Norm

    def follow(self, module: Norm, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        units, *others = arriving
        form = FORMS[module.op]
        if others or (0 in form.axes(module, units.dim())):  # gains that are computed, or a norm over examples
            for each in arriving:
                search.keep(each)
            return search.whole(leaving)
        return form.follow(module, search, units)

    def counts_kept(self, module: Norm, axes: Sequence[tuple[int, ...]], dimensions: Sequence[int]) -> bool:
        of_groups = module.op == "group_norm" and module.argument("num_groups") > 1
        return not of_groups and bool(set(axes[0]) & set(FORMS[module.op].axes(module, dimensions[0])))

    def masked(self, module: Norm, keeps: Sequence[Tensor | None], *values: Tensor) -> Tensor:
        (keep,), (x,) = keeps, values
        return module(x) if keep is None else FORMS[module.op].masked(module, x, keep)

    def narrowed(self, module: Norm, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        return FORMS[module.op].narrowed(module, leaving)

    def examples(self) -> Sequence[Example]:
        gain = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]), requires_grad=False)
        layer = Norm("aten.layer_norm.default", [Read(0), [4], Own("own0"), None, 1e-5], own={"own0": gain})
        root = Norm("aten.rms_norm.default", [Read(0), [4], Own("own0"), 1e-6], own={"own0": gain})
        groups = Norm("aten.group_norm.default", [Read(0), 2, Own("own0"), None, 1e-5], own={"own0": gain})
        return [(layer, ((2, 3, 4),)), (root, ((2, 3, 4),)), (groups, ((2, 4, 3),))]


def _own(module: AtenCall, name: str) -> Tensor | None:
    argument = module.argument(name)
    return getattr(module, argument.name) if isinstance(argument, Own) else None


KINDS = (AffineKind, ChannelNormKind, NormKind)
