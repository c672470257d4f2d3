"""What a network takes, one tensor or several by their places and names, and the examples that it is captured with."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bhc.errors import BhcError
from bhc.graph.graph import INPUT, Graph, Inputs
from bhc.layers import EXAMPLES, NetworkInput, Shape, check_words, kind_named, kind_of

ONE = "input"  # what an input is called that has no name of its own


@dataclass(frozen=True)
class Input:
    """One of them; ``shape`` is of one example."""

    name: str
    shape: Shape
    dtype: torch.dtype = torch.float32
    dynamic: tuple[int, ...] = ()  # axes along which other sizes are welcome; the batch, 0, is not among them
    words: int | None = field(default=None, compare=False)  # out of how many, where its numbers stand for words

    @classmethod
    def of(cls, module: NetworkInput) -> "Input":
        return cls(module.called, module.shape, getattr(torch, module.dtype), module.dynamic)

    def fits(self, x: Any) -> bool:
        """Whether a batch has the shape that it must have."""
        if not isinstance(x, Tensor) or x.dim() != 1 + len(self.shape):
            return False
        pairs = enumerate(zip(x.shape[1:], self.shape, strict=True), start=1)
        return all(given == wanted or axis in self.dynamic for axis, (given, wanted) in pairs)

    def sizes(self) -> tuple[int | str, ...]:
        """The shape of a batch, names in the place of sizes that are not fixed."""
        own = (f"{self.name}_{axis}" if axis in self.dynamic else size for axis, size in enumerate(self.shape, start=1))
        return ("batch", *own)

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.sizes()))})"


@dataclass(frozen=True)
class Signature:
    """The inputs of a network, in their order."""

    inputs: tuple[Input, ...]

    @classmethod
    def of(cls, graph: Graph, input_shape: Shape) -> "Signature":
        """``input_shape`` counts where the graph has no steps that say more."""
        modules = map(graph.get_submodule, graph.input_steps)
        own = tuple(Input.of(module) for module in modules if isinstance(module, NetworkInput))
        words = _words_read(graph)
        named = zip(graph.input_steps or (INPUT,), own or cls.one(input_shape), strict=True)
        return cls(tuple(replace(each, words=words.get(name)) for name, each in named))

    @classmethod
    def one(cls, shape: Shape) -> "Signature":
        """One tensor of floats."""
        return cls((Input(ONE, shape),))

    def __len__(self) -> int:
        return len(self.inputs)

    def __iter__(self) -> Iterator[Input]:
        return iter(self.inputs)

    def __str__(self) -> str:
        return ", ".join(map(str, self.inputs))

    @property
    def shape(self) -> Shape:
        """Of one example, where there is one input; nothing where there are several."""
        return self.inputs[0].shape if len(self) == 1 else ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.inputs)

    def zeros(self, count: int) -> tuple[Tensor, ...]:
        """So many examples of nothing."""
        return tuple(torch.zeros(count, *each.shape, dtype=each.dtype) for each in self.inputs)

    def dynamic_shapes(self) -> tuple[dict[int, Any], ...]:
        """As ``torch.export`` is told what may have another size."""
        return tuple(dict.fromkeys((0, *each.dynamic), torch.export.Dim.DYNAMIC) for each in self.inputs)

    def cast(self, x: Inputs) -> tuple[Tensor, ...]:
        """A batch in the dtypes that the network's files take."""
        several = (x,) if isinstance(x, Tensor) else x
        return tuple(given.to(each.dtype) for each, given in zip(self.inputs, several, strict=True))

    def to_list(self) -> list[dict[str, Any]]:
        return [
            {
                "name": each.name,
                "shape": list(each.shape),
                "dtype": str(each.dtype).removeprefix("torch."),
                "dynamic": list(each.dynamic),
            }
            for each in self.inputs
        ]

    @classmethod
    def from_list(cls, inputs: Any) -> "Signature":
        """What ``to_list`` made plain; ValueError, KeyError or TypeError for anything else."""
        described = [
            {"called": each["name"], "place": place, "dtype": each["dtype"]}
            | {key: tuple(each[key]) for key in ("shape", "dynamic")}
            for place, each in enumerate(inputs)
        ]
        modules: list[Any] = list(map(kind_named("given").build, described))
        return cls(tuple(map(Input.of, modules)))

    def taken(self, x: Any) -> Inputs:
        """A batch as the graph takes it: a tensor, or several as a tuple or a dict; BhcError where it does not fit."""
        if isinstance(x, Tensor):
            x = (x,)
        elif isinstance(x, Mapping):
            if set(x) != set(self.names):
                raise self._refused(f"inputs named {', '.join(map(str, x)) or 'nothing'}")
            x = tuple(x[name] for name in self.names)
        if not isinstance(x, Sequence) or len(x) != len(self):
            raise self._refused(f"{len(x)} inputs" if isinstance(x, Sequence) else f"a {type(x).__name__}")
        for each, given in zip(self.inputs, x, strict=True):
            if not each.fits(given):
                what = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"type {type(given).__name__}"
                raise self._refused(f"{'inputs' if len(self) == 1 else each.name} of {what}")
            if each.words is not None:
                check_words(given, each.words)
        if len({len(given) for given in x}) > 1:
            raise self._refused(f"batches of {', '.join(str(len(given)) for given in x)} examples")
        x = tuple(given.float() if given.is_floating_point() else given for given in x)
        return x[0] if len(x) == 1 else x

    def _refused(self, what: str) -> BhcError:
        return BhcError(what, hint=f"this network takes {self}")


def _words_read(graph: Graph) -> dict[str, int]:
    """By the names of inputs that an embedding reads, out of how many words they pick."""
    words = ((step.reads[0], kind_of(step.module).words(step.module)) for step in graph.steps if step.reads)
    found: dict[str, int] = {}
    for name, own in words:
        if own is not None:
            found[name] = min(own[0], found.get(name, own[0]))
    return found


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
        shapes = [(self.batch, *tensor.shape[1:]) for tensor in self.tensors]
        if self.by_name:
            return dict(zip(self.names, shapes, strict=True))
        return shapes[0] if len(shapes) == 1 else tuple(shapes)

    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        copies = tuple(tensor.clone() for tensor in self.tensors)
        return ((), dict(zip(self.names, copies, strict=True))) if self.by_name else (copies, {})

    def passed_to(self, net: nn.Module) -> Any:
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

    def sampled(self, words: Callable[[int], int | None], *, seed: int) -> "Examples":
        """Random ones of the same sizes; ``words`` says how many there are, for an input that holds such."""
        draws = torch.Generator().manual_seed(seed)
        made = (_sampled(tensor, words(place), draws) for place, tensor in enumerate(self.tensors))
        return replace(self, tensors=tuple(made))

    def with_sampled_floats(self) -> "Examples":
        """Floats are sampled, as large as those given: of zeros, or of equal examples, little could be learned."""
        sampled = self.sampled(lambda place: None, seed=0).tensors
        both = zip(self.tensors, sampled, strict=True)
        return replace(self, tensors=tuple(new if old.is_floating_point() else old for old, new in both))

    def repeated(self) -> "Examples":
        """In reverse, and the first once more."""
        return self.changed(lambda tensor: torch.cat([tensor.flip(0), tensor[:1]]))


def _two(example: Tensor) -> Tensor:
    example = example.detach().cpu()
    two = example[:EXAMPLES].clone() if len(example) >= EXAMPLES else torch.cat([example[:1]] * EXAMPLES)
    return two.float() if two.is_floating_point() else two


def _sampled(example: Tensor, words: int | None, draws: torch.Generator) -> Tensor:
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
