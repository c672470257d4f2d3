"""Calls that have weights, or sum products: linear layers, products of matrices, Einstein's sums, attention, distances,
recurrent layers, convolutions, norms."""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bhc.layers.aten import SizeOf
from bhc.layers.onnx_rules import NodeCall, rule

PLACES = 2  # the first of their axes


@rule("linear")
def linear(call: NodeCall) -> str:
    x, bias = call.operand("input"), call.argument("bias")
    biases = [] if bias is None else [call.operand(bias)]
    if len(call.shape("input")) == 2:
        return call.node("Gemm", x, call.operand("weight"), *biases, transB=1)
    made = call.node("MatMul", x, call.node("Transpose", call.operand("weight"), perm=[1, 0]))
    return call.node("Add", made, *biases) if biases else made


@rule("matmul")
def matmul(call: NodeCall) -> str:
    return call.node("MatMul", call.operand("self"), call.operand("other"))


@rule("mm", "bmm")
def mm(call: NodeCall) -> str:
    return call.node("MatMul", call.operand("self"), call.operand("mat2"))


@rule("mv")
def mv(call: NodeCall) -> str:
    return call.node("MatMul", call.operand("self"), call.operand("vec"))


@rule("dot")
def dot(call: NodeCall) -> str:
    return call.node("MatMul", call.operand("self"), call.operand("tensor"))


@rule("outer")
def outer(call: NodeCall) -> str:
    column = call.node("Unsqueeze", call.operand("self"), [1])
    return call.node("Mul", column, call.operand("vec2"))


@rule("addmm")
def addmm(call: NodeCall) -> str:
    return _added(call, call.node("MatMul", call.operand("mat1"), call.operand("mat2")))


@rule("baddbmm")
def baddbmm(call: NodeCall) -> str:
    return _added(call, call.node("MatMul", call.operand("batch1"), call.operand("batch2")))


def _added(call: NodeCall, product: str) -> str:
    """``beta self + alpha product``."""
    own, alpha, beta = call.operand("self"), call.plain("alpha"), call.plain("beta")
    product = product if alpha == 1 else call.node("Mul", product, alpha)
    if beta == 0:  # what is added then may be anything
        return product
    return call.node("Add", own if beta == 1 else call.node("Mul", own, beta), product)


@rule("einsum")
def einsum(call: NodeCall) -> str:
    equation = call.plain("equation").replace(" ", "")
    return call.node("Einsum", *[call.operand(part) for part in call.argument("tensors")], equation=equation)


@rule("bilinear")
def bilinear(call: NodeCall) -> str:
    """``x1 W x2`` for each output."""
    inputs = [call.operand(name) for name in ("input1", "weight", "input2")]
    made = call.node("Einsum", *inputs, equation="...i,oij,...j->...o")
    return made if call.argument("bias") is None else call.node("Add", made, call.operand("bias"))


@rule("cdist")
def cdist(call: NodeCall) -> str:
    """The distance of every row to every other's."""
    if call.plain("p") != 2:
        raise call.no_form(f"its distance is of order {call.plain('p')}")
    rows, columns = call.node("Unsqueeze", call.operand("x1"), [-2]), call.node("Unsqueeze", call.operand("x2"), [-3])
    return call.node("ReduceL2", call.node("Sub", rows, columns), [-1], keepdims=0)


