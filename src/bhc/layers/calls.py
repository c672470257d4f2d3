"""Calls of torch's own operators, by what they do with channels: pointwise, moving, along some axes, or unknown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.layers.arguments import LARGEST_LAYER, Kept, Shape, bounded, brief, expect, unknown
from bhc.layers.aten import DTYPES, AtenCall, Opaque, Read, call_of, from_plain, is_norm, to_plain, traced
from bhc.layers.kind import Example, LayerKind, Whole, bare_copy, fixed
from bhc.layers.onnx_rules import write_call
from bhc.layers.protocols import FileReader, FileWriter, OnnxWriter

# Operators that a packed file may hold a call of: a published list, whose order never changes; new ones are added at
# the end. All are deterministic, none writes into what it reads, and the size of what each gives follows from sizes
# alone. The overload is named where it is not the default one.
_PUBLISHED = """
    reshape permute expand slice.Tensor select.int cat pad constant_pad_nd flip roll repeat pixel_shuffle
    pixel_unshuffle im2col col2im index_select
    add.Tensor sub.Tensor mul.Tensor div.Tensor div.Tensor_mode add.Scalar sub.Scalar mul.Scalar div.Scalar
    rsub.Scalar rsub.Tensor
    pow.Tensor_Scalar pow.Scalar pow.Tensor_Tensor neg abs
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square
    sin cos tan atan atan2 sinh cosh erf
    floor ceil round trunc frac sign
    clamp clamp.Tensor clamp_min clamp_max
    maximum minimum fmod.Scalar remainder.Scalar floor_divide lerp.Scalar lerp.Tensor addcmul addcdiv
    where.self where.ScalarSelf where.ScalarOther where.Scalar masked_fill.Scalar masked_fill.Tensor
    _to_copy to.dtype type_as
    eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar
    ge.Tensor
    logical_and logical_or logical_not logical_xor bitwise_and.Tensor bitwise_or.Tensor bitwise_not __and__.Tensor
    __or__.Tensor
    isnan isinf nan_to_num
    relu relu6 leaky_relu prelu elu celu selu gelu silu mish
    tanh sigmoid log_sigmoid hardtanh hardswish hardsigmoid hardshrink softshrink
    softplus threshold glu
    softmax.int log_softmax.int _softmax _log_softmax
    mean.dim mean sum.dim_IntList sum prod.dim_int
    amax amin max.dim min.dim max min
    var.dim var.correction std.dim std.correction var_mean.correction logsumexp linalg_vector_norm
    norm.ScalarOpt_dim
    cumsum cumprod argmax argmin any.dim any all.dim all
    topk sort diff
    layer_norm rms_norm group_norm instance_norm batch_norm _native_batch_norm_legit_no_training
    _native_batch_norm_legit.no_stats native_layer_norm native_group_norm
    linear matmul bmm mm mv addmm baddbmm bilinear einsum dot outer
    scaled_dot_product_attention embedding embedding_bag.padding_idx
    conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding
    conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution
    max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices max_unpool2d
    avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d
    upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_linear1d.vec
    upsample_bilinear2d.vec upsample_bicubic2d.vec upsample_trilinear3d.vec upsample_nearest2d upsample_bilinear2d
    grid_sampler affine_grid_generator channel_shuffle
    lstm.input gru.input rnn_tanh.input rnn_relu.input lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    index.Tensor gather scatter.src scatter.value scatter_add index_add index_put take_along_dim
    slice_scatter select_scatter copy fill.Scalar fill.Tensor
    tril triu diagonal diag_embed unfold rot90
    meshgrid.indexing stack repeat_interleave.self_int tile
    zeros ones full arange arange.start arange.start_step linspace eye
    zeros_like ones_like full_like new_zeros new_ones new_full
    one_hot cdist cosine_similarity
    fft_rfft2 fft_irfft2 view_as_real view_as_complex real imag
    _weight_norm expand_as fft_fftn lift_fresh_copy min.other multiply.Tensor reshape_as swapaxes to.device
    to.dtype_layout unique_consecutive vdot zero
