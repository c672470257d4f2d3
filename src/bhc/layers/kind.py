"""What there is to know of one kind of layer: every question that the rest of the library asks, in one place."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.layers.arguments import Argument, Kept, Shape, bounded, must_fit, unknown
from bhc.layers.protocols import Captured, CWriter, FileReader, FileWriter, OnnxWriter, Operators, UnitSearch

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


Example = tuple[nn.Module, tuple[Shape, ...]]


class NoForm(Exception):
    """A format has no way to write a layer; the text says which layer and why."""


class InNetworks(ABC):
    """What capture, graph, posterior and emission ask of a kind of layer."""

    name: ClassVar[str]
    module: ClassVar[type[nn.Module]]
    arguments: ClassVar[Mapping[str, Argument]] = {}
    weights: ClassVar[tuple[str, ...]] = ()  # of its parameters, those that are no biases, gains or shifts
    calls: ClassVar[tuple[str, ...]] = ()  # torch's operators that may be it; none: its module is captured whole
    joins: ClassVar[bool] = False  # whether it reads more values than one
    any_dtype: ClassVar[bool] = False  # whether it takes whole numbers and truths too, and gives such
    rises: ClassVar[bool] = False  # whether it never swaps the order of two numbers
    keeps_inputs_apart: ClassVar[bool] = False  # whether each number it gives is one that it reads, shifted at most

    # Capture's.

    def captured(self, call: Captured) -> nn.Module | None:
        """The module that does what a call of a captured program does; None where it is none of this kind."""
        return self.module(**{name: call.plain(name) for name in self.arguments})

    def weights_of(self, module: Any) -> tuple[str, ...]:
        """Of its parameters, those that count as weights."""
        return self.weights

    # The graph's questions.

    def takes(self, count: int) -> bool:
        """Whether it can read so many values."""
        return count == 1

    @abstractmethod
    def output_shape(self, module: Any, *arriving: Shape) -> Shape:
        """The shape that it makes of those that arrive, by arithmetic alone; ValueError where they do not fit."""

    @abstractmethod
    def follow(self, module: Any, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        """The units of what it gives, (leaving), from those of what it reads; who lives and dies together is joined."""

    def num_flops(self, module: Any, arriving: Sequence[Shape], leaving: Shape) -> int:
        """Additions and multiplications of its weights and values, for ``EXAMPLES`` examples."""
        return 0

    def shares_of_flops(
        self, module: Any, arriving: Sequence[Shape], leaving: Shape
    ) -> Sequence[tuple[int, tuple[int, ...]]]:
        """The same in parts that shrink with values: with that of which least is kept, of what it reads by place and,
        as the last, of what it gives."""
        flops = self.num_flops(module, arriving, leaving)
        return [(flops, (-1,))] if flops else []

    # The posterior's.

    def operator(self, module: Any, operators: Operators) -> Any:
        """How weights are applied that are believed and not known; None: it runs as it is."""
        return None

    def counts_kept(self, module: Any, axes: Sequence[tuple[int, ...]], dimensions: Sequence[int]) -> bool:
        """Whether it makes a difference which units are there, of values that have them along these axes: sums over
        what stays, and not number by number."""
        return False

    def masked(self, module: Any, keeps: Sequence[Tensor | None], *values: Tensor) -> Tensor:
        """What it gives where only some of what it reads is there; ``keeps`` are broadcast to the values, which may
        have any numbers where nothing is."""
        return module(*values)

    # Emission's.

    def words(self, module: Any) -> tuple[int, Tensor] | None:
        """Where it reads words and not amounts: how many there are, and those that have a row of weights."""
        return None

    @abstractmethod
    def narrowed(self, module: Any, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        """The step for the units that stay of what it reads and gives, each along its axis."""

    # Descriptions, which run folders hold.

    def describe(self, module: Any) -> dict[str, Any]:
        """What ``build`` needs, as plain data."""
        return {name: getattr(module, name) for name in self.arguments}

    def build(self, described: Mapping[str, Any]) -> nn.Module:
        """A module as described, its numbers uninitialised; ValueError where that is no description of this kind."""
        if set(described) != set(self.arguments):
            raise ValueError(f"a {self.name} step with arguments {sorted(described)}")
        self.check(described)
        return self.module(**described)

    def check(self, described: Mapping[str, Any]) -> None:  # noqa: B027 - most have no sizes
        """Raise ValueError where a module as described would be absurdly large."""


class InFiles(ABC):
    """What formats ask of a kind of layer. One that says nothing is refused there by name."""

    name: ClassVar[str]
    module: ClassVar[type[nn.Module]]
    arguments: ClassVar[Mapping[str, Argument]]
    number: ClassVar[int | None] = None  # in packed files, for ever; kinds of others have none
    keeps_name: ClassVar[bool] = False  # whether a packed file holds the step's name: layers with weights

    @abstractmethod
    def build(self, described: Mapping[str, Any]) -> nn.Module: ...

    # The packed file's.

    @property
    def tag(self) -> int | str:
        """What stands for it in a packed file."""
        return self.name if self.number is None else self.number

    def untold(self) -> tuple[str, ...]:
        """The arguments that a file has to hold: all that ``told`` does not know."""
        return tuple(self.arguments)

    def told(self, shape: Shape) -> dict[str, Any]:
        """The arguments that follow from the shape of what arrives."""
        return {}

    def write(self, module: Any, name: str, arriving: Shape, file: FileWriter) -> list[Any]:
        """The step in a packed file; its numbers go to ``file``."""
        if next(module.parameters(), None) is not None:
            file.floats(name, module)
        return [self.tag, *[self.arguments[key].plain(getattr(module, key)) for key in self.untold()]]

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        """Add the step that ``write`` wrote, without what it reads; ValueError for any other."""
        if len(entry) != 1 + len(self.untold()):
            raise unknown(entry)
        stored = zip(self.untold(), entry[1:], strict=True)
        arguments = self.told(file.shape) | {key: self.arguments[key].checked(value) for key, value in stored}
        with torch.device("meta"):
            module = self.build(arguments)
        file.add(self.name, module)

    # Other formats'.

    forms: ClassVar[Mapping[str, Callable[..., Any]]] = {}  # how formats of others write it, by the format's name

    def to_onnx(self, module: Any, name: str, writer: OnnxWriter) -> None:
        """Nodes that do the same."""
        raise NoForm(f"step {name!r} is a {type(module).__name__}")

    def c_obstacle(self, module: Any, arriving: Shape) -> str | None:
        """Why such a step has no C code, to go on after its name; None where it has."""
        return None if type(self).to_c is not InFiles.to_c else f"is a {type(module).__name__}"

    def to_c(self, module: Any, name: str, arriving: Shape, leaving: Shape, writer: CWriter) -> None:
        """Lines of C that do the same, for shapes of one example."""
        raise NoForm(f"step {name!r} is a {type(module).__name__}")


class LayerKind(InNetworks, InFiles):
    """One kind of layer: a module's type, and what capture, graph, posterior, emission and formats ask of it.

    What must not be guessed is abstract: shapes, units, what stays after a cut. A format that a kind does not know is
    refused by name. Kinds hold no state; the module that is asked about comes with every question.

    ``name`` stands in run folders and, for kinds of others, in files: with a dot in it, such as ``"acme.mish"``.
    ``arguments`` are those of the module's constructor, as the attributes that hold them.
    """

    @abstractmethod
    def examples(self) -> Sequence[Example]:
        """Modules with the shapes of what they read, on which every answer can be checked."""


class Uncut(LayerKind):
    """Nothing of it can be cut: for what stays it is the same step."""

    def narrowed(self, module: Any, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        return own_copy(module)


class Elementwise(Uncut):
    """Changes each number by itself: shapes and units stay what they are."""

    def output_shape(self, module: Any, *arriving: Shape) -> Shape:
        (shape,) = arriving
        return shape

    def follow(self, module: Any, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        return arriving[0]


class Whole(Uncut):
    """Mixes channels in a way that has no rule here: all that it reads and gives is kept."""

    def follow(self, module: Any, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        for units in arriving:
            search.keep(units)
        return search.whole(leaving)


class OfChannels(LayerKind):
    """Has numbers for each channel: files do not say how many there are, since the shape that arrives does."""

    def check(self, described: Mapping[str, Any]) -> None:
        bounded(described["channels"])

    def untold(self) -> tuple[str, ...]:
        return tuple(name for name in self.arguments if name != "channels")

    def told(self, shape: Shape) -> dict[str, Any]:
        return {"channels": shape[1]}


class OfTokens(OfChannels, Uncut):
    """Mixes the channels of tokens, (N, C, T), and gives as many: none of them is cut."""

    def output_shape(self, module: Any, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(len(shape) == 3 and shape[1] == module.channels, module, shape)
        return shape

    def follow(self, module: Any, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        search.keep(arriving[0])
        return arriving[0]


class Weighted(LayerKind):
    """A layer whose weights are pruned and rounded: (O, I, ...), with a bias or without."""

    weights = ("weight",)
    keeps_name = True
    in_axis: ClassVar[int]  # of what it reads, the axis that its weights are summed over
    out_axis: ClassVar[int]
    sums, has_curvature = True, False  # whether it sums products, so that numbers can be added; and those of all inputs
    may_skip: ClassVar[bool] = True  # whether it can be made without an input that others read

    def follow(self, module: Any, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        if self.in_axis == self.out_axis and self.num_kernel_axes(module) == 0:
            passing = _passing(search, arriving[0], self.in_axis)
            if passing is not None:  # a product over places, the same for each channel
                return passing.expand(leaving)
        self.reads(module, search, arriving[0])
        return spread(search.new(len(module.weight)), leaving, self.out_axis)

    def num_kernel_axes(self, module: Any) -> int:
        return int(module.weight.dim()) - 2

    def reads(self, module: Any, search: UnitSearch, arriving: Tensor) -> Tensor:  # (channels that arrive,)
        """The unit of each of its inputs."""
        return search.along(arriving, self.in_axis)

    def narrowed(self, module: Any, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        raise BhcError(f"a {self.name} layer is cut by its weights")

    @abstractmethod
    def smaller(self, module: Any, weight: Tensor, bias: Tensor | None, kept_inputs: Tensor) -> nn.Module:
        """The layer with fewer inputs and outputs, and other numbers."""

    @abstractmethod
    def operator(self, module: Any, operators: Operators) -> Any:
        """How its weights are applied."""

    def num_flops(self, module: Any, arriving: Sequence[Shape], leaving: Shape) -> int:
        """Two operations a weight and place it is applied at."""
        places = int(np.prod([size for axis, size in enumerate(leaving) if axis != self.out_axis % len(leaving)]))
        return 2 * module.weight.numel() * places

    def width(self, module: Any) -> int:
        """The layer's number in an architecture: its inputs."""
        return module.weight.shape[1]

    def describe(self, module: Any) -> dict[str, Any]:
        return super().describe(module) | {"bias": module.bias is not None}

    def build(self, described: Mapping[str, Any]) -> nn.Module:
        arguments = dict(described)
        bias = arguments.pop("bias", True)
        if set(arguments) != set(self.arguments):
            raise ValueError(f"a {self.name} step with arguments {sorted(arguments)}")
        self.check(arguments)
        return self.module(**arguments, bias=bias)


