"""A graph as plain data and back: what run folders and emitted files store instead of code."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import nn

from bhc.errors import BhcError
from bhc.graph.graph import INPUT, Graph, Step
from bhc.graph.kinds import CONVOLUTIONS, KINDS, KINDS_BY_NAME, PRODUCTS
from bhc.graph.steps import Place, Select

# No supported layer comes near this; a damaged or hostile description must not make us allocate more.
LARGEST_LAYER = 1 << 28
LARGEST_WINDOW = 1 << 12  # samples; the waves of a window are its square


def describe(graph: Graph) -> list[dict[str, Any]]:
    """One dict a step: the kind's name, the step's name, the constructor's arguments, and what it reads.

    A step that reads just the one before it does not say so.
    """
    described, before = [], INPUT
    for step in graph.steps:
        described.append(_describe_step(step.name, step.module))
        if step.reads != (before,):
            described[-1]["reads"] = list(step.reads)
        before = step.name
    return described


def _describe_step(name: str, module: nn.Module) -> dict[str, Any]:
    kind = KINDS[type(module)]
    step: dict[str, Any] = {"kind": kind.name, "name": name}
    step |= {argument: getattr(module, argument) for argument in kind.arguments}
    if isinstance(module, PRODUCTS):
        step["bias"] = module.bias is not None
    if kind.name in ("select", "place"):
        step["kept"] = len(module.index)  # type: ignore[arg-type]
    if kind.name == "normalise":
        step["channels"] = module.mean.numel() if module.mean.dim() else None  # type: ignore[operator]
    return step


def rebuild(steps: Sequence[Any]) -> Graph:
    """The graph that ``steps`` describe, its tensors uninitialised: load a state dict into it."""
    try:
        built, before = [], INPUT
        for step in steps:
            name, reads = str(step["name"]), tuple(map(str, step.get("reads", (before,))))
            built.append(Step(name, _rebuild_step({key: step[key] for key in step if key != "reads"}), reads))
            before = name
        return Graph(built)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError, AttributeError) as error:
        raise BhcError(f"the description of the network is damaged: {error!r}") from error


def _rebuild_step(step: dict[str, Any]) -> nn.Module:
    kind = KINDS_BY_NAME[step.pop("kind")]
    step.pop("name")
    if kind.name == "normalise":
        channels = step.get("channels")
        number: Any = 0.0 if channels is None else [0.0] * _bounded(channels)
        return kind.module(number, 1.0 if channels is None else [1.0] * channels)
    if kind.name in ("select", "place"):
        index = torch.zeros(_bounded(step["kept"]), dtype=torch.long)
        return Select(index) if kind.name == "select" else Place(index, _bounded(step["width"]))
    arguments = {name: _argument(value) for name, value in step.items()}
    if kind.module in CONVOLUTIONS:
        arguments.setdefault("groups", 1)  # older descriptions know no others
    if set(arguments) - {"bias"} != set(kind.arguments):
        raise ValueError(f"a {kind.name} step with arguments {sorted(arguments)}")
    if kind.name == "linear":
        _bounded(arguments["in_features"], arguments["out_features"])
    elif kind.module in CONVOLUTIONS:
        _bounded(arguments["groups"])
        inputs = _bounded(arguments["in_channels"]) // arguments["groups"]
        kernel = arguments["kernel_size"]
        if len(kernel) != 1 + CONVOLUTIONS.index(kind.module):
            raise ValueError(f"a {kind.name} step with a kernel of size {kernel}")
        _bounded(max(inputs, 1), arguments["out_channels"], *kernel)
    elif kind.name == "embedding":
        _bounded(arguments["count"])
        _bounded(arguments["rows"], arguments["channels"])
    elif kind.name == "log-mel":
        _bounded(arguments["rate"], arguments["hop"])
        if _bounded(arguments["window"]) > LARGEST_WINDOW or _bounded(arguments["bands"]) > arguments["window"] // 2:
            raise ValueError(f"{arguments['bands']} bands of windows of {arguments['window']} samples")
    elif kind.name in ("affine", "channel-norm"):
        _bounded(arguments["channels"])
    elif kind.name == "self-attention":
        _bounded(arguments["channels"], arguments["channels"])
        if arguments["channels"] % _bounded(arguments["heads"]):
            raise ValueError(f"{arguments['channels']} channels for {arguments['heads']} heads")
    elif kind.name == "shift":
        _bounded(*arguments["shape"])
    return kind.module(**arguments)


def _argument(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _bounded(*sizes: int) -> int:
    """Their product, if each is a positive whole number and the product is not absurd."""
    if not all(type(size) is int and 0 < size <= LARGEST_LAYER for size in sizes) or prod(sizes) > LARGEST_LAYER:
        raise ValueError(f"a layer of {' x '.join(map(str, sizes))} numbers")
    return prod(sizes)
