"""What goes along some axes of one value, the same at each place of all others: reductions, softmaxes, and pools.

Means, norms and largest numbers along channels are those of the channels that stay. With ``m`` one for these and zero
for others

    mean = sum_i m_i x_i / sum_i m_i,    variance = sum_i m_i (x_i - mean)^2 / sum_i m_i.

Pools change places, and channels stay what they are.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from bhc.layers.arguments import LARGEST_ARGUMENT, Argument, Flag, Shape, Size, must_fit, pair, sizes, spans, windows
from bhc.layers.aten import AtenCall, Read
from bhc.layers.call_families import axes_of
from bhc.layers.calls import AtenKind, mean_of_kept, variance_of_kept
from bhc.layers.kind import Example, Uncut, first_along, join_along, spread
from bhc.layers.protocols import LOWEST, Captured, CWriter, OnnxWriter, UnitSearch, c_window, literal

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


CHANNELS = 1  # their axis


class GlobalMean(nn.Module):
    """The mean of each channel over all of its places: (N, C, ...) -> (N, C), or (N, C, 1, ...)."""

    def __init__(self, keep_places: bool) -> None:
        super().__init__()
        self.keep_places = keep_places

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(tuple(range(2, x.dim())), keepdim=self.keep_places)

    def extra_repr(self) -> str:
        return f"keep_places={self.keep_places}"


class Subsample(nn.Module):
    """Every ``stride``-th place in each direction: half of a shortcut without weights."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return x[(slice(None), slice(None), *[slice(None, None, self.stride)] * (x.dim() - 2))]

    def extra_repr(self) -> str:
        return f"stride={self.stride}"