def _passing(search: UnitSearch, units: Tensor, axis: int) -> Tensor | None:
    """Units along other axes than that of a product alone, which go through it; with a size of 1 along that."""
    axis %= units.dim()
    varying = [other for other in range(units.dim()) if search.varies(units, other)]
    return units.narrow(axis, 0, 1) if varying and axis not in varying else None


def spread(units: Tensor, shape: Shape, axis: int) -> Tensor:
    """Units of each place of an axis as those of every number of a shape; nothing is copied."""
    sizes = [1] * len(shape)
    sizes[axis] = len(units)
    return units.reshape(sizes).expand(shape)


def join_along(search: UnitSearch, units: Tensor, mixed: Sequence[int]) -> None:
    """Nothing goes along some axes: what differs there goes together, where there are channels along another."""
    while any(search.varies(units, axis) for axis in mixed):
        others = [axis for axis in range(units.dim()) if axis not in mixed and search.varies(units, axis)]
        if len(others) != 1:
            search.keep(units)
            return
        search.along(units, others[0])


def first_along(units: Tensor, *axes: int) -> Tensor:
    """Units along some axes, in that order, at the first place of all others."""
    others = [axis for axis in range(units.dim()) if axis not in axes]
    for axis in others:
        units = units.narrow(axis, 0, 1)
    return units.permute(*axes, *others).flatten(len(axes)).squeeze(-1) if others else units.permute(*axes)


