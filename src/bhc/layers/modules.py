"""Modules once more: with the same numbers, or with numbers of their own."""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def bare_copy(module: Module) -> Module:
    """A module once more, with the same numbers and children, of which each may be replaced.

    A constructor would draw weights that are replaced at once, and a deep copy walk through everything: together they
    took most of the time of an emission.
    """
    twin = module.__new__(type(module))
    vars(twin).update(
        {name: value.copy() if isinstance(value, dict) else value for name, value in vars(module).items()}
    )
    return twin


def own_copy(module: nn.Module) -> nn.Module:
    """A module once more, on the CPU, with numbers of its own: moving them must not move the model's."""
    if module._modules:
        return copy.deepcopy(module).cpu()
    twin = bare_copy(module)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            twin._parameters[name] = fixed(parameter.detach().cpu().clone())
    for name, buffer in module._buffers.items():
        if buffer is not None:
            twin._buffers[name] = buffer.cpu().clone()
    return twin


def fixed(numbers: Tensor) -> nn.Parameter:
    """Numbers that are not learned."""
    return nn.Parameter(numbers, requires_grad=False)


def picked(numbers: Tensor, kept: Tensor, axis: int = 0) -> nn.Parameter:
    """The numbers of what is kept, on the CPU."""
    return fixed(torch.index_select(numbers.detach().cpu(), axis, kept))
