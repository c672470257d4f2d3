"""A chain as plain data and back: what run folders and emitted files store instead of code."""

from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import nn

from bhc.errors import BhcError
from bhc.graph.kinds import KINDS, KINDS_BY_NAME

# No supported layer comes near this; a damaged or hostile description must not make us allocate more.
LARGEST_LAYER = 1 << 28


def describe(chain: nn.Sequential) -> list[dict[str, Any]]:
    """One dict a step: the kind's name, the step's name and the constructor's arguments."""
    return [_describe_step(name, module) for name, module in chain.named_children()]


def _describe_step(name: str, module: nn.Module) -> dict[str, Any]:
    kind = KINDS[type(module)]
    step: dict[str, Any] = {"kind": kind.name, "name": name}
    step |= {argument: getattr(module, argument) for argument in kind.arguments}
    if kind.name in ("linear", "conv-2d"):
        step["bias"] = module.bias is not None
    if kind.name == "select":
        step["kept"] = len(module.index)  # type: ignore[arg-type]
    return step


def rebuild(steps: Sequence[Any]) -> nn.Sequential:
    """The chain that ``steps`` describe, its tensors uninitialised: load a state dict into it."""
    try:
        named = [(str(step["name"]), _rebuild_step(dict(step))) for step in steps]
        if len({name for name, _ in named}) < len(named):
            raise ValueError("two steps have one name")
        return nn.Sequential(OrderedDict(named))
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BhcError(f"the description of the network is damaged: {error!r}") from error


def _rebuild_step(step: dict[str, Any]) -> nn.Module:
    kind = KINDS_BY_NAME[step.pop("kind")]
    step.pop("name")
    if kind.name == "normalise":
        return kind.module(0.0, 1.0)
    if kind.name == "select":
        return kind.module(torch.zeros(_bounded(step["kept"]), dtype=torch.long))
    arguments = {name: _argument(value) for name, value in step.items()}
    if set(arguments) - {"bias"} != set(kind.arguments):
        raise ValueError(f"a {kind.name} step with arguments {sorted(arguments)}")
    if kind.name == "linear":
        _bounded(arguments["in_features"], arguments["out_features"])
    elif kind.name == "conv-2d":
        height, width = arguments["kernel_size"]
        _bounded(arguments["in_channels"], arguments["out_channels"], height, width)
    return kind.module(**arguments)


def _argument(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _bounded(*sizes: int) -> int:
    """Their product, if each is a positive whole number and the product is not absurd."""
    if not all(type(size) is int and 0 < size <= LARGEST_LAYER for size in sizes) or prod(sizes) > LARGEST_LAYER:
        raise ValueError(f"a layer of {' x '.join(map(str, sizes))} numbers")
    return prod(sizes)
