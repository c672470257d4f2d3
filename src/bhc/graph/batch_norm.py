"""Batch norm as it is when a network is used: two numbers a channel, taken into the layer before where one can."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from bhc.graph.graph import INPUT, Graph, Step
from bhc.layers import Affine, Embed, is_weighted

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fold_batch_norms(graph: Graph) -> Graph:
    """The same function without batch norms; exact, since the statistics are fixed in eval mode.

    ``a (W x + b) + c = (a W) x + (a b + c)`` with ``a = weight / sqrt(var + eps)`` and ``c = bias - a mean``.
    Where the value before is no layer's, or others read it too, the two numbers stay as a step of their own.
    """
    steps: dict[str, Step] = {}
    instead: dict[str, str] = {INPUT: INPUT}  # whose result stands for that of a step that is gone
    for step in graph.steps:
        reads = tuple(instead[name] for name in step.reads)
        instead[step.name] = step.name
        if not isinstance(step.module, BATCH_NORMS):
            steps[step.name] = Step(step.name, step.module, reads)
            continue
        factor, shift = _numbers(step.module)
        before = steps.get(reads[0])
        if before is not None and _is_product(before.module) and len(graph.readers[step.reads[0]]) == 1:
            steps[before.name] = Step(before.name, _folded(before.module, factor, shift), before.reads)
            instead[step.name] = before.name
        else:
            steps[step.name] = Step(step.name, _affine(factor, shift), reads)
    return Graph(steps.values())


def _is_product(module: nn.Module) -> bool:
    """Whether it has a bias, or could have one."""
    return is_weighted(module) and not isinstance(module, Embed)


def _numbers(norm: Any) -> tuple[Tensor, Tensor]:
    """``a`` and ``c`` of each channel."""
    factor = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        factor = factor * norm.weight.detach()
    shift = -factor * norm.running_mean
    return factor, shift if norm.bias is None else shift + norm.bias.detach()


def _folded(module: Any, factor: Tensor, shift: Tensor) -> nn.Module:
    folded = copy.deepcopy(module)
    weight = module.weight.detach()
    bias = shift if module.bias is None else factor * module.bias.detach() + shift
    folded.weight = nn.Parameter(weight * factor.view(-1, *[1] * (weight.dim() - 1)), requires_grad=False)
    folded.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return folded


def _affine(factor: Tensor, shift: Tensor) -> Affine:
    affine = Affine(len(factor))
    affine.weight.data, affine.bias.data = factor.clone(), shift.clone()
    return affine
