"""Calls that make each number of those at the same place: sums, products, activations, comparisons."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from bhc.layers.asked import UnitSearch
from bhc.layers.aten import AtenCall, Own, Read, operator
from bhc.layers.calls import AtenKind, with_own_narrowed
from bhc.layers.kind import Example, meeting
from bhc.layers.modules import own_copy
from bhc.layers.shapes import Kept, Shape

# Without torch's mark, or marked as something else.
ALSO_POINTWISE = ("_to_copy", "to", "dropout", "where", "clamp", "prelu", "masked_fill", "addcmul", "lerp", "type_as")
SUMS = ("add", "sub", "rsub", "_to_copy", "to", "type_as", "neg")  # a part that is left out adds nothing


class Pointwise(AtenCall):
    """Each number of the result from those at the same place of what it reads, as shapes are broadcast."""

    family: ClassVar[str] = "pointwise"

    @classmethod
    def covers(cls, target: str) -> bool:
        op = target.split(".")[1]
        return torch.Tag.pointwise in getattr(operator(target), "tags", ()) or op in ALSO_POINTWISE


class PointwiseKind(AtenKind):
    """What meets at one place lives and dies together; the step's own numbers go with them."""

    name, module = Pointwise.family, Pointwise

    def follow(self, module: Pointwise, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        met = meeting([units for units in arriving if _fits(units.shape, leaving)], leaving, search)
        if not met:
            return search.whole(leaving)
        first, *others = met
        for other in others:
            search.join(first, other)
        if others and module.op not in SUMS:
            search.tie(first)  # a factor that is left out would be zero
        return first

    def narrowed(self, module: Pointwise, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        if module.op == "prelu":  # its numbers lie along the second axis, and have no other
            return with_own_narrowed(module, Kept(0, leaving.mask, 1)) if leaving.axis == 1 else own_copy(module)
        return with_own_narrowed(module, leaving)

    def examples(self) -> Sequence[Example]:
        gain = nn.Parameter(torch.tensor([[1.0], [2.0], [3.0]]), requires_grad=False)
        scaled = Pointwise("aten.mul.Tensor", [Read(0), Own("own0")], own={"own0": gain})
        both = Pointwise("aten.maximum.default", [Read(0), Read(1)])
        return [(scaled, ((2, 3, 4),)), (both, ((2, 3, 4), (2, 3, 4)))]


def _fits(shape: Sequence[int], leaving: Shape) -> bool:
    pairs = zip(reversed(shape), reversed(leaving), strict=False)
    return len(shape) <= len(leaving) and all(size in (1, wanted) for size, wanted in pairs)


KINDS = (PointwiseKind,)
