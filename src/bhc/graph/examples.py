"""Inputs that a network is captured with: two examples, as one tensor, or as several by place or by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bhc.errors import BhcError
from bhc.graph.graph import Inputs
from bhc.layers import EXAMPLES

DynamicAxes = Sequence[int] | Mapping[str, Sequence[int]]  # of every input, or of some by name
SHORTER = 0.6  # of an axis whose size is not fixed, so much is left to see whether it is not


@dataclass(frozen=True)
class Examples:
    """Arguments of a network, each with the batch first."""

    tensors: tuple[Tensor, ...]
    batch: int  # how many were given
    names: tuple[str, ...]  # as the caller has them; places as numbers where there are none
    by_name: bool
    dynamic: tuple[tuple[int, ...], ...]  # of each, the axes whose size is not fixed, beside the batch

    @classmethod
    def like(cls, example_input: Any, dynamic_axes: DynamicAxes = ()) -> "Examples":
        """Two of them, whatever number was given: with one, torch takes the size of the batch for fixed."""
        by_name = isinstance(example_input, Mapping)
        named: dict[str, Any]
        if isinstance(example_input, Mapping):
            named = {str(name): value for name, value in example_input.items()}
        else:
            several = example_input if isinstance(example_input, tuple | list) else (example_input,)
            named = {str(place): value for place, value in enumerate(several)}
        for name, value in named.items():
            if not isinstance(value, Tensor) or not value.dim() or not len(value):
                what = "" if len(named) == 1 and not by_name else f"[{name if not by_name else repr(name)}]"
                raise _refused(f"example_input{what} is {_described(value)}")
        lengths = {len(value) for value in named.values()}
        if len(lengths) != 1:
            told = ", ".join(f"{name}: {len(value)}" for name, value in named.items()) or "none"
            raise _refused(f"example_input has batches of several sizes: {told}")
        tensors = tuple(map(_two, named.values()))
        return cls(tensors, lengths.pop(), tuple(named), by_name, _axes(named, dynamic_axes))

    @property
    def is_plain(self) -> bool:
        """Whether there is one tensor of some size, of which nothing but the batch may have another."""
        return len(self.tensors) == 1 and not self.by_name and not any(self.dynamic) and self.tensors[0].dim() > 1

    @property
    def shapes(self) -> Any:
        """Of what was given."""
        shapes = [(self.batch, *tensor.shape[1:]) for tensor in self.tensors]
        if self.by_name:
            return dict(zip(self.names, shapes, strict=True))
        return shapes[0] if len(shapes) == 1 else tuple(shapes)

    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """By place and by name."""
        copies = tuple(tensor.clone() for tensor in self.tensors)
        return ((), dict(zip(self.names, copies, strict=True))) if self.by_name else (copies, {})

    def given_to(self, net: nn.Module) -> Any:
        placed, named = self.arguments()
        return net(*placed, **named)

    def check_named(self, net: nn.Module) -> None:
        """BhcError where the forward pass takes one of them as ``**kwargs``, which torch.export has no sizes for."""
        parameters = inspect.signature(net.forward).parameters.values()
        known = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
        other = [name for name in self.names if self.by_name and name not in known]
        if other:
            raise BhcError(
                f"the forward pass of {type(net).__name__} has no parameter {other[0]!r}, but takes any name",
                hint="write a module around it, whose forward pass names its inputs",
            )

    def as_inputs(self) -> Inputs:
        """As a graph takes them."""
        return self.tensors[0] if len(self.tensors) == 1 else self.tensors

    def exported(self, net: nn.Module) -> Any:
        """The program that ``torch.export`` makes of a network, told what may have another size."""
        placed, named = self.arguments()
        tensors = (*placed, *named.values())
        free = {id(tensor): (0, *axes) for tensor, axes in zip(tensors, self.dynamic, strict=True)}
        bound = dict(inspect.signature(net.forward).bind(*placed, **named).arguments)  # as the forward pass names them
        shapes = pytree.tree_map(lambda tensor: dict.fromkeys(free[id(tensor)], torch.export.Dim.DYNAMIC), bound)
        return torch.export.export(net, placed, named, dynamic_shapes=shapes, strict=False)

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Examples":
        return replace(self, tensors=tuple(map(change, self.tensors)))

    def shortened(self) -> "Examples":
        """With other sizes along the axes that allow it."""

        def shorter(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
            for axis in axes:
                tensor = tensor.narrow(axis, 0, max(int(SHORTER * tensor.shape[axis]), 1))
            return tensor

        return replace(self, tensors=tuple(map(shorter, self.tensors, self.dynamic)))

    def drawn(self, words: Callable[[int], int | None], *, seed: int) -> "Examples":
        """Random ones of the same sizes; ``words`` says how many there are, for an input that holds such."""
        draws = torch.Generator().manual_seed(seed)
        made = (_drawn(tensor, words(place), draws) for place, tensor in enumerate(self.tensors))
        return replace(self, tensors=tuple(made))

    def with_drawn_floats(self) -> "Examples":
        """Floats are drawn, as large as those given: of zeros, or of equal examples, little could be learned."""
        drawn = self.drawn(lambda place: None, seed=0).tensors
        both = zip(self.tensors, drawn, strict=True)
        return replace(self, tensors=tuple(new if old.is_floating_point() else old for old, new in both))

    def repeated(self) -> "Examples":
        """In reverse, and the first once more."""
        return self.changed(lambda tensor: torch.cat([tensor.flip(0), tensor[:1]]))


def _two(example: Tensor) -> Tensor:
    example = example.detach().cpu()
    two = example[:EXAMPLES].clone() if len(example) >= EXAMPLES else torch.cat([example[:1]] * EXAMPLES)
    return two.float() if two.is_floating_point() else two


def _drawn(example: Tensor, words: int | None, draws: torch.Generator) -> Tensor:
    shape = tuple(example.shape)
    if example.is_floating_point():
        peak = float(example.abs().max()) or 1.0
        return peak * torch.randn(shape, generator=draws)
    lowest, beyond = int(example.min()), words or int(example.max()) + 1
    return torch.randint(lowest, max(beyond, lowest + 1), shape, generator=draws).to(example.dtype)


def _axes(named: Mapping[str, Tensor], wanted: DynamicAxes) -> tuple[tuple[int, ...], ...]:
    if isinstance(wanted, Mapping):
        unknown = [name for name in wanted if name not in named]
        if unknown:
            raise BhcError(f"dynamic_axes of {unknown[0]!r}", hint=f"the inputs are: {', '.join(named)}")
        by_input = {name: tuple(wanted.get(name, ())) for name in named}
    else:
        by_input = {name: tuple(axis for axis in wanted if axis < value.dim()) for name, value in named.items()}
        if not all(any(axis < value.dim() for value in named.values()) for axis in wanted):
            raise BhcError(f"dynamic_axes={tuple(wanted)}, and no input has so many axes")
    for name, axes in by_input.items():
        if not all(type(axis) is int and 0 < axis < named[name].dim() for axis in axes):
            raise BhcError(
                f"dynamic_axes={axes} of an input with the axes 0 to {named[name].dim() - 1}",
                hint="name axes after the batch, which is 0: for texts (1,)",
            )
        if any(named[name].shape[axis] < 2 for axis in axes):  # torch takes a size of one for fixed
            raise BhcError(f"an example of size 1 along one of dynamic_axes={axes}", hint="give a longer one")
    return tuple(tuple(sorted(set(axes))) for axes in by_input.values())


def _described(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _refused(problem: str) -> BhcError:
    return BhcError(
        problem,
        hint="give a batch as the network takes it, for example torch.zeros(1, 3, 32, 32); several inputs are a tuple"
        " of such tensors, or a dict of them by the names that the forward pass has for them",
    )