class ByChannel(Uncut):
    """Makes something of each channel's places, the same for all channels."""

    def follow(self, module: Any, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        return spread(search.along(arriving[0], CHANNELS), leaving, CHANNELS)


class Pool(ByChannel):
    """Windows that slide in one, two or three directions."""

    directions: ClassVar[int]
    onnx: ClassVar[str]

    def captured(self, call: Captured) -> nn.Module | None:
        usual = {"ceil_mode": False, "count_include_pad": True, "divisor_override": None}
        if any(call.plain(name) not in (value, None) for name, value in usual.items()):
            return None
        if len(call.arriving[0]) != self.directions + 2:
            return None
        given = {name: _plainly(call.plain(name)) for name in self.arguments}
        try:
            return self.module(**{name: value for name, value in given.items() if value not in (None, ())})
        except (TypeError, RuntimeError):
            return None

    def output_shape(self, module: Any, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(len(shape) == self.directions + 2, module, shape)
        padding, kernel = sizes(module.padding, self.directions), sizes(module.kernel_size, self.directions)
        # Of the kernel and not of its span: dilation does not count.
        if any(2 * pad > size for pad, size in zip(padding, kernel, strict=True)):
            raise ValueError(f"{type(module).__name__} pads over half its window")
        span = spans(module.kernel_size, getattr(module, "dilation", 1), self.directions)
        return (*shape[:2], *windows(shape, span, module.stride, (*padding, *padding)))

    def onnx_window(self, module: Any) -> dict[str, Any]:
        """The attributes of a node that slides."""
        names = {"kernel_shape": "kernel_size", "strides": "stride"}
        window = {key: sizes(getattr(module, name), self.directions) for key, name in names.items()}
        return window | {"pads": sizes(module.padding, self.directions) * 2}

    def examples(self) -> Sequence[Example]:
        return [(self.module(3, 2, 1), ((2, 3, 7, 6, 5)[: self.directions + 2],))]


def _c_pool(kind: Any, module: Any, name: str, arriving: Shape, leaving: Shape, writer: CWriter) -> None:
    (channels, height, width), (_, rows, columns) = arriving, leaving
    kernel, target, largest = pair(module.kernel_size), writer.target(prod(leaving)), isinstance(kind, MaxPool)
    value = f"{writer.source}[(c * {height} + row) * {width} + column]"
    window = c_window(
        f"if ({value} > result) result = {value};" if largest else f"result += {value};",
        (height, width),
        places="yx",
        kernel=kernel,
        stride=pair(module.stride),
        dilation=pair(getattr(module, "dilation", 1)),
        padding=pair(module.padding),
    )
    mean = "" if largest else f" / {literal(kernel[0] * kernel[1])}"
    writer.lines(
        f"{name}: {'largest' if largest else 'average'} of {kernel[0]} x {kernel[1]}",
        [
            "int c, y, x, u, v;",
            f"for (c = 0; c < {channels}; c++)",
            f"for (y = 0; y < {rows}; y++)",
            f"for (x = 0; x < {columns}; x++) {{",
            f"    float result = {LOWEST if largest else '0.0f'};",
            *window,
            f"    {target}[(c * {rows} + y) * {columns} + x] = result{mean};",
            "}",
        ],
    )
    writer.source = target


class MaxPool(Pool):
    """The largest of each window."""

    arguments: ClassVar[Mapping[str, Argument]] = dict.fromkeys(
        ("kernel_size", "stride", "padding", "dilation"), Size()
    )

    def to_onnx(self, module: Any, name: str, writer: OnnxWriter) -> None:
        dilations = sizes(module.dilation, self.directions)
        writer.node("MaxPool", name, **self.onnx_window(module), dilations=dilations)


class MaxPool1d(MaxPool):
    name, module, number, directions = "max-pool-1d", nn.MaxPool1d, 25, 1
    calls = ("aten.max_pool1d.default",)


class MaxPool2d(MaxPool):
    name, module, number, directions = "max-pool-2d", nn.MaxPool2d, 10, 2
    calls = ("aten.max_pool2d.default",)
    to_c = _c_pool


class MaxPool3d(MaxPool):
    name, module, number, directions = "max-pool-3d", nn.MaxPool3d, 26, 3
    calls = ("aten.max_pool3d.default",)


class AveragePool(Pool):
    """The mean of each window, zeros of the padding included."""

    arguments: ClassVar[Mapping[str, Argument]] = dict.fromkeys(("kernel_size", "stride", "padding"), Size())

    def to_onnx(self, module: Any, name: str, writer: OnnxWriter) -> None:
        writer.node("AveragePool", name, **self.onnx_window(module), count_include_pad=1)


class AveragePool1d(AveragePool):
    name, module, number, directions = "avg-pool-1d", nn.AvgPool1d, 27, 1
    calls = ("aten.avg_pool1d.default",)


class AveragePool2d(AveragePool):
    name, module, number, directions = "avg-pool-2d", nn.AvgPool2d, 11, 2
    calls = ("aten.avg_pool2d.default",)
    to_c = _c_pool


class AveragePool3d(AveragePool):
    name, module, number, directions = "avg-pool-3d", nn.AvgPool3d, 28, 3
    calls = ("aten.avg_pool3d.default",)


class GlobalMeanKind(ByChannel):
    name, module, number = "global-mean", GlobalMean, 23
    arguments: ClassVar[Mapping[str, Argument]] = {"keep_places": Flag()}
    calls = ("aten.mean.dim", *[f"aten.adaptive_avg_pool{count}d.default" for count in (1, 2, 3)])

    def captured(self, call: Captured) -> nn.Module | None:
        dimensions = len(call.arriving[0])
        if dimensions < 3 or call.plain("dtype") is not None:
            return None
        if call.target == "aten.mean.dim":
            over = sorted(axis % dimensions for axis in call.plain("dim") or ())
            return GlobalMean(bool(call.plain("keepdim"))) if over == list(range(2, dimensions)) else None
        size = call.plain("output_size")
        whole = len(size) == dimensions - 2 and all(part == 1 for part in size)
        return GlobalMean(True) if whole else None

    def output_shape(self, module: GlobalMean, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(len(shape) > 2, module, shape)
        return (*shape[:2], *[1] * (len(shape) - 2)) if module.keep_places else shape[:2]

    def follow(self, module: GlobalMean, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        """What are channels may lie along the last axis: then it is the mean of those that are kept."""
        (units,) = arriving
        axes = range(2, units.dim())
        varying = [axis for axis in axes if search.varies(units, axis)]
        return (
            summed(search, units, varying, axes, leaving) if varying else super().follow(module, search, leaving, units)
        )

    def counts_kept(self, module: GlobalMean, axes: Sequence[tuple[int, ...]], dimensions: Sequence[int]) -> bool:
        return max(axes[0]) > 1

    def masked(self, module: GlobalMean, keeps: Sequence[Tensor | None], *values: Tensor) -> Tensor:
        (keep,), (x,) = keeps, values
        if keep is None:
            return module(x)
        return mean_of_kept(x, keep, range(2, x.dim()), keepdim=module.keep_places)

    def to_onnx(self, module: GlobalMean, name: str, writer: OnnxWriter) -> None:
        axes = writer.constant(f"{name}.axes", np.arange(2, len(writer.arriving[name]) + 1))
        writer.node("ReduceMean", name, axes, keepdims=int(module.keep_places))

    def examples(self) -> Sequence[Example]:
        return [(GlobalMean(True), ((2, 3, 4, 5),)), (GlobalMean(False), ((2, 3, 4),))]


class SubsampleKind(ByChannel):
    name, module, number = "subsample", Subsample, 24
    any_dtype = True
    arguments: ClassVar[Mapping[str, Argument]] = {"stride": Size()}

    def output_shape(self, module: Subsample, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(len(shape) > 2 and 1 <= module.stride <= LARGEST_ARGUMENT, module, shape)
        return (*shape[:2], *[-(-size // module.stride) for size in shape[2:]])

    def to_onnx(self, module: Subsample, name: str, writer: OnnxWriter) -> None:
        axes = np.arange(2, len(writer.arriving[name]) + 1)
        same = np.ones_like(axes)
        end = np.iinfo(np.int64).max
        numbers = {"starts": 0 * same, "ends": end * same, "axes": axes, "steps": module.stride * same}
        writer.node("Slice", name, *[writer.constant(f"{name}.{key}", values) for key, values in numbers.items()])

    def examples(self) -> Sequence[Example]:
        return [(Subsample(2), ((2, 3, 5, 4),))]


def _plainly(value: Any) -> Any:
    """Sizes as people write them: one number where all are the same."""
    if not isinstance(value, list | tuple):
        return value
    return value[0] if len(set(value)) == 1 else tuple(value)


def side_by_side(pool: nn.MaxPool2d) -> bool:
    """Whether windows lie side by side without padding, so that each place belongs to one at most."""
    return (
        pair(pool.kernel_size) == pair(pool.stride) and pair(pool.padding) == (0, 0) and pair(pool.dilation) == (1, 1)
    )


KINDS = (
    MaxPool1d, MaxPool2d, MaxPool3d, AveragePool1d, AveragePool2d, AveragePool3d, GlobalMeanKind, SubsampleKind,
)  # fmt: skip
