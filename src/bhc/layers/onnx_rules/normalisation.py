"""Norms: of the last axes, of groups of channels, of channels, by statistics of training."""

import numpy as np
import torch

from bhc.layers.onnx_rules.node_call import NodeCall, rule


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
