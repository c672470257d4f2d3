"""Attention: queries and keys in pairs, values by themselves, heads as a whole."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.layers.arguments import LARGEST_SIZE, Argument, Kept, Shape, Size, bounded, unknown
from bhc.layers.aten import AtenCall, Own, Read
from bhc.layers.calls import AtenKind, count_flops, with_own
from bhc.layers.contractions import BATCH, Letters, keep_whole, product_units, with_zeros
from bhc.layers.kind import Example, OfTokens
from bhc.layers.protocols import FileReader, OnnxWriter, UnitSearch


class Attention(AtenCall):
    """``softmax(query key^T scale + mask) value``, for each head."""

    family: ClassVar[str] = "attention"

    @classmethod
    def covers(cls, target: str) -> bool:
        return target == "aten.scaled_dot_product_attention.default"


class AttentionKind(AtenKind):
    """Queries and keys in pairs, values by themselves, heads as a whole; the scale stays what it was."""

    name, module = Attention.family, Attention

    def follow(self, module: Attention, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        places = [module.argument(name) for name in ("query", "key", "value")]
        mask, grouped = module.argument("attn_mask"), module.argument("enable_gqa", False)
        if not all(isinstance(side, Read) for side in places):
            return keep_whole(search, leaving, arriving)
        query, key, value = (arriving[side.place] for side in places)
        if grouped and query.dim() == 4:  # heads that share keys and values
            times = query.shape[1] // key.shape[1]
            key, value = (units.repeat_interleave(times, 1) for units in (key, value))
        batch = BATCH[: query.dim() - 2]
        scores = product_units(search, Letters(f"{batch}mk", f"{batch}nk", f"{batch}mn"), query, key)
        if scores is None:
            return keep_whole(search, leaving, arriving)
        shape = (*query.shape[:-1], key.shape[-2])
        scores = scores.expand(shape)
        if isinstance(mask, Read):
            units = arriving[mask.place]
            if any(search.varies(units, axis) for axis in range(units.dim())):
                search.join(scores, units.expand(shape))
        found = product_units(search, Letters(f"{batch}mk", f"{batch}kn", f"{batch}mn"), scores, value)
        return keep_whole(search, leaving, arriving) if found is None else found.expand(leaving)

    def counts_kept(self, module: Attention, axes: Sequence[tuple[int, ...]], dimensions: Sequence[int]) -> bool:
        query = module.argument("query")
        return isinstance(query, Read) and dimensions[query.place] - 1 in axes[query.place]

    def masked(self, module: Attention, keeps: Sequence[Tensor | None], *values: Tensor) -> Tensor:
        query = module.argument("query").place
        alone = [keep if place == query else None for place, keep in enumerate(keeps)]
        return module(*with_zeros(alone, values))

    def narrowed(self, module: Attention, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        query = arriving[module.argument("query").place]
        scale = module.argument("scale")
        if scale is None:
            before = (
                query.cells.before if query.cells is not None and query.cells.axis == query.dimensions - 1 else None
            )
            before = len(query.mask) if query.axis == query.dimensions - 1 else before
            module = module if before is None else module.with_arguments(scale=before**-0.5)  # type: ignore[assignment]
        own = dict(module.named_own())
        mask = module.argument("attn_mask")
        heads = query.axis - query.dimensions
        if isinstance(mask, Own) and heads <= -3 and query.lies_along(own[mask.name]):
            own[mask.name] = own[mask.name].index_select(heads, torch.from_numpy(query.index))
        return with_own(module, own)

    def shares_of_flops(
        self, module: Attention, arriving: Sequence[Shape], leaving: Shape
    ) -> Sequence[tuple[int, tuple[int, ...]]]:
        query, value = (module.argument(name) for name in ("query", "value"))
        if not (isinstance(query, Read) and isinstance(value, Read)):
            return super().shares_of_flops(module, arriving, leaving)
        whole = self.num_flops(module, arriving, leaving)
        scores = whole * arriving[query.place][-1] // (arriving[query.place][-1] + arriving[value.place][-1])
        return [(scores, (query.place,)), (whole - scores, (-1,))]

    def num_flops(self, module: Attention, arriving: Sequence[Shape], leaving: Shape) -> int:
        return count_flops(module, arriving, leaving)

    def examples(self) -> Sequence[Example]:
        return [
            (Attention("aten.scaled_dot_product_attention.default", [Read(0), Read(1), Read(2)]), ((2, 2, 3, 4),) * 3)
        ]


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


KINDS = (AttentionKind, SelfAttentionKind)