"""
OPERATORS = tuple(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in _PUBLISHED.split())
NUMBERS = {name: number for number, name in enumerate(OPERATORS)}
LONGEST_REASON = 200  # letters


class AtenKind(LayerKind):
    """What all calls have in common."""

    joins = True
    number = 40  # in files, one for all: what a call does with channels follows from its operator

    def takes(self, count: int) -> bool:
        return count > 0

    def output_shape(self, module: AtenCall, *arriving: Shape) -> Shape:
        try:
            shape = tuple(traced(module, arriving).shape)
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"{module.target} does not take {arriving}: {str(error).splitlines()[0][:120]}") from error
        expect(int(np.prod(shape, dtype=object)) <= LARGEST_LAYER, f"{module.target} gives {shape}")
        return shape

    def weights_of(self, module: AtenCall) -> tuple[str, ...]:
        """Learned tensors that are used directly; not biases, nor the gains and shifts of norms."""
        if is_norm(module.target):
            return ()
        return tuple(name for name, argument in module.owned() if argument != "bias" and name in module._parameters)

    def describe(self, module: AtenCall) -> dict[str, Any]:
        own: dict[str, tuple[Tensor, bool]] = {name: (numbers, True) for name, numbers in module.named_parameters()}
        own |= {name: (numbers, False) for name, numbers in module.named_buffers()}
        own = dict(sorted(own.items(), key=lambda each: int(each[0].removeprefix("own"))))  # files have no names
        return {
            "target": module.target,
            "arguments": to_plain(module.arguments),
            "named": {name: to_plain(value) for name, value in module.named.items()},
            "own": {
                name: [list(numbers.shape), str(numbers.dtype).removeprefix("torch."), learned]
                for name, (numbers, learned) in own.items()
            },
            "pick": module.pick,
            "dtypes": [[place, name] for place, name in module.dtypes.items()],
        } | ({"why": module.why} if module.why else {})

    def build(self, described: Mapping[str, Any]) -> nn.Module:
        own: dict[str, Tensor] = {}
        for name, (shape, dtype, learned) in described["own"].items():
            if shape:
                bounded(*shape)
            numbers = torch.zeros(tuple(shape), dtype=getattr(torch, dtype))
            own[name] = nn.Parameter(numbers, requires_grad=False) if learned else numbers
        arguments = [from_plain(argument) for argument in described["arguments"]]
        named = {name: from_plain(value) for name, value in described["named"].items()}
        dtypes = dict(described["dtypes"])
        call = call_of(described["target"], arguments, named, own, described["pick"], dtypes)
        call.why = str(described.get("why", ""))[:LONGEST_REASON]
        return call

    def untold(self) -> tuple[str, ...]:
        return ("operator", "arguments", "rest")

    def write(self, module: AtenCall, name: str, arriving: Shape, file: FileWriter) -> list[Any]:
        if module.target not in NUMBERS:
            raise BhcError(
                f"step {name!r} calls {module.target}, which a .bhc file has no number for",
                hint="save it as .pt2 (to_torch), or as ONNX",
            )
        described = self.describe(module)
        for _, dtype, *_ in (*described["own"].values(), *described["dtypes"]):
            if dtype not in DTYPES:
                raise BhcError(
                    f"step {name!r} has values of dtype {dtype}, which a .bhc file cannot hold",
                    hint="save it as .pt2 (to_torch), or as ONNX",
                )
        own = [[shape, DTYPES.index(dtype), learned] for shape, dtype, learned in described["own"].values()]
        dtypes = [[place, DTYPES.index(dtype)] for place, dtype in described["dtypes"]]
        named = {key: _shorter(value) for key, value in described["named"].items()}
        if own:
            file.floats(name, module)
        stored = {
            part: value for part, value in enumerate((named, own, module.pick, dtypes)) if value not in ({}, [], None)
        }
        return [self.tag, NUMBERS[module.target], _shorter(described["arguments"]), stored]

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        match entry:
            case [_, int(number), list(arguments), dict(rest)] if (
                number in range(len(OPERATORS)) and set(rest) <= PARTS
            ):
                own = {
                    f"own{place}": (_sizes(shape), DTYPES[_place(dtype, DTYPES)], learned is True)
                    for place, (shape, dtype, learned) in enumerate(rest.get(1, ()))
                }
                pick, stored = rest.get(2), rest.get(0, {})
                expect(isinstance(stored, dict) and all(isinstance(key, str) for key in stored), "an unknown argument")
                named = {key: _longer(value) for key, value in stored.items()}
                expect(pick is None or (type(pick) is int and 0 <= pick < 16), "an unknown result")
                described = {
                    "target": OPERATORS[number],
                    "arguments": _longer(arguments),
                    "named": named,
                    "own": own,
                    "pick": pick,
                    "dtypes": [(_place(at, range(1 << 10)), DTYPES[_place(d, DTYPES)]) for at, d in rest.get(3, ())],
                }
            case _:
                raise unknown(entry)
        with torch.device("meta"):
            module: Any = self.build(described)
        file.add(module.family, module)

    def to_onnx(self, module: AtenCall, name: str, writer: OnnxWriter) -> None:
        write_call(module, name, writer)

    def examples(self) -> Sequence[Example]:
        return []


PARTS = frozenset(range(4))  # of a step in a file: named arguments, its own tensors, which result, dtypes

WORDS = ("read", "own", "size", "dtype", "device")  # of what is no plain argument; a file has their numbers


def _shorter(plain: Any) -> Any:
    if isinstance(plain, dict):
        ((word, value),) = plain.items()
        short = int(value.removeprefix("own")) if word == "own" else DTYPES.index(value) if word == "dtype" else value
        return {WORDS.index(word): short}
    return [_shorter(part) for part in plain] if isinstance(plain, list) else plain


def _longer(stored: Any) -> Any:
    if isinstance(stored, dict):
        expect(len(stored) == 1, f"{brief(stored)} as an argument")
        ((number, value),) = stored.items()
        word = WORDS[_place(number, WORDS)]
        if word == "own":
            return {word: f"own{_place(value, range(1 << 10))}"}
        return {word: DTYPES[_place(value, DTYPES)] if word == "dtype" else value}
    return [_longer(part) for part in stored] if isinstance(stored, list) else stored


def _place(number: Any, among: Sequence[Any]) -> int:
    expect(type(number) is int and 0 <= number < len(among), f"{brief(number)} as an argument")
    return number


def _sizes(shape: Any) -> list[int]:
    expect(
        isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape), f"{brief(shape)} as a shape"
    )
    return shape


class OpaqueKind(AtenKind, Whole):
    """Nothing is known of it but that it runs."""

    name, module = Opaque.family, Opaque

    def num_flops(self, module: Opaque, arriving: Sequence[Shape], leaving: Shape) -> int:
        """Products of two values, counted as those of layers are."""
        return count_flops(module, arriving, leaving)

    def examples(self) -> Sequence[Example]:
        return [(Opaque("aten.matmul.default", [Read(0), Read(1)]), ((2, 3, 4), (2, 4, 3)))]


def count_flops(module: AtenCall, arriving: Sequence[Shape], leaving: Shape) -> int:
    """Two operations a multiplication of a product, of weights or of values."""
    own = {argument: getattr(module, name) for name, argument in module.owned()}
    numel = int(np.prod(leaving, dtype=object))
    match module.op:
        case "linear":
            return 2 * numel * arriving[0][-1]
        case "conv1d" | "conv2d" | "conv3d" if "weight" in own:
            return 2 * numel * own["weight"][0].numel()
        case "matmul" | "bmm" | "mm" | "baddbmm" | "addmm" if arriving:
            return 2 * numel * arriving[0][-1]
        case "scaled_dot_product_attention" if len(arriving) >= 3:
            query, key = arriving[:2]
            scores = int(np.prod(query[:-1], dtype=object)) * key[-2]
            return 2 * scores * (query[-1] + arriving[2][-1])
        case "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" if "weight" in own:
            return 2 * int(np.prod(arriving[0], dtype=object)) * own["weight"][0].numel()
    return 0


def with_own_narrowed(module: AtenCall, leaving: Kept) -> AtenCall:
    """The call with those of its own numbers that stand at what stays."""
    return with_own(module, {name: leaving.pick(numbers) for name, numbers in module.named_own()})


def with_own(module: AtenCall, numbers: Mapping[str, Tensor]) -> AtenCall:
    """The call with other numbers of its own."""
    twin: Any = bare_copy(module)
    twin.traces = {}
    for name, own in numbers.items():
        if name in twin._parameters:
            twin._parameters[name] = fixed(own.detach().cpu().clone())
        else:
            twin._buffers[name] = own.detach().cpu().clone()
    return twin


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


KINDS = (OpaqueKind,)