def meeting(arriving: Sequence[Tensor], leaving: Shape, search: UnitSearch) -> list[Tensor]:
    """Units of values that are broadcast to a shape, those of each number that meet others number by number.

    A value with one number where another has many units, as a gate over places, is needed by all of them: it stays. Of
    heads it has one number for each place that any of them keeps.
    """
    spread_out = [units.expand(leaving) for units in arriving]
    met = []
    for place, (own, units) in enumerate(zip(arriving, spread_out, strict=True)):
        sizes = (*[1] * (len(leaving) - own.dim()), *own.shape)
        single = [axis for axis, size in enumerate(sizes) if size == 1 and leaving[axis] > 1]
        others = [other for at, other in enumerate(spread_out) if at != place]
        wider = [(other, axis) for axis in single for other in others if search.varies(other, axis)]
        if not wider:
            met.append(units)
        elif not _stands_for_heads(search, units, *wider[0]):
            search.keep(units)
            for other, _ in wider:  # it has a number for each place that any of them keeps
                join_along(search, other, [axis for axis, size in enumerate(sizes) if axis and size > 1])
    return met


def _stands_for_heads(search: UnitSearch, units: Tensor, other: Tensor, heads: int) -> bool:
    """Whether it has one unit for each place that another has along a second axis beside that of its heads."""
    own = [axis for axis in range(units.dim()) if search.varies(units, axis)]
    if len(own) != 1 or own[0] == heads or not search.varies(other, own[0]):
        return False
    search.heads.alike(first_along(other, heads, own[0]), first_along(units, own[0]))
    return True
