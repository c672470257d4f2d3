"""Calls that do something along some axes: reductions, softmaxes, norms, pools, upsampling."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor, nn

from bhc.layers.asked import UnitSearch
from bhc.layers.aten import AtenCall, Read
from bhc.layers.calls import AtenKind
from bhc.layers.kind import Example
from bhc.layers.modules import own_copy
from bhc.layers.shapes import Kept, Shape

Axes = Callable[[AtenCall, int], Sequence[int]]


def _named_axes(module: AtenCall, dimensions: int) -> Sequence[int]:
    axes = module.argument("dim")
    if axes is None or axes == []:
        return range(dimensions)
    return axes if isinstance(axes, list) else [axes]


def _last(count: int) -> Axes:
    return lambda module, dimensions: range(dimensions - count, dimensions)


def _normalised(module: AtenCall, dimensions: int) -> Sequence[int]:
    return range(dimensions - len(module.argument("normalized_shape")), dimensions)


def _all_but_examples(module: AtenCall, dimensions: int) -> Sequence[int]:
    return range(1, dimensions)


ALONG_AXES: dict[str, Axes] = {
    **dict.fromkeys(
        ("mean", "sum", "amax", "amin", "max", "min", "var", "std", "prod", "logsumexp", "linalg_vector_norm", "norm",
         "softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "argmax", "argmin", "any", "all"),
        _named_axes,
    ),
    **dict.fromkeys(("layer_norm", "rms_norm"), _normalised),
    **dict.fromkeys(("group_norm", "instance_norm"), _all_but_examples),
    **{
        f"{name}{count}d": _last(count)
        for name in ("adaptive_avg_pool", "adaptive_max_pool", "avg_pool", "max_pool", "upsample_nearest",
                     "_upsample_nearest_exact")
        for count in (1, 2, 3)
    },
    "upsample_linear1d": _last(1),
    "upsample_bilinear2d": _last(2),
    "_upsample_bilinear2d_aa": _last(2),
    "upsample_bicubic2d": _last(2),
    "upsample_trilinear3d": _last(3),
}  # fmt: skip


class AlongAxes(AtenCall):
    """Something along some axes of one value, the same at each place of all others."""

    family: ClassVar[str] = "along-axes"

    @classmethod
    def covers(cls, target: str) -> bool:
        return target.split(".")[1] in ALONG_AXES


class AlongAxesKind(AtenKind):
    """Reductions, softmaxes, norms, pools, upsampling: what varies along the axes in question is kept whole."""

    name, module = AlongAxes.family, AlongAxes

    def follow(self, module: AlongAxes, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        units, *others = arriving
        if others:
            for each in arriving:
                search.keep(each)
            return search.whole(leaving)
        axes = sorted(axis % units.dim() for axis in ALONG_AXES[module.op](module, units.dim()))
        if any(search.varies(units, axis) for axis in axes):
            search.keep(units)
            return search.whole(leaving)
        for axis in axes:
            units = units.narrow(axis, 0, 1)
        if len(leaving) < units.dim():
            units = units.squeeze(tuple(axes))
        return units.expand(leaving)

    def narrowed(self, module: AlongAxes, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        return own_copy(module)

    def examples(self) -> Sequence[Example]:
        softmax = AlongAxes("aten.softmax.int", [Read(0), -1])
        total = AlongAxes("aten.sum.dim_IntList", [Read(0), [1]])
        return [(softmax, ((2, 3, 4),)), (total, ((2, 3, 4),))]


KINDS = (AlongAxesKind,)
