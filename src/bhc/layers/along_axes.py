"""Calls that reduce, normalise or slide along some axes of one value, the same at each place of all others.

Means, norms and largest numbers along channels are those of the channels that stay. With ``m`` one for these and zero
for others

    mean = sum_i m_i x_i / sum_i m_i,    variance = sum_i m_i (x_i - mean)^2 / sum_i m_i.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor

from bhc.layers.arguments import Shape
from bhc.layers.aten import AtenCall, Read
from bhc.layers.call_families import axes_of
from bhc.layers.calls import AtenKind
from bhc.layers.kind import Example, Uncut, first_along, join_along, spread
from bhc.layers.protocols import UnitSearch

Axes = Callable[[AtenCall, int], Sequence[int]]


def _named_axes(module: AtenCall, dimensions: int) -> Sequence[int]:
    return axes_of(module, "dim", dimensions)


def _last(count: int) -> Axes:
    return lambda module, dimensions: range(dimensions - count, dimensions)


ALONG_AXES: dict[str, Axes] = {
    **dict.fromkeys(
        ("mean", "sum", "amax", "amin", "max", "min", "var", "std", "prod", "logsumexp", "linalg_vector_norm", "norm",
         "softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "argmax", "argmin", "any", "all"),
        _named_axes,
    ),
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

LARGE = 1e30  # what is not there is smaller, or larger, than all that is
# By operator: the number that stands for what is not there, so that the rest decides.
NEUTRAL = {
    "sum": 0.0, "prod": 1.0, "linalg_vector_norm": 0.0, "amax": -LARGE, "amin": LARGE, "logsumexp": -LARGE,
    "softmax": -LARGE, "log_softmax": -LARGE, "_softmax": -LARGE, "_log_softmax": -LARGE,
}  # fmt: skip
MOMENTS = ("mean", "var", "std")  # over how many there are
SAME_SHAPE = ("softmax", "log_softmax", "_softmax", "_log_softmax")


class AlongAxes(AtenCall):
    """Something along some axes of one value, the same at each place of all others."""

    family: ClassVar[str] = "along-axes"

    @classmethod
    def covers(cls, target: str) -> bool:
        return target.split(".")[1] in ALONG_AXES


def _axes(module: AtenCall, dimensions: int) -> list[int]:
    return sorted(axis % dimensions for axis in ALONG_AXES[module.op](module, dimensions))


def _takes_a_mask(module: AtenCall) -> bool:
    """Whether it can be said what it gives for some of the numbers along an axis."""
    norm = module.op == "linalg_vector_norm" and not module.argument("ord", 2) > 0
    return (module.op in NEUTRAL or module.op in MOMENTS) and module.pick is None and not norm


class AlongAxesKind(AtenKind, Uncut):
    """Reductions, softmaxes, pools, upsampling: over what is kept, where that makes sense; else all is kept."""

    name, module = AlongAxes.family, AlongAxes

    def follow(self, module: AlongAxes, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        units, *others = arriving
        axes = _axes(module, units.dim())
        if others:
            for each in arriving:
                search.keep(each)
            return search.whole(leaving)
        if not _takes_a_mask(module) or 0 in axes:
            join_along(search, units, axes)
        varying = [axis for axis in axes if search.varies(units, axis)]
        if module.op in SAME_SHAPE:
            return units
        if varying:
            return summed(search, units, varying, axes, leaving)
        return _first_of(units, axes, leaving)

    def counts_kept(self, module: AlongAxes, axes: Sequence[tuple[int, ...]], dimensions: Sequence[int]) -> bool:
        return _takes_a_mask(module) and bool(set(axes[0]) & set(_axes(module, dimensions[0])))

    def masked(self, module: AlongAxes, keeps: Sequence[Tensor | None], *values: Tensor) -> Tensor:
        (keep,), (x,) = keeps, values
        if keep is None:
            return module(x)
        if module.op in NEUTRAL:
            return module(x.masked_fill(~keep, NEUTRAL[module.op]))
        axes, keepdim = _axes(module, x.dim()), bool(module.argument("keepdim", False))
        if module.op == "mean":
            return mean_of_kept(x, keep, axes, keepdim=keepdim)
        correction = module.argument("correction", float(module.argument("unbiased", True)))
        variance = variance_of_kept(x, keep, axes, correction=1 if correction is None else correction, keepdim=keepdim)
        return variance.sqrt() if module.op == "std" else variance

    def examples(self) -> Sequence[Example]:
        softmax = AlongAxes("aten.softmax.int", [Read(0), -1])
        total = AlongAxes("aten.sum.dim_IntList", [Read(0), [1]])
        mean = AlongAxes("aten.mean.dim", [Read(0), [-1], True])
        return [(softmax, ((2, 3, 4),)), (total, ((2, 3, 4),)), (mean, ((2, 3, 4),))]


def summed(search: UnitSearch, units: Tensor, varying: Sequence[int], axes: Sequence[int], leaving: Shape) -> Tensor:
    """Of a sum over channels none of theirs; of one over what heads keep, the heads."""
    left = [axis for axis in range(units.dim()) if axis not in varying and search.varies(units, axis)]
    if not left:
        return search.whole(leaving)
    cells = first_along(units, left[0], varying[0])
    if len(left) > 1 or len(varying) > 1 or not are_cells(cells):
        join_along(search, units, varying)
        return _first_of(units, axes, leaving)
    rows = search.new(len(cells))
    search.heads.live_within(rows, cells)
    place = left[0] - (sum(axis < left[0] for axis in axes) if len(leaving) < units.dim() else 0)
    return spread(rows, leaving, place)


def are_cells(units: Tensor) -> bool:
    """Whether (H, n) are units of heads: places of their own, at most in pairs, and not a few values side by side."""
    return all(2 * len(row.unique()) >= len(row) for row in units)


def _first_of(units: Tensor, axes: Sequence[int], leaving: Shape) -> Tensor:
    """Units that are the same all along some axes, once or not at all along these."""
    for axis in axes:
        units = units.narrow(axis, 0, 1)
    return (units.squeeze(tuple(axes)) if len(leaving) < units.dim() else units).expand(leaving)


def count_kept(x: Tensor, keep: Tensor, axes: Sequence[int]) -> Tensor:
    """How many there are, at least one; sizes of 1 along the axes. ``keep`` is broadcast to ``x``."""
    keep = keep.reshape(*[1] * (x.dim() - keep.dim()), *keep.shape)
    spread = 1
    for axis in axes:
        spread *= x.shape[axis] if keep.shape[axis] == 1 else 1
    return (keep.sum(list(axes), keepdim=True) * spread).clamp(min=1)


def mean_of_kept(x: Tensor, keep: Tensor, axes: Sequence[int], *, keepdim: bool = True) -> Tensor:
    """``sum_i m_i x_i / sum_i m_i``."""
    mean = x.masked_fill(~keep, 0.0).sum(list(axes), keepdim=True) / count_kept(x, keep, axes)
    return mean if keepdim else mean.squeeze(tuple(axes))


def variance_of_kept(
    x: Tensor, keep: Tensor, axes: Sequence[int], *, correction: float = 0, keepdim: bool = True
) -> Tensor:
    """``sum_i m_i (x_i - mean)^2 / (sum_i m_i - correction)``."""
    away = (x - mean_of_kept(x, keep, axes)).masked_fill(~keep, 0.0)
    count = (count_kept(x, keep, axes) - correction).clamp(min=0)
    variance = away.square().sum(list(axes), keepdim=True) / count
    return variance if keepdim else variance.squeeze(tuple(axes))


KINDS = (AlongAxesKind,)