@rule("scaled_dot_product_attention")
def attention(call: NodeCall) -> str:
    """``softmax(scale Q K^T + mask) V``; a row that is masked throughout attends to nothing."""
    if call.plain("dropout_p"):
        raise call.no_form("drops numbers at random")
    grouped = call.plain("enable_gqa")
    query = call.operand("query")
    key, value = (_heads(call, name) if grouped else call.operand(name) for name in ("key", "value"))
    scale = call.plain("scale")
    scale = call.fixed_size("query", -1) ** -0.5 if scale is None else scale
    rank = len(call.shape("key"))
    turned = call.node("Transpose", key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = call.node("MatMul", call.node("Mul", query, scale), turned)
    masked, attends = _masked(call, scores)
    shares = call.node("Softmax", masked, axis=-1)
    shares = shares if attends is None else call.node("Where", attends, shares, 0.0)
    return call.node("MatMul", shares, value)


def _heads(call: NodeCall, name: str) -> str:
    """Keys or values, those of a head repeated for all queries that share it."""
    x, heads, wanted = call.operand(name), call.fixed_size(name, -3), call.fixed_size("query", -3)
    if heads == wanted:
        return x
    if len(call.shape(name)) != 4:
        raise call.no_form("heads are shared in values of more than four axes")
    repeated = call.node("Expand", call.node("Unsqueeze", x, [2]), [1, 1, wanted // heads, 1, 1])
    return call.node("Reshape", repeated, [0, wanted, -1, call.fixed_size(name, -1)])


def _masked(call: NodeCall, scores: str) -> tuple[str, str | None]:
    """The scores under the mask, and which rows attend to anything, unless all do."""
    if call.plain("is_causal"):
        return call.node("Where", _causal(call), scores, -inf), None
    if call.argument("attn_mask") is None:
        return scores, None
    if call.like("attn_mask").dtype == torch.bool:
        mask = call.value("attn_mask")
        return call.node("Where", mask, scores, -inf), _attending(call, call.cast(mask, torch.bool, torch.float32), 0.0)
    mask = call.operand("attn_mask")
    return call.node("Add", scores, mask), _attending(call, mask, -inf)


def _attending(call: NodeCall, mask: str, least: float) -> str | None:
    """The rows of a mask that have a number above the least."""
    own = call.own("attn_mask")
    if own is not None and bool((own.amax(-1) > least).all()):
        return None
    return call.node("Greater", call.node("ReduceMax", mask, [-1], keepdims=1), least)


def _causal(call: NodeCall) -> str | np.ndarray:
    """Whether a key comes no later than a query."""
    queries, keys = call.size("query", -2), call.size("key", -2)
    if not isinstance(queries, SizeOf) and not isinstance(keys, SizeOf):
        return np.tri(queries, keys, dtype=bool)
    zero, one = np.array(0), np.array(1)
    rows, columns = (call.node("Range", zero, call.value(size, torch.int64), one) for size in (queries, keys))
    return call.node("LessOrEqual", columns, call.node("Unsqueeze", rows, [1]))


# torch's gates in the order in which ONNX has them: input, output, forget, cell; update, reset, new.
ORDERS = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


@rule("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def recurrent(call: NodeCall) -> str:
    """A node for each layer; the states of all layers lie one after the other."""
    if len(call.shape("input")) != 3 or (call.plain("train") and call.plain("dropout")):
        raise call.no_form("it reads no batch, or drops numbers at random")
    x, turned, ends = call.operand("input"), call.plain("batch_first"), []
    x = call.node("Transpose", x, perm=[1, 0, 2]) if turned else x
    directions = 1 + call.plain("bidirectional")
    for layer, numbers in enumerate(_layers(call, directions)):
        first = layer * directions
        begin = [call.node("Slice", state, [first], [first + directions], [0]) for state in _states(call)]
        given, *end = _layer(call, x, begin, numbers)
        # (T, directions, N, H) -> (T, N, directions H)
        width = directions * numbers[0][1].shape[-1]
        x = call.node("Reshape", call.node("Transpose", given, perm=[0, 2, 1, 3]), [0, 0, width])
        ends.append(end)
    if call.module.pick:
        return call.node("Concat", *[end[call.module.pick - 1] for end in ends], axis=0)
    return call.node("Transpose", x, perm=[1, 0, 2]) if turned else x


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(call: NodeCall) -> str:
    """A sequence of one."""
    names = [name for name in ("w_ih", "w_hh", "b_ih", "b_hh") if call.argument(name) is not None]
    x, *begin = (call.node("Unsqueeze", value, [0]) for value in (call.operand("input"), *_states(call)))
    _, *end = _layer(call, x, begin, [_own(call, [call.argument(name) for name in names])])
    return call.node("Squeeze", end[call.module.pick or 0], [0])


def _states(call: NodeCall) -> list[str]:
    """What it begins with: an LSTM has two."""
    given = call.argument("hx")
    return [call.operand(state) for state in (given if isinstance(given, list) else [given])]


def _own(call: NodeCall, arguments: Sequence[Any]) -> list[Tensor]:
    numbers = [call.own(argument) for argument in arguments]
    if any(each is None for each in numbers):
        raise call.no_form("its numbers are not its own")
    return [each.float() for each in numbers if each is not None]


def _layers(call: NodeCall, directions: int) -> list[list[list[Tensor]]]:
    """The numbers of each direction of each layer: weights of inputs, of states, and both biases if there are any."""
    numbers, count = _own(call, call.argument("params")), 2 + 2 * call.plain("has_biases")
    if len(numbers) != call.plain("num_layers") * directions * count:
        raise call.no_form("it has more numbers than those of its gates")
    each = [numbers[start : start + count] for start in range(0, len(numbers), count)]
    return [each[start : start + directions] for start in range(0, len(each), directions)]


def _layer(call: NodeCall, x: str, begin: Sequence[str], numbers: Sequence[Sequence[Tensor]]) -> list[str]:
    """All of its states, and the last ones."""
    op = call.module.op
    kind = "LSTM" if "lstm" in op else "GRU" if "gru" in op else "RNN"
    own: dict[str, Any] = {"hidden_size": numbers[0][1].shape[-1]}
    own |= {"direction": "bidirectional"} if len(numbers) == 2 else {}
    own |= {"linear_before_reset": 1} if kind == "GRU" else {}
    own |= {"activations": ["Tanh" if "tanh" in op else "Relu"] * len(numbers)} if kind == "RNN" else {}
    weights, states, *biases = (_arranged(each, ORDERS[kind]) for each in zip(*numbers, strict=True))
    bias = np.concatenate(biases, axis=1) if biases else None
    return call.nodes(kind, 1 + len(begin), x, weights, states, bias, None, *begin, **own)


def _arranged(numbers: Sequence[Tensor], order: Sequence[int]) -> np.ndarray:  # (directions, gates H, ...)
    """Those of all directions, the gates in another order."""
    apart = [each.unflatten(0, (len(order), -1))[list(order)].flatten(0, 1) for each in numbers]
    return torch.stack(apart).numpy()


def every(call: NodeCall, name: str, count: int, default: int = 0) -> list[int]:
    """An argument that stands for every direction, or gives one for each."""
    given = call.plain(name)
    listed = given if isinstance(given, list) else [given]
    listed = [default] if listed in ([], [None]) else listed
    return listed * count if len(listed) == 1 else listed


def directions(call: NodeCall, which: str) -> int:
    """In how many directions there are places; NoForm where a value has no batch or no channels."""
    count = len(call.shape(which)) - PLACES
    if f"{count}d" not in call.module.op and call.module.op != "convolution":
        raise call.no_form(f"reads a value of {count + PLACES} axes")
    return count


@rule("conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def convolution(call: NodeCall) -> str:
    return _convolved(call, "Conv", _conv_padding(call))


@rule("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def transposed_convolution(call: NodeCall) -> str:
    return _transposed(call)


@rule("convolution")
def either_convolution(call: NodeCall) -> str:
    return _transposed(call) if call.plain("transposed") else convolution(call)


def _transposed(call: NodeCall) -> str:
    count = directions(call, "input")
    more = every(call, "output_padding", count)
    return _convolved(call, "ConvTranspose", every(call, "padding", count) * 2, output_padding=more)


def _convolved(call: NodeCall, kind: str, pads: Sequence[int], **attributes: Any) -> str:
    count = directions(call, "input")
    biases = [] if call.argument("bias") is None else [call.operand("bias")]
    attributes |= {"strides": every(call, "stride", count, 1), "dilations": every(call, "dilation", count, 1)}
    values = call.operand("input"), call.operand("weight"), *biases
    return call.node(kind, *values, pads=pads, group=call.plain("groups"), **attributes)


def _conv_padding(call: NodeCall) -> list[int]:
    """Before each direction, then after each."""
    count = directions(call, "input")
    if call.plain("padding") == "same":
        kernel = call.shape("weight")[PLACES:]
        spans = [step * (size - 1) for step, size in zip(every(call, "dilation", count, 1), kernel, strict=True)]
        return [span // 2 for span in spans] + [span - span // 2 for span in spans]
    return [0] * 2 * count if call.plain("padding") == "valid" else every(call, "padding", count) * 2


def _only_first(call: NodeCall) -> None:
    """Statistics, which some give beside, have no rule."""
    if call.module.pick not in (None, 0):
        raise call.no_form("its statistics are asked for")


def _ones(count: int | list[int]) -> np.ndarray:
    return np.ones(count, dtype=np.float32)


def _given(call: NodeCall, name: str) -> str | None:
    return None if call.argument(name) is None else call.operand(name)


@rule("layer_norm", "native_layer_norm")
def layer_norm(call: NodeCall) -> str:
    _only_first(call)
    sizes = call.plain("normalized_shape")
    gain = _given(call, "weight") or _ones(sizes)
    return call.node(
        "LayerNormalization", call.operand("input"), gain, _given(call, "bias"), axis=-len(sizes), epsilon=_eps(call)
    )


def _eps(call: NodeCall) -> float:
    return float(call.plain("eps"))


@rule("rms_norm")
def rms_norm(call: NodeCall) -> str:
    """``x / sqrt(mean x^2 + eps)``, times a gain."""
    x, eps = call.operand("input"), call.plain("eps")
    eps = torch.finfo(call.dtype).eps if eps is None else eps
    axes = list(range(-len(call.plain("normalized_shape")), 0))
    power = call.node("ReduceMean", call.node("Mul", x, x), axes, keepdims=1)
    made = call.node("Div", x, call.node("Sqrt", call.node("Add", power, eps)))
    gain = _given(call, "weight")
    return made if gain is None else call.node("Mul", made, gain)


@rule("group_norm")
def group_norm(call: NodeCall) -> str:
    """The channels of a group as the places of one channel; a gain and a shift for each that it was made of."""
    return _by_groups(call, call.plain("num_groups"))


@rule("native_group_norm")
def native_group_norm(call: NodeCall) -> str:
    _only_first(call)
    return _by_groups(call, call.plain("group"))


def _by_groups(call: NodeCall, groups: int) -> str:
    x = call.operand("input")
    together = call.node("Reshape", x, [0, groups, -1])
    flat = call.node("InstanceNormalization", together, _ones(groups), 0 * _ones(groups), epsilon=_eps(call))
    return _scaled(call, call.node("Reshape", flat, call.node("Shape", x)))


def _scaled(call: NodeCall, x: str) -> str:
    """With a gain and a shift for each channel."""
    places = [1] * (len(call.shape("input")) - 2)
    for name, kind in (("weight", "Mul"), ("bias", "Add")):
        numbers = _given(call, name)
        if numbers is not None:
            x = call.node(kind, x, call.node("Reshape", numbers, [-1, *places]))
    return x


@rule("instance_norm")
def instance_norm(call: NodeCall) -> str:
    if not call.plain("use_input_stats"):
        return _by_statistics(call)
    return call.node("InstanceNormalization", call.operand("input"), *_by_channel(call), epsilon=_eps(call))


def _by_channel(call: NodeCall) -> tuple[str | np.ndarray, str | np.ndarray]:
    """A gain and a shift for each channel, also where there are none."""
    ones = _ones(call.fixed_size("input", 1))
    return _given(call, "weight") or ones, _given(call, "bias") or 0 * ones


@rule("batch_norm", "_native_batch_norm_legit_no_training")
def batch_norm(call: NodeCall) -> str:
    _only_first(call)
    if call.plain("training") or call.argument("running_mean") is None:
        raise call.no_form("an example's result depends on the others of its batch")
    return _by_statistics(call)


def _by_statistics(call: NodeCall) -> str:
    statistics = [call.operand("running_mean"), call.operand("running_var")]
    values = call.operand("input"), *_by_channel(call), *statistics
    return call.node("BatchNormalization", *values, epsilon=_eps(call))
