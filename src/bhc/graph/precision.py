"""Single precision as double, wherever it stands: in numbers, and in dtypes that a program names."""

from typing import Any

import torch
from torch import Tensor, nn

from bhc.graph.graph import Graph
from bhc.layers import bare_copy
from bhc.layers.aten import AtenCall, Dtype


def wider(part: Any) -> Any:
    """A tensor or a dtype in double precision, if it was in single; anything else as it is."""
    if isinstance(part, Tensor):
        return part.double() if part.dtype == torch.float32 else part
    if isinstance(part, list):
        return [wider(each) for each in part]
    if part is torch.float32:
        return torch.float64
    return Dtype("float64") if part == Dtype("float32") else part


def as_it_is(part: Any) -> Any:
    return part


def in_double_precision(graph: Graph) -> Graph:
    """The same graph, whose numbers are doubles, computing so also where a step names its dtype."""
    replaced: dict[str, nn.Module] = {}
    for step in graph.steps:
        if isinstance(step.module, AtenCall):
            arguments = [wider(argument) for argument in step.module.arguments]
            named = {name: wider(argument) for name, argument in step.module.named.items()}
            if arguments != step.module.arguments or named != step.module.named:
                replaced[step.name] = twin = bare_copy(step.module)
                twin.arguments, twin.named = arguments, named
    return graph.with_steps(replaced)
